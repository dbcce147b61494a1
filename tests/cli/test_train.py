"""`qkv train`, `eval`, `predict` and `data` on a table of one's own, as a newcomer would use them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from tests.support.cli import run_qkv, write_table

RECIPE = """
task = "classify"
seed = 1
[data]
corpus = "tickets.csv"
text = "message"
label = "team"
group = "shop"
length = 24
[tokenizer]
vocab_size = 200
[model]
width = 16
heads = 2
layers = 1
feedforward = 16
positions = "rotary"
embedding_norm = true
pooler = "gelu"
[train]
epochs = 6
batch_tokens = 256
learning_rate = 5e-3
warmup = 10
[runtime]
threads = 1
"""
WORDS = {"billing": ("invoice", "refund"), "sales": ("price", "offer"), "support": ("crash", "error")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table, a recipe and a finished run."""
    folder, chance = tmp_path_factory.mktemp("shop"), random.Random(3)
    rows = [["message", "team", "shop"]]
    for number in range(500):
        team = chance.choice(sorted(WORDS))
        rows.append([f"{number}: the {chance.choice(WORDS[team])} again", team, chance.choice(["Bonn", "Oslo"])])
    write_table(folder / "tickets.csv", rows)
    (folder / "my.toml").write_text(RECIPE)
    result = run_qkv(folder, "train", "my.toml")
    assert result.code == 0, result.err
    assert "runs/my: done" in result.out
    return folder


def test_training_says_what_it_does(place: Path) -> None:
    lines = [json.loads(line) for line in (place / "runs/my/metrics.jsonl").read_text().splitlines()]
    assert {"step", "loss", "learning_rate", "tokens_per_second", "seconds"} <= lines[0].keys()
    assert lines[-1]["validation_accuracy"] > 0.9
    assert (place / "runs/my/curves.png").read_bytes().startswith(b"\x89PNG")
    card = (place / "runs/my/README.md").read_text()
    assert "RoFormerForSequenceClassification" in card
    assert "billing, sales, support" in card


def test_eval_shows_metrics_for_people_and_programs(place: Path) -> None:
    shown = run_qkv(place, "eval", "runs/my")
    assert shown.code == 0, shown.err
    for word in ("accuracy", "macro F1", "Bonn", "Oslo", "calibration error", "billing", "By class", "recall"):
        assert word in shown.out
    assert "too few rows to say: " in shown.out
    assert "note: the rows are the test set of tickets.csv, held out by a hash of the text" in shown.err
    assert not (place / "runs/my/reliability.png").exists()
    found = json.loads(run_qkv(place, "eval", "runs/my", "--json").out)
    assert found["accuracy"] > 0.9
    assert {"f1", "ece", "confusion", "interval", "groups"} <= found.keys()
    assert sum(group["rows"] for group in found["groups"].values()) == found["rows"]


def test_eval_on_other_rows_refuses_a_label_it_does_not_know(place: Path) -> None:
    head = ["message", "team", "shop"]
    write_table(place / "other.csv", [head, ["a refund", "billing", "Bonn"], ["an error", "it", "Oslo"]])
    result = run_qkv(place, "eval", "runs/my", "--data", "other.csv")
    assert result.code == 2
    assert "other.csv, line 3: label 'it' is unknown to this model; known: billing, sales, support" in result.err
    write_table(place / "fine.csv", [head, ["the refund again", "billing", "Bonn"]])
    assert json.loads(run_qkv(place, "eval", "runs/my", "--data", "fine.csv", "--json").out)["rows"] == 1


def test_predict_gives_a_line_for_each_line(place: Path) -> None:
    result = run_qkv(place, "predict", "runs/my", stdin="7: the refund again\n\n8: the crash again\n")
    labels = [line.split()[0] for line in result.out.splitlines()]
    assert len(labels) == 3
    assert (labels[0], labels[2]) == ("billing", "support")
    answer = json.loads(run_qkv(place, "predict", "runs/my", "--json", "9: the offer again").out)
    assert answer["label"] == "sales"
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0)


def test_no_text_and_a_picture_of_another_kind_are_refused(place: Path) -> None:
    nothing = run_qkv(place, "predict", "runs/my", stdin="")
    assert (nothing.code, nothing.err) == (2, "error: stdin: is empty; give at least one text, one per line\n")
    picture = run_qkv(place, "eval", "runs/my", "-o", "x.foo")
    assert (picture.code, picture.out) == (2, "")
    assert picture.err == "error: x.foo: a picture's name must end in one of .png, .svg\n"


def test_a_run_is_a_folder(place: Path) -> None:
    (place / "taken").write_text("")
    ended = run_qkv(place, "train", "my.toml", "-o", "taken")
    assert (ended.code, ended.err) == (
        2, "error: taken: is a file; a run is a folder, choose another name with -o\n",
    )  # fmt: skip


def test_a_truncated_text_is_noted(place: Path) -> None:
    result = run_qkv(place, "predict", "runs/my", "refund " * 100)
    assert "note: 1 of 1 texts were truncated, first text 1" in result.err


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["data.text=body"], "'body'"),
        (["data.corpus=none.csv"], "none.csv"),
        (["data.label=message"], "is 'message' the label column?"),
        (["train.batch_tokens=8"], "train.batch_tokens = 8: must be at least data.length = 24"),
        (["model.positions=learned", "model.context=16"], "data.length = 24 is more than model.context = 16"),
        (["train.learning_rate=0"], "train.learning_rate"),
        (["task=complete", "model.family=encoder"], "task = 'complete' needs model.family = decoder; found 'encoder'"),
        (["train.whole_words=true"], "train.whole_words = True: not used by task = 'classify'; remove this key"),
        (["data.sentences=lines"], "data.sentences = 'lines': not used by task = 'classify'; remove this key"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(place: Path, settings: list[str], sentence: str) -> None:
    chosen = [word for setting in settings for word in ("--set", setting)]
    result = run_qkv(place, "train", "my.toml", "-o", "runs/wrong", *chosen)
    assert result.code == 2
    assert sentence in result.err
    assert "Traceback" not in result.err
    assert not (place / "runs/wrong").exists()


def test_what_looks_like_a_special_token_is_text_in_training_and_in_prediction(place: Path) -> None:
    from qkv.api import load

    predictor = load(place / "runs/my")
    template, text = predictor.tokenizer.template(pair=False), "7: the [SEP] refund [PAD] again"
    encoded = predictor.tokenizer.encode([text], literal=True)[0].ids
    assert encoded == [*template.before, *predictor.tokenizer.ids([text])[0], *template.after]
    plain = predictor.tokenizer.encode([text])[0].ids
    assert plain != encoded
    asked = predictor.predict([text])[0].probabilities
    predictor.input_options = type(predictor.input_options)(length=24)
    assert asked != predictor.predict([text])[0].probabilities


def test_a_finished_run_without_its_checkpoints_is_left_as_it_is(place: Path) -> None:
    import shutil

    shutil.copytree(place / "runs/my", place / "runs/lean")
    shutil.rmtree(place / "runs/lean/checkpoints")
    before = {file.name: file.read_bytes() for file in (place / "runs/lean").iterdir() if file.suffix != ".png"}
    result = run_qkv(place, "train", "my.toml", "-o", "runs/lean")
    assert result.code == 0, result.err
    assert "this run is already finished, at step " in result.err
    after = {file.name: file.read_bytes() for file in (place / "runs/lean").iterdir() if file.suffix != ".png"}
    assert {name: after[name] for name in before} == before


def test_a_folder_with_metrics_of_its_own_is_not_overwritten(place: Path) -> None:
    (place / "notes").mkdir()
    (place / "notes/metrics.jsonl").write_text("mine\n")
    result = run_qkv(place, "train", "my.toml", "-o", "notes")
    assert result.code == 2
    assert "already exists, and the folder is not a run; choose another folder with -o" in result.err
    assert (place / "notes/metrics.jsonl").read_text() == "mine\n"


def test_names_that_are_markup_or_too_long_are_only_names(place: Path) -> None:
    rows, chance = [["message", "team", "shop"]], random.Random(5)
    for number in range(300):
        team = chance.choice(["[spam]", "[/b]"])
        rows.append([f"{number} {'win' if team == '[spam]' else 'meet'}", team, "[/i]"])
    write_table(place / "markup.csv", rows)
    (place / "markup.toml").write_text(RECIPE.replace("tickets.csv", "markup.csv"))
    assert run_qkv(place, "train", "markup.toml", "--set", "train.epochs=1").code == 0
    shown = run_qkv(place, "eval", "runs/markup")
    assert shown.code == 0, shown.err
    assert "[spam]" in shown.out
    assert "[/i]" in shown.out
    result = run_qkv(place, "predict", "a review that was meant as text " * 10, "x")
    assert result.code == 2
    assert "Traceback" not in result.err


def test_python_hears_what_the_command_line_says(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from qkv import api
    from qkv.config import recipes
    from qkv.schema import UserError

    monkeypatch.chdir(place)
    monkeypatch.setenv("QKV_CACHE", str(place / "cache"))
    heard: list[str] = []
    api.train("my.toml", "runs/short", settings=["data.length=6", "train.epochs=1"], say=heard.append)
    assert any(
        "training texts keep their first 6 tokens (data.length, data.truncation)" in sentence for sentence in heard
    )
    with pytest.raises(UserError, match="replace"):
        api.train(recipes.resolve("my.toml"), "runs/x", settings=["seed=1"])


def test_windows_read_all_of_a_long_text(place: Path) -> None:
    settings = ["--set", "data.truncation=windows", "--set", "data.length=8", "--set", "train.epochs=3"]
    assert run_qkv(place, "train", "my.toml", "-o", "runs/windows", *settings).code == 0
    text = "the the the the the the the the the the the the the the the crash again"
    result = run_qkv(place, "predict", "runs/windows", "--json", text)
    assert "truncated" not in json.loads(result.out)


def test_a_table_is_looked_into(place: Path) -> None:
    result = run_qkv(place, "data", "show", "tickets.csv")
    assert result.code == 0, result.err
    assert "message" in result.out
    assert "movie-reviews" in run_qkv(place, "data", "list").out


def test_pairs_are_classified_together(place: Path) -> None:
    rows, chance = [["first", "second", "same"]], random.Random(4)
    for number in range(400):
        a, b = chance.choice(["red", "blue"]), chance.choice(["red", "blue"])
        rows.append([f"{number} {a}", f"{b} {number}", "yes" if a == b else "no"])
    write_table(place / "pairs.csv", rows)
    recipe = RECIPE.replace("tickets.csv", "pairs.csv").replace('"message"', '"first"').replace('"team"', '"same"')
    (place / "pairs.toml").write_text(recipe.replace('group = "shop"', 'pair = "second"'))
    result = run_qkv(place, "train", "pairs.toml", "--set", "train.epochs=2")
    assert result.code == 0, result.err
    assert run_qkv(place, "predict", "runs/pairs", "red\tred").out.split()[0] in ("yes", "no")
    refused = run_qkv(place, "predict", "runs/pairs", "red")
    assert refused.code == 2
    assert "text 1: this model needs pairs; separate the two texts by a tab" in refused.err
