"""`task = "translate"` on pairs of one's own: train, translate, eval, kill and resume, and every odd kind of pair."""

from __future__ import annotations

import itertools
import json
import random
import re
from pathlib import Path

import pytest
import torch
import transformers

import qkv
from qkv.export import export_hf
from qkv.predict.beam_trace import trace_beams
from qkv.training.model_card import markdown
from tests.support.cli import check_ended, check_kill_and_resume, run_json, run_qkv, train, trained, write_aligned
from tests.support.fork_server import Ended

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
kind = "wordpiece"
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
OTHER = dict(zip(ENGLISH, ("rot", "blau", "klein", "groß", "hund", "katze", "haus", "bäume"), strict=True))


def pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """A language in which every word has another name, and the noun comes first."""
    chance, found = random.Random(seed), dict[str, str]()
    while len(found) < count:
        words = [*chance.choices(ENGLISH[:4], k=chance.randint(1, 4)), chance.choice(ENGLISH[4:])]
        found[" ".join(words)] = " ".join(OTHER[word] for word in (words[-1], *words[:-1]))
    return list(found.items())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rows = tmp_path_factory.mktemp("pairs"), pairs(700, 1)
    for name, split in (("train", rows[:600]), ("val", rows[600:650]), ("test", rows[650:])):
        write_aligned(folder, name, split)
    (folder / "my.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def training(place: Path) -> Ended:
    return trained(place, "run")


@pytest.fixture(scope="module")
def run(place: Path, training: Ended) -> Path:
    return place / "run"


def test_it_learns_to_translate_pairs_it_never_saw(run: Path, training: Ended) -> None:
    assert "train.a -> train.b: 600 train, 50 validation, 50 test pairs" in training.err
    found = run_json(run.parent, "eval", "run")
    assert found["pairs"] == 50
    assert found["bleu"] > 90
    assert found["chrf"] > 90
    assert found["decoding"] == "beam 3, length penalty 0.6"
    assert re.fullmatch(r"nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp\|version:\S+", found["bleu_signature"])
    card = (run / "README.md").read_text()
    assert "A translation model, trained with qkv" in card
    assert markdown(found["bleu_signature"]) in card
    assert "BLEU" in card.split("\n\n")[1]


def test_one_line_for_each_line_also_for_empty_ones(run: Path) -> None:
    (run.parent / "sources.txt").write_text("red dog\n\nbig blue house\n")
    ended = run_qkv(run.parent, "predict", "run", "--file", "sources.txt")
    assert ended.out.splitlines() == ["hund rot", "", "haus groß blau"]


def test_several_outputs_best_first(run: Path) -> None:
    answer = run_json(run.parent, "predict", "run", "red dog", "--best", "3")
    assert answer["output"] == "hund rot"
    scores = [one["score"] for one in answer["alternatives"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_the_tree_of_a_search(run: Path) -> None:
    """What holds for any weights that translate this; `predict/test_beam_trace.py` has the whole tree of known ones."""
    ended = run_qkv(run.parent, "predict", "run", "red dog", "--show-beams")
    assert "-> hund rot" in ended.out
    assert "ended" in ended.out
    trace = trace_beams(qkv.load(run), "red dog")
    assert trace.source[:2] == ("red", "dog")
    for nodes in trace.steps:
        for node in nodes:
            assert len(node.alignment) == len(trace.source)
            assert sum(node.alignment) == pytest.approx(1.0, abs=1e-5)
            assert node.score == pytest.approx(node.log_probability / node.length_penalty)
    for before, nodes in itertools.pairwise(trace.steps):
        for node in nodes:
            assert node.parent is not None
            assert not before[node.parent].ended
            assert node.log_probability <= before[node.parent].log_probability
    assert json.loads(json.dumps(trace.to_json()))["outputs"][0][0] == "hund rot"


def test_transformers_translates_in_the_same_way(run: Path) -> None:
    """The same output by MarianMTModel from the folder as it is, greedy, with the ids that its config names."""
    theirs = transformers.MarianMTModel.from_pretrained(run)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(run)
    texts = ["red dog", "big blue house"]
    given = tokenizer(texts, return_tensors="pt", padding=True, return_token_type_ids=False)
    with torch.no_grad():
        made = theirs.generate(**given, max_new_tokens=12, num_beams=1, do_sample=False)
    ours = [one.output for one in qkv.load(run).predict(texts, beam=1, max_tokens=12)]
    assert tokenizer.batch_decode(made, skip_special_tokens=True) == ours == ["hund rot", "haus groß blau"]


def test_an_export_translates_as_the_run_does(run: Path, tmp_path: Path) -> None:
    """Also with the beam width and the maximum length of its recipe."""
    export_hf(run, tmp_path / "exported")
    here, there = qkv.load(run), qkv.load(tmp_path / "exported")
    assert there.generation_options() == here.generation_options()
    assert there.generation_options().decode.beam == 3
    assert there.max_length() == here.max_length() == 16
    texts = ["red dog", "big blue house", "small " * 40]
    assert there.predict(texts) == here.predict(texts)


def test_a_killed_training_resumes_to_the_same_bits(place: Path, run: Path) -> None:
    check_kill_and_resume(place, run.name, kill_after=150, resume_from=140)


def test_a_tokenizer_for_each_language(place: Path) -> None:
    trained(place, "apart", "tokenizer.shared=false", "model.tied=output", "train.steps=150")
    predictor = qkv.load(place / "apart")
    assert predictor.tokenizer.id_of("dog") is not None
    assert predictor.tokenizer.id_of("hund") is None
    assert predictor.target_tokenizer.id_of("hund") is not None
    assert predictor.target_tokenizer.id_of("dog") is None
    (answer,) = predictor.predict(["red dog"])
    assert set((answer.output or "").split()) <= set(OTHER.values())
    assert run_qkv(place, "export", "apart", "-o", "exported").code == 0
    assert qkv.load(place / "exported").predict(["red dog"], beam=3)[0].output == answer.output


def test_tables_of_pairs(place: Path) -> None:
    rows = [f"{a}\t{b}" for a, b in pairs(300, 4)]
    (place / "pairs.tsv").write_text("\n".join(["english\tother", *rows, ""]))
    (place / "pairs.jsonl").write_text("\n".join(json.dumps({"english": a, "other": b}) for a, b in pairs(300, 4)))
    for name in ("pairs.tsv", "pairs.jsonl"):
        columns = ["data.text=english", "data.target=other", "data.validation=split", "data.test=split"]
        ended = trained(place, f"of-{name}", f"data.corpus={name}", *columns, "train.steps=4")
        found = re.search(r"(\d+) train, (\d+) validation, (\d+) test pairs", ended.err)
        assert found is not None
        assert sum(int(number) for number in found.groups()) == 300


ROWS = pairs(80, 5)


@pytest.mark.parametrize(
    ("rows", "settings", "code", "sentence"),
    [
        (ROWS, ["data.corpus=train.a -> val.b"], 2, "val.b is also in data"),
        (ROWS, ["data.corpus=train.a -> short.b"], 2, "short.b has 2 lines, train.a has more"),
        (ROWS, ["data.corpus=train.a -> nowhere.b"], 2, "nowhere.b: no such file or folder"),
        ([*ROWS, ("", "haus"), ("red tree", " ")], ["train.steps=2"], 0, "2 rows have no text and are left out"),
        ([("", "")] * 9, [], 2, "no rows to train on"),
        ([(a, a) for a, _ in ROWS], ["train.steps=2"], 0, "pairs"),
        ([*ROWS, ("red " * 40, "rot " * 40)], ["train.steps=2"], 0, "pairs have a side longer than 16 tokens"),
        ([("red " * 40, "rot")] * 5, [], 2, "all pairs are longer than 16 tokens"),
        (ROWS, ["task=classify"], 2, "task = 'classify' needs model.family = "),
        (ROWS, ["decode.temperature=0.5"], 2, "decode.temperature = 0.5: not used by task = 'translate'"),
        (ROWS, ["model.context=8", "model.positions=learned"], 2, "data.length = 16 is more than model.context = 8"),
    ],
)  # fmt: skip
def test_odd_pairs(tmp_path: Path, rows: list[tuple[str, str]], settings: list[str], code: int, sentence: str) -> None:
    for name, split in (("train", rows), ("val", pairs(5, 7)), ("test", pairs(5, 8))):
        write_aligned(tmp_path, name, split)
    (tmp_path / "short.b").write_text("one\ntwo\n")
    (tmp_path / "my.toml").write_text(RECIPE)
    check_ended(train(tmp_path, "run", *settings), code, sentence)


def test_a_source_too_long_and_unknown_characters(run: Path) -> None:
    ended = run_qkv(run.parent, "predict", "run", "red " * 40 + "dog", "\u4e2d\u6587 dog")
    check_ended(ended, 0, "note: 1 of 2 texts were truncated, first text 1\n")
    assert len(ended.out.splitlines()) == 2
    ended = run_qkv(run.parent, "predict", "run", "red dog", "--beam", "1000000")
    check_ended(ended, 2, "beam = 1000000: must be at least 1 and at most 1,000")
