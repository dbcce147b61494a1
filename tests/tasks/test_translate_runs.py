"""`task = "translate"` on pairs of one's own: train, translate, eval, kill and resume, and every odd kind of pair."""

from __future__ import annotations

import json
import random
import re
import signal
from pathlib import Path

import pytest
import torch
import transformers

import qkv
from qkv.export import export_hf
from qkv.predict.beam_trace import trace_beams
from tests.support.fork_server import Ended, assert_same_end, fork_server

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

RECIPE = """
task = "translate"
seed = 3
[data]
corpus = "train.a -> train.b"
validation = "val.a -> val.b"
test = "test.a -> test.b"
length = 16
[tokenizer]
vocab_size = 120
[model]
family = "encoder-decoder"
width = 32
heads = 2
layers = 1
feedforward = 64
embedding_scale = true
activation = "relu"
tied = "all"
[train]
steps = 260
batch_tokens = 1024
learning_rate = 5e-3
schedule = "inverse_sqrt"
warmup = 40
dropout = 0.0
label_smoothing = 0.05
report_every = 10
save_every = 35
eval_every = 65
[decode]
beam = 3
[runtime]
threads = 1
"""
ENGLISH = ("red", "blue", "small", "big", "dog", "cat", "house", "tree")
OTHER = dict(zip(ENGLISH, ("rot", "blau", "klein", "gross", "hund", "katze", "haus", "baum"), strict=True))


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """A language in which every word has another name, and the noun comes first."""
    chance, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        words = [*chance.choices(ENGLISH[:4], k=chance.randint(1, 4)), chance.choice(ENGLISH[4:])]
        found[" ".join(words)] = " ".join(OTHER[word] for word in (words[-1], *words[:-1]))
    return list(found.items())


def write(folder: Path, name: str, rows: list[tuple[str, str]]) -> None:
    (folder / f"{name}.a").write_text("".join(f"{a}\n" for a, _ in rows))
    (folder / f"{name}.b").write_text("".join(f"{b}\n" for _, b in rows))


def train(folder: Path, run: str, *settings: str, **death: object) -> Ended:
    words = (word for one in settings for word in ("--set", one))
    return fork_server().live(folder, "train", "my.toml", "-o", run, *words, **death)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rows = tmp_path_factory.mktemp("pairs"), pairs(700, 1)
    for name, part in (("train", rows[:600]), ("val", rows[600:650]), ("test", rows[650:])):
        write(folder, name, part)
    (folder / "my.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def trained(place: Path) -> Ended:
    ended = train(place, "run")
    assert ended.code == 0, ended.err
    return ended


@pytest.fixture(scope="module")
def run(place: Path, trained: Ended) -> Path:
    return place / "run"


def test_it_learns_to_translate_pairs_it_never_saw(run: Path, trained: Ended) -> None:
    assert "train.a -> train.b: 600 train, 50 validation, 50 test pairs" in trained.err
    ended = fork_server().live(run.parent, "eval", "run", "--json")
    found = json.loads(ended.out)
    assert found["pairs"] == 50
    assert found["bleu"] > 90
    assert found["chrf"] > 90
    assert found["decoding"] == "beam 3, length penalty 0.6"
    assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:\S+", found["bleu_signature"])
    card = (run / "README.md").read_text()
    assert "An encoder-decoder that translates" in card
    assert found["bleu_signature"] in card


def test_one_line_for_each_line_also_for_empty_ones(run: Path) -> None:
    (run.parent / "asked.txt").write_text("red dog\n\nbig blue house\n")
    ended = fork_server().live(run.parent, "predict", "run", "--file", "asked.txt")
    assert ended.out.splitlines() == ["hund rot", "", "haus gross blau"]


def test_several_answers_best_first(run: Path) -> None:
    ended = fork_server().live(run.parent, "predict", "run", "red dog", "--best", "3", "--json")
    answer = json.loads(ended.out)
    assert answer["output"] == "hund rot"
    scores = [one["score"] for one in answer["alternatives"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_the_tree_of_a_search(run: Path) -> None:
    ended = fork_server().live(run.parent, "predict", "run", "red dog", "--show-beams")
    assert "-> hund rot" in ended.out
    assert "ended" in ended.out
    assert "dropped" in ended.out
    trace = trace_beams(qkv.load(run), "red dog")
    assert trace.source[:2] == ("red", "dog")
    for nodes in trace.steps:
        for node in nodes:
            assert len(node.alignment) == len(trace.source)
            assert sum(node.alignment) == pytest.approx(1.0, abs=1e-5)
            assert node.score == pytest.approx(node.log_probability / node.length_penalty)
    by_length = [min(node.log_probability for node in nodes if not node.ended) for nodes in trace.steps[:2]]
    assert by_length[0] > by_length[1]
    assert json.loads(json.dumps(trace.to_json()))["answers"][0][0] == "hund rot"


def test_transformers_translates_in_the_same_way(run: Path) -> None:
    """The same words by MarianMTModel from the folder as it is, greedy, with the ids that its config names."""
    theirs = transformers.MarianMTModel.from_pretrained(run)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(run)
    texts = ["red dog", "big blue house"]
    given = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        made = theirs.generate(**given, max_new_tokens=12, num_beams=1, do_sample=False)
    ours = [one.output for one in qkv.load(run).predict(texts, beam=1, max_tokens=12)]
    assert tokenizer.batch_decode(made, skip_special_tokens=True) == ours == ["hund rot", "haus gross blau"]


def test_what_was_exported_answers_as_the_run_does(run: Path, tmp_path: Path) -> None:
    """Also by the beam, and up to the length, that its recipe has."""
    export_hf(run, tmp_path / "left")
    here, there = qkv.load(run), qkv.load(tmp_path / "left")
    assert there.generation_options() == here.generation_options()
    assert there.generation_options().decode.beam == 3
    assert there.limit() == here.limit() == 16
    texts = ["red dog", "big blue house", "small " * 40]
    assert there.predict(texts) == here.predict(texts)


def test_a_killed_training_goes_on_to_the_same_bits(place: Path, run: Path) -> None:
    assert train(place, "killed", after_step=150, signal=signal.SIGKILL).code == -signal.SIGKILL
    ended = train(place, "killed")
    assert ended.code == 0, ended.err
    assert "going on from step 140" in ended.err
    assert_same_end(run, place / "killed")


def test_a_tokenizer_for_each_language(place: Path) -> None:
    settings = ["tokenizer.shared=false", "model.tied=output", "train.steps=150"]
    ended = train(place, "apart", *settings)
    assert ended.code == 0, ended.err
    predictor = qkv.load(place / "apart")
    assert predictor.tokenizer.id_of("dog") is not None
    assert predictor.tokenizer.id_of("hund") is None
    assert predictor.target.id_of("hund") is not None
    assert predictor.target.id_of("dog") is None
    (answer,) = predictor.predict(["red dog"])
    assert set((answer.output or "").split()) <= set(OTHER.values())
    assert fork_server().live(place, "export", "apart", "-o", "exported").code == 0
    assert qkv.load(place / "exported").predict(["red dog"], beam=3)[0].output == answer.output


def test_tables_of_pairs(place: Path) -> None:
    rows = [f"{a}\t{b}" for a, b in pairs(300, 4)]
    (place / "pairs.tsv").write_text("\n".join(["english\tother", *rows, ""]))
    (place / "pairs.jsonl").write_text("\n".join(json.dumps({"english": a, "other": b}) for a, b in pairs(300, 4)))
    for name in ("pairs.tsv", "pairs.jsonl"):
        columns = ["data.text=english", "data.target=other", "data.validation=split", "data.test=split"]
        ended = train(place, f"of-{name}", f"data.corpus={name}", *columns, "train.steps=4")
        assert ended.code == 0, ended.err
        found = re.search(r"(\d+) train, (\d+) validation, (\d+) test pairs", ended.err)
        assert found is not None
        assert sum(int(number) for number in found.groups()) == 300


ROWS = pairs(80, 5)


@pytest.mark.parametrize(
    ("rows", "settings", "code", "said"),
    [
        (ROWS, ["data.corpus=train.a -> val.b"], 2, "val.b is also in data"),
        (ROWS, ["data.corpus=train.a -> short.b"], 2, "short.b has 2 lines, train.a has more"),
        (ROWS, ["data.corpus=train.a -> nowhere.b"], 2, "nowhere.b: no such file or folder"),
        ([*ROWS, ("", "haus"), ("red tree", " ")], ["train.steps=2"], 0, "2 rows have no text and are left out"),
        ([("", "")] * 9, [], 2, "no rows to learn from"),
        ([(a, a) for a, _ in ROWS], ["train.steps=2"], 0, "pairs"),
        ([*ROWS, ("red " * 40, "rot " * 40)], ["train.steps=2"], 0, "pairs have a side of more than 16 tokens"),
        ([("red " * 40, "rot")] * 5, [], 2, "all pairs are longer than 16 tokens"),
        (ROWS, ["task=classify"], 2, "task = 'classify' needs model.family = "),
        (ROWS, ["decode.temperature=0.5"], 2, "decode.temperature = 0.5: is not read where task = 'translate'"),
        (ROWS, ["model.context=8", "model.positions=learned"], 2, "data.length = 16 is more than model.context = 8"),
    ],
)  # fmt: skip
def test_odd_pairs(tmp_path: Path, rows: list[tuple[str, str]], settings: list[str], code: int, said: str) -> None:
    write(tmp_path, "train", rows)
    write(tmp_path, "val", pairs(5, 7))
    write(tmp_path, "test", pairs(5, 8))
    (tmp_path / "short.b").write_text("one\ntwo\n")
    (tmp_path / "my.toml").write_text(RECIPE)
    ended = train(tmp_path, "run", *settings)
    assert ended.code == code, ended.err
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_a_source_too_long_and_unknown_characters(run: Path) -> None:
    ended = fork_server().live(run.parent, "predict", "run", "red " * 40 + "dog", "\u4e2d\u6587 dog")
    assert ended.code == 0, ended.err
    assert len(ended.out.splitlines()) == 2
    assert "note: 1 of 2 texts were cut to fit the model, first text 1" in ended.err
    ended = fork_server().live(run.parent, "predict", "run", "red dog", "--beam", "1000000")
    assert ended.code == 2
    assert "beam = 1000000: must be at least 1 and at most 1,000" in ended.err
