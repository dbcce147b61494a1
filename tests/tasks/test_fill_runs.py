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
from qkv.data.tokenise import Form

import qkv
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import open_corpus
from qkv.corpus.sentences import SPLITTERS
from qkv.data.prepare import Prepared, prepare
from qkv.run.folder import Run
from qkv.schema import UserError
from tests.support.fork_server import Ended, fork_server

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


def train(folder: Path, run: str, *settings: str) -> Ended:
    return fork_server().live(folder, "train", "my.toml", "-o", run, *(w for one in settings for w in ("--set", one)))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a folder of text and a recipe."""
    folder = tmp_path_factory.mktemp("texts")
    (folder / "docs").mkdir()
    for part in range(2):
        (folder / "docs" / f"{part}.txt").write_text("\n\n".join(documents(120)[part::2]) + "\n")
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


def test_a_training_says_how_it_goes(run: Path, trained: Ended) -> None:
    assert re.search(r"^docs: \d+ train, \d+ validation, \d+ test documents$", trained.err, re.M)
    told = re.findall(r"words (\S+), perplexity (\S+), next sentence (\S+), loss", trained.err)
    assert len(told) == 8
    assert float(told[-1][1]) < 0.5 * float(told[0][1])
    for word in ("word accuracy", "perplexity", "next accuracy", "run: done; curves.png"):
        assert word in trained.out
    last = Run(run).metrics()[-1]
    assert last["loss"] == pytest.approx(last["word_loss"] + last["next_loss"])
    assert last["validation_loss"] == pytest.approx(last["validation_word_loss"] + last["validation_next_loss"])
    assert last["validation_word_accuracy"] > 0.4


def test_the_card_has_the_figures_and_the_curves(run: Path, place: Path) -> None:
    card = (run / "README.md").read_text()
    assert "has learnt to fill in hidden words and to tell the next sentence from a stranger" in card
    assert "loads as `RoFormerForMaskedLM`" in card
    assert "![How it learnt](curves.png)" in card
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")
    found = json.loads(fork_server().live(place, "eval", run, "--json").out)
    assert f"On {found.pop('documents')} held-out documents" in card
    assert {"loss", "word_loss", "token_accuracy", "perplexity", "next_loss", "next_accuracy"} == found.keys()
    for name, value in found.items():
        assert f"| {name.replace('_', ' ')} | {value:.4f} |" in card


def test_eval_on_its_own_documents_and_on_others(run: Path, place: Path) -> None:
    shown = fork_server().live(place, "eval", run)
    assert shown.code == 0
    assert shown.out.startswith("on ")
    assert "word accuracy" in shown.out
    assert not (run / "reliability.png").exists()
    (place / "other.txt").write_text("\n\n".join(documents(20, seed=9)))
    (place / "noise.txt").write_text("\n\n".join(" ".join(reversed(text.split())) for text in documents(20, seed=9)))
    found = [json.loads(fork_server().live(place, "eval", run, "--data", name, "--json").out) for name in OTHERS]
    assert [one["documents"] for one in found] == [20, 20]
    assert found[0]["perplexity"] < 0.5 * found[1]["perplexity"]
    (place / "none.txt").write_text("\n\n")
    refused = fork_server().live(place, "eval", run, "--data", "none.txt")
    assert (refused.code, refused.err) == (2, "error: no documents with text to evaluate on\n")


OTHERS = ("other.txt", "noise.txt")


def test_predict_fills_in_ranked_words(run: Path, place: Path) -> None:
    text = "The sailor sails the [MASK]."
    said = fork_server().live(place, "predict", run, text, "The [MASK] tries the case.").out.splitlines()
    best, ranked = said[0].split("   |  ")
    assert best == text.replace("[MASK]", ranked.split()[0])
    assert ranked.split()[0] in {what for _, _, what in TOPICS}
    assert len(said) == 2
    words = ["--json", "--top", "3", "the [MASK] sails the [MASK]."]
    answer = json.loads(fork_server().live(place, "predict", run, *words).out)
    assert [one["mask"] for one in answer["alternatives"]] == [1, 1, 1, 2, 2, 2]
    shares = [one["probability"] for one in answer["alternatives"]]
    assert shares == [*sorted(shares[:3], reverse=True), *sorted(shares[3:], reverse=True)]
    assert answer["log_probability"] == pytest.approx(np.log(shares[0]) + np.log(shares[3]), abs=1e-5)
    refused = fork_server().live(place, "predict", run, "nothing is missing")
    assert refused.code == 2
    assert "'nothing is missing', has no [MASK]; write it where a word is missing" in refused.err


def test_predict_judges_whether_a_text_is_the_next(run: Path, place: Path) -> None:
    pair = "The sailor sails the boat.\tThe judge tries the case."
    label, share = fork_server().live(place, "predict", run, pair).out.rsplit(maxsplit=1)
    assert label.strip() in ("next", "not next")
    assert 0.5 <= float(share) <= 1
    answer = json.loads(fork_server().live(place, "predict", run, "--json", pair).out)
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


def test_transformers_gives_the_same_scores_for_words(run: Path) -> None:
    """It has no class that also judges pairs: the two layers for that are passed over, and nothing else is."""
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
def test_an_export_is_certified_and_still_judges_pairs(run: Path, place: Path, half: bool) -> None:
    ended = fork_server().live(place, "export", run, "-o", f"out-{half}", *(["--half"] if half else []))
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"out-{half}: RoFormerForMaskedLM\nlargest difference to transformers ")
    texts: list[str | tuple[str, str]] = ["The sailor sails the [MASK].", ("a boat", "the case of a judge")]
    ours, theirs = qkv.load(run).predict(texts), qkv.load(place / f"out-{half}").predict(texts)
    assert ours[0].output == theirs[0].output
    assert ours[1].probabilities == pytest.approx(theirs[1].probabilities, abs=1e-2 if half else 1e-6)
    size = (place / f"out-{half}" / "model.safetensors").stat().st_size / (run / "model.safetensors").stat().st_size
    assert size < 0.7 if half else size > 0.9


def test_without_next_sentences_only_words_are_learnt(place: Path, trained: Ended) -> None:
    """Also where the recipe has a pooler, which only pairs would need."""
    ended = train(place, "words", "train.next_sentence=false", "train.steps=10", "train.eval_every=0")
    assert ended.code == 0, ended.err
    assert "next sentence" not in ended.err + (place / "words" / "README.md").read_text()
    assert not any("next" in name for line in Run(place / "words").metrics() for name in line)
    assert qkv.load(place / "words").config.head == "words"
    assert fork_server().live(place, "predict", "words", "a [MASK]\tb").code == 0  # to it, a tab is a blank like others
    with pytest.raises(UserError, match="text 2 is a pair; this model takes one text at a time"):
        qkv.load(place / "words").predict(["a [MASK]", ("a", "b")])
    found = json.loads(fork_server().live(place, "eval", "words", "--json").out)
    assert found.keys() == {"documents", "loss", "word_loss", "token_accuracy", "perplexity"}
    theirs, report = transformers.AutoModelForMaskedLM.from_pretrained(place / "words", output_loading_info=True)
    assert type(theirs).__name__ == "RoFormerForMaskedLM"
    assert not report["unexpected_keys"]


# --- odd documents


ONE = "The sailor sails the boat. The sailor is old. It rains."


@pytest.mark.parametrize(
    ("content", "settings", "sentence"),
    [
        (b"", [], "odd.txt: no rows to learn from"),
        (b"\n \n\t\r\n\r\n", [], "odd.txt: no rows to learn from"),
        (ONE.encode(), [], "1 document to learn from"),
        (ONE.encode(), [], "accepted: train.next_sentence=false, or more documents (data.documents)"),
        ("Ein Café.\n\nZwei.".encode("latin1"), [], "odd.txt, line 1, byte 8: 0xe9 is not UTF-8"),
        (None, [], "odd.txt, line 1: a line of over 16 MiB, the most that is read"),
        (b"A. B.\n\nC. D.", ["data.sentences=french"], "data.sentences = 'french': must be one of english, lines"),
        (b"A. B.\n\nC. D.", ["data.documents=headings"], "odd.txt: no heading in it"),
        (b"A. B.\n\nC. D.", ["data.length=4"], "data.length = 4: leaves no room for text beside the special tokens"),
        (
            ONE.encode(),
            ["train.token_dropout=0.1"],
            "train.token_dropout = 0.1: is not read where task = 'fill'; leave it out",
        ),
        (ONE.encode(), ["data.truncation=windows"], "data.long = 'windows': is not read where task = 'fill'; leave it out"),
        (b"A. B.\n\nC. D.", ["model.pool=mean"], "model.pool = 'mean': next sentences are judged by one token"),
    ],
)
def test_a_mistake_is_a_sentence_and_leaves_nothing_behind(
    tmp_path: Path, content: bytes | None, settings: list[str], sentence: str
) -> None:
    (tmp_path / "my.toml").write_text(RECIPE)
    with (tmp_path / "odd.txt").open("wb") as file:
        file.truncate(50 * 2**20) if content is None else file.write(content)
    ended = train(tmp_path, "wrong", "data.corpus=odd.txt", *settings)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err
    assert "Traceback" not in ended.err
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
def test_odd_documents_can_be_learnt_from(tmp_path: Path, texts: list[str], settings: list[str], pairs: bool) -> None:
    (tmp_path / "odd.txt").write_text("\n\n".join(texts))
    chosen = ["data.corpus=odd.txt", "train.steps=2", "train.eval_every=0", *settings]
    (tmp_path / "my.toml").write_text(RECIPE)
    ended = train(tmp_path, "run", *chosen)
    assert ended.code == 0, ended.err
    lines = Run(tmp_path / "run").metrics()
    assert all(np.isfinite(line["loss"]) for line in lines)
    assert ("next_loss" in lines[-1]) == pairs
    assert qkv.load(tmp_path / "run").predict(["the [MASK]"])[0].alternatives


def prepared(folder: Path, corpus: str, **data: Any) -> Prepared:
    recipe = resolve_text(corpus=corpus, **data)
    source = open_corpus(recipe.data, task="fill")
    return prepare(source, recipe.tokenizer, folder / "cache", form=Form("sentences", recipe.data.sentences))


def resolve_text(**data: Any) -> Recipe:
    table = {"task": "fill", "data": data, "tokenizer": {"vocab_size": 200}}
    return Recipe.read(table)


def same_store(one: Prepared, other: Prepared) -> None:
    assert one.tokenizer.to_json() == other.tokenizer.to_json()
    assert one.counts == other.counts
    for part in ("train", "validation"):
        a, b = getattr(one, part), getattr(other, part)
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
    (tmp_path / "a.txt").write_text("\n\n".join(texts[:37]))
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
    (place / "dots.txt").write_text("\n\n".join(f"one {n} | two {n}. Still two | three {n}" for n in range(40)))
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
