"""`task = "fill"` on a folder of text of one's own: train, predict, eval, export, and every odd kind of document."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import qkv
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import open_corpus
from qkv.corpus.sentences import SPLITTERS
from qkv.data.prepare import Prepared, prepare
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tasks import TASKS
from tests.support.cli import check_ended, run_json, run_qkv, train, trained, write_documents
from tests.support.fork_server import Ended

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

RECIPE = """
task = "fill"
seed = 3
[data]
corpus = "docs"
length = 32
[tokenizer]
vocab_size = 200
[model]
context = 32
width = 16
heads = 2
layers = 2
feedforward = 32
positions = "rotary"
embedding_norm = true
pooler = "tanh"
output_bias = true
[train]
steps = 240
batch_tokens = 512
learning_rate = 1e-2
warmup = 20
dropout = 0.0
eval_every = 30
[runtime]
threads = 1
"""
TOPICS = (
    (("sailor", "captain", "pirate"), "sails", "boat"),
    (("farmer", "peasant", "settler"), "ploughs", "field"),
    (("judge", "lawyer", "jury"), "tries", "case"),
)
TOKEN_METRICS = {"loss", "token_loss", "token_accuracy", "perplexity"}
PAIR_HEAD = {
    f"{name}.{leaf}" for name in ("roformer.pooler.dense", "cls.seq_relationship") for leaf in ("weight", "bias")
}


def document(chance: random.Random) -> str:
    """A few sentences about one thing."""
    who, does, what = chance.choice(TOPICS)
    return " ".join(f"The {chance.choice(who)} {does} the {what}." for _ in range(chance.randint(1, 5)))


def documents(count: int, seed: int = 1) -> list[str]:
    chance, found = random.Random(seed), dict[str, None]()
    while len(found) < count:
        found[document(chance)] = None
    return list(found)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of text and a recipe."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "docs").mkdir()
    for part in range(2):
        write_documents(folder / "docs" / f"{part}.txt", documents(120)[part::2])
    (folder / "my.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def training(place: Path) -> Ended:
    return trained(place, "run")


@pytest.fixture(scope="module")
def run(place: Path, training: Ended) -> Path:
    return place / "run"


def test_a_training_shows_its_metrics(run: Path, training: Ended) -> None:
    assert re.search(r"^docs: \d+ train, \d+ validation, \d+ test documents$", training.err, re.M)
    shown = re.findall(r"token accuracy (\S+), perplexity (\S+), next-sentence accuracy (\S+), loss", training.err)
    assert len(shown) == 8
    assert float(shown[-1][1]) < 0.5 * float(shown[0][1])
    for word in ("token accuracy", "perplexity", "next sentence accuracy", "run: done; learning curves: curves.png"):
        assert word in training.out
    last = Run(run).metrics()[-1]
    assert last["loss"] == pytest.approx(last["token_loss"] + last["next_sentence_loss"])
    validation = last["validation_token_loss"] + last["validation_next_sentence_loss"]
    assert last["validation_loss"] == pytest.approx(validation)
    assert last["validation_token_accuracy"] > 0.4


def test_the_card_has_the_metrics_and_the_curves(run: Path, place: Path) -> None:
    card = (run / "README.md").read_text()
    assert "An encoder pre-trained on masked tokens and next-sentence prediction, trained with qkv" in card
    assert "loads as `RoFormerForMaskedLM`" in card
    assert "![Learning curves](curves.png)" in card
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    found = run_json(place, "eval", run)
    assert f"On {found.pop('documents')} test documents" in card
    assert found.keys() == {*TOKEN_METRICS, "next_sentence_loss", "next_sentence_accuracy"}
    for name, value in found.items():
        assert f"| {name.replace('_', ' ')} | {value:.4f} |" in card


def test_eval_on_its_own_documents_and_on_others(run: Path, place: Path) -> None:
    shown = run_qkv(place, "eval", run)
    assert shown.code == 0
    assert shown.out.startswith("on ")
    assert "token accuracy" in shown.out
    assert not (run / "reliability.png").exists()
    others = documents(20, seed=9)
    write_documents(place / "other.txt", others)
    write_documents(place / "noise.txt", (" ".join(reversed(text.split())) for text in others))
    found = [run_json(place, "eval", run, "--data", name) for name in ("other.txt", "noise.txt")]
    assert [one["documents"] for one in found] == [20, 20]
    assert found[0]["perplexity"] < 0.5 * found[1]["perplexity"]
    (place / "none.txt").write_text("\n\n")
    refused = run_qkv(place, "eval", run, "--data", "none.txt")
    assert (refused.code, refused.err) == (2, "error: no documents with text to evaluate on\n")


def test_predict_fills_in_ranked_tokens(run: Path, place: Path) -> None:
    text = "The sailor sails the [MASK]."
    lines = run_qkv(place, "predict", run, text, "The [MASK] tries the case.").out.splitlines()
    best, ranked = lines[0].split("   |  ")
    assert best == text.replace("[MASK]", ranked.split()[0])
    assert ranked.split()[0] in {what for _, _, what in TOPICS}
    assert len(lines) == 2
    answer = run_json(place, "predict", run, "--top", "3", "the [MASK] sails the [MASK].")
    assert [one["mask"] for one in answer["alternatives"]] == [1, 1, 1, 2, 2, 2]
    shares = [one["probability"] for one in answer["alternatives"]]
    assert shares == [*sorted(shares[:3], reverse=True), *sorted(shares[3:], reverse=True)]
    assert answer["log_probability"] == pytest.approx(np.log(shares[0]) + np.log(shares[3]), abs=1e-5)
    refused = run_qkv(place, "predict", run, "nothing is missing")
    check_ended(refused, 2, "'nothing is missing', has no [MASK]; write it in place of the missing token")


def test_predict_says_whether_a_text_is_the_next(run: Path, place: Path) -> None:
    pair = "The sailor sails the boat.\tThe judge tries the case."
    label, share = run_qkv(place, "predict", run, pair).out.rsplit(maxsplit=1)
    assert label.strip() in ("next", "not next")
    assert 0.5 <= float(share) <= 1
    answer = run_json(place, "predict", run, pair)
    assert answer["text"] == pair.split("\t")
    assert answer["label"] == label.strip()
    assert list(answer["probabilities"]) == ["next", "not next"]
    assert sum(answer["probabilities"].values()) == pytest.approx(1.0)


def test_pairs_and_single_texts_are_answered_in_their_order(run: Path) -> None:
    model = qkv.load(run)
    texts: list[str | tuple[str, str]] = [
        "The sailor sails the [MASK].",
        ("a boat", "the case of a judge"),
        "[MASK]",
        ("x", "y z"),
        "the [MASK] today",
    ]
    together = model.predict(texts)
    assert [answer.text for answer in together] == texts
    for text, answer in zip(texts, together, strict=True):
        (alone,) = model.predict([text])
        assert alone.label == answer.label
        assert alone.output == answer.output
        assert (answer.label is None) == isinstance(text, str)
        if alone.probabilities and answer.probabilities:
            assert answer.probabilities == pytest.approx(alone.probabilities, abs=1e-6)


def test_a_text_without_a_mask_is_named_by_its_number_among_all(run: Path) -> None:
    with pytest.raises(UserError, match=r"^text 3, 'nothing', has no \[MASK\]"):
        qkv.load(run).predict([("a", "b"), "a [MASK]", "nothing"])


def test_transformers_gives_the_same_logits_for_masked_tokens(run: Path) -> None:
    """It has no class that also predicts next sentences: the two layers for that are ignored, and nothing else is."""
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(run, output_loading_info=True)
    assert type(theirs).__name__ == "RoFormerForMaskedLM"
    assert set(report["unexpected_keys"]) == PAIR_HEAD
    assert not report["missing_keys"]
    assert not report["mismatched_keys"]
    ours = qkv.load(run)
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    text = "The [MASK] sails the boat today. It is his."
    ids = tokenizer(text, return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == ours.tokenizer.encode([text])[0].ids
    with torch.no_grad():
        expected = theirs.eval()(input_ids=ids).logits
        found = ours.model.logits(ours.model(ids))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1


@pytest.mark.parametrize("half", [False, True])
def test_an_export_is_verified_and_still_takes_pairs(run: Path, place: Path, half: bool) -> None:
    ended = run_qkv(place, "export", run, "-o", f"out-{half}", *(["--half"] if half else []))
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"out-{half}: RoFormerForMaskedLM\nlargest difference to transformers ")
    texts: list[str | tuple[str, str]] = ["The sailor sails the boat [MASK]", ("a boat", "the case of a judge")]
    ours, theirs = qkv.load(run).predict(texts), qkv.load(place / f"out-{half}").predict(texts)
    assert ours[0].output == theirs[0].output == "The sailor sails the boat ."  # 0.97: no rounding changes it
    assert ours[1].probabilities == pytest.approx(theirs[1].probabilities, abs=1e-2 if half else 1e-6)
    size = (place / f"out-{half}" / "model.safetensors").stat().st_size / (run / "model.safetensors").stat().st_size
    assert size < 0.7 if half else size > 0.9


def test_without_next_sentences_only_masked_tokens_are_predicted(place: Path) -> None:
    """Also where the recipe has a pooler, which only pairs would need."""
    run = place / "tokens"
    ended = trained(place, "tokens", "train.next_sentence=false", "train.steps=10", "train.eval_every=0")
    assert "next sentence" not in ended.err
    assert not re.search(r"next[- ]sentence", (run / "README.md").read_text())
    assert not any("next" in name for line in Run(run).metrics() for name in line)
    assert qkv.load(run).config.head == "tokens"
    assert run_qkv(place, "predict", run, "a [MASK]\tb").code == 0  # to it, a tab is a blank like others
    with pytest.raises(UserError, match="text 2 is a pair; this model takes single texts"):
        qkv.load(run).predict(["a [MASK]", ("a", "b")])
    assert run_json(place, "eval", run).keys() == {"documents", *TOKEN_METRICS}
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(run, output_loading_info=True)
    assert type(theirs).__name__ == "RoFormerForMaskedLM"
    assert not report["unexpected_keys"]


# --- odd documents


ONE = "The sailor sails the boat. The sailor is old. It rains."


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (b"", [], "odd.txt: no rows to train on"),
        (b"\n \n\t\r\n\r\n", [], "odd.txt: no rows to train on"),
        (ONE.encode(), [], "odd.txt: 1 training document; next-sentence prediction needs several, for negatives"),
        (ONE.encode(), [], "set train.next_sentence=false, or data.documents to split it"),
        ("Ein Café.\n\nZwei.".encode("latin1"), [], "odd.txt, line 1, byte 8: 0xe9 is not UTF-8"),
        (None, [], "odd.txt, line 1: a line of over 16 MiB, the most that is read"),
        (b"A. B.\n\nC. D.", ["data.sentences=french"], "data.sentences = 'french': must be one of english, lines"),
        (b"A. B.\n\nC. D.", ["data.documents=headings"], "odd.txt: no heading in it"),
        (b"A. B.\n\nC. D.", ["data.length=4"], "data.length = 4: leaves no room for text beside the special tokens"),
        (
            ONE.encode(),
            ["train.token_dropout=0.1"],
            "train.token_dropout = 0.1: not used by task = 'fill'; remove this key",
        ),
        (
            ONE.encode(),
            ["data.truncation=windows"],
            "data.truncation = 'windows': not used by task = 'fill'; remove this key",
        ),
        (
            b"A. B.\n\nC. D.",
            ["model.pool=mean"],
            "model.pool = 'mean': next-sentence prediction reads one token; accepted: auto, first, last",
        ),
        (
            b"A. B.\n\nC. D.",
            ["train.token_match=true", "train.next_sentence=false"],
            "train.token_match = true: needs pairs; set train.next_sentence=true",
        ),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(
    tmp_path: Path, content: bytes | None, settings: list[str], sentence: str
) -> None:
    (tmp_path / "my.toml").write_text(RECIPE)
    with (tmp_path / "odd.txt").open("wb") as file:
        file.truncate(50 * 2**20) if content is None else file.write(content)
    ended = train(tmp_path, "wrong", "data.corpus=odd.txt", *settings)
    check_ended(ended, 2, sentence)
    assert ended.out == ""
    assert {file.name for file in (tmp_path / "wrong").glob("*")} <= {".lock"}
    assert not list((tmp_path / "cache").rglob("*.tmp-*"))


@pytest.mark.parametrize(
    ("texts", "settings", "pairs"),
    [
        ([ONE], ["train.next_sentence=false"], False),
        ([f"Number {n} is alone." for n in range(40)], [], False),
        ([f"words without any end {n} " * 20 for n in range(40)], [], False),
    ],
    ids=["one document", "single sentences", "no sentence ends"],
)
def test_odd_documents_can_be_trained_on(tmp_path: Path, texts: list[str], settings: list[str], pairs: bool) -> None:
    write_documents(tmp_path / "odd.txt", texts)
    chosen = ["data.corpus=odd.txt", "train.steps=2", "train.eval_every=0", *settings]
    (tmp_path / "my.toml").write_text(RECIPE)
    trained(tmp_path, "run", *chosen)
    lines = Run(tmp_path / "run").metrics()
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert ("next_sentence_loss" in lines[-1]) == pairs
    assert qkv.load(tmp_path / "run").predict(["the [MASK]"])[0].alternatives


def prepared(folder: Path, corpus: str, **data: Any) -> Prepared:
    recipe = Recipe.read(
        {"task": "fill", "data": {"corpus": corpus, **data}, "tokenizer": {"kind": "wordpiece", "vocab_size": 200}}
    )
    return prepare(open_corpus(recipe.data, TASKS["fill"].format(recipe)), recipe.tokenizer, folder / "cache")


def same_store(one: Prepared, other: Prepared) -> None:
    assert one.tokenizer.to_json() == other.tokenizer.to_json()
    assert one.counts == other.counts
    for split in ("train", "validation"):
        a, b = getattr(one, split), getattr(other, split)
        assert len(a) > 0
        for name in ("tokens", "starts_R", "labels_R"):
            assert np.array_equal(getattr(a, name), getattr(b, name))


def test_the_same_documents_however_they_are_kept(tmp_path: Path) -> None:
    """Line ends of any kind, JSON lines, a file for each, WikiText's headings, and two corpora in one."""
    texts = documents(100)
    (tmp_path / "unix.txt").write_bytes("\n\n".join(texts).encode())
    mixed = "".join(text + ("\r\n\r\n", "\n\n\n", "\r\r", "\n\r\n \n")[n % 4] for n, text in enumerate(texts))
    (tmp_path / "mixed.txt").write_bytes(mixed.encode())
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "each").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / "each" / f"{number:03}.txt").write_text(text + "\n")
    wiki = "".join(f" \n = Title {n} = \n \n = = Part = = \n \n {text} \n" for n, text in enumerate(texts))
    (tmp_path / "wiki.txt").write_text(wiki)
    write_documents(tmp_path / "a.txt", texts[:37])
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[37:]))
    unix = prepared(tmp_path, f"{tmp_path}/unix.txt")
    assert sum(sum(part.values()) for part in unix.counts.values()) == 100
    for other in (
        prepared(tmp_path, f"{tmp_path}/mixed.txt"),
        prepared(tmp_path, f"{tmp_path}/rows.jsonl"),
        prepared(tmp_path, f"{tmp_path}/each", documents="files"),
        prepared(tmp_path, f"{tmp_path}/a.txt + {tmp_path}/b.jsonl"),
    ):
        same_store(unix, other)
    headed = prepared(tmp_path, f"{tmp_path}/wiki.txt", documents="headings")
    assert sum(sum(part.values()) for part in headed.counts.values()) == 100
    assert "title" not in headed.tokenizer.to_json()


def test_a_splitter_of_ones_own(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("QKV_CACHE", str(place / "cache"))
    write_documents(place / "dots.txt", (f"one {n} | two {n}. Still two | three {n}" for n in range(40)))
    monkeypatch.setitem(SPLITTERS, "bars", lambda text: text.split("|"))
    settings = ["data.corpus=dots.txt", "data.sentences=bars", "train.steps=2", "train.eval_every=0"]
    answers = qkv.train("my.toml", place / "bars", settings=settings).predict(["one [MASK]", ("one", "two")])
    assert answers[0].alternatives
    assert answers[1].label in ("next", "not next")
    store = prepared(place, "dots.txt", sentences="bars").train
    assert np.bincount(store.labels_R).tolist() == [3] * len(np.unique(store.labels_R))
    assert qkv.evaluate(place / "bars")["all"].rows > 0
    monkeypatch.delitem(SPLITTERS, "bars")
    with pytest.raises(UserError, match=r"data.sentences = 'bars': must be one of english, lines"):
        qkv.train("my.toml", place / "bars", settings=settings)
