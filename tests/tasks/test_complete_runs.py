"""`task = "complete"` on text of one's own: train, continue, eval, kill and resume, and every odd kind of text."""

from __future__ import annotations

import json
import math
import re
import signal
from pathlib import Path

import pytest
import torch
import transformers

import qkv
from qkv.config.recipe import ModelConfig
from qkv.model.build import build_model
from qkv.run.folder import Run
from qkv.train.averaging import averaged_model, include, is_due
from tests.support.fork_server import Ended, assert_same_end, fork_server

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

RECIPE = """
task = "complete"
seed = 3
[data]
corpus = "counting.txt"
length = 48
[tokenizer]
kind = "characters"
lowercase = false
[model]
family = "decoder"
width = 32
heads = 2
layers = 2
feedforward = 64
positions = "rotary"
norm = "rms"
norm_place = "pre"
bias = false
activation = "swiglu"
[train]
steps = 120
batch_tokens = 1024
learning_rate = 1e-2
warmup = 10
dropout = 0.05
report_every = 1
save_every = 7
eval_every = 40
average = 2
[runtime]
threads = 1
"""
LINE = "one two three four five six seven eight nine ten\n"
MANY = "\n\n".join(f"text {n} of many" for n in range(99))
TEXT = LINE * 2200  # more than 100,000 characters, so that it is parted by place


def train(folder: Path, run: str, *settings: str, **death: object) -> Ended:
    words = (word for one in settings for word in ("--set", one))
    return fork_server().live(folder, "train", "my.toml", "-o", run, *words, **death)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("running")
    (folder / "counting.txt").write_text(TEXT)
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
    assert "counting.txt: 1 train, 1 validation, 1 test documents" in trained.err
    told = re.findall(r"perplexity (\S+), words (\S+), bits per byte (\S+), loss", trained.err)
    assert len(told) == 3
    assert float(told[-1][0]) < 1.2 < float(told[0][0])
    card = (run / "README.md").read_text()
    for words in ("A decoder that goes on with a text", "bits per byte", "but for its end", "LlamaForCausalLM"):
        assert words in card
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_it_goes_on_with_a_text(run: Path) -> None:
    ended = fork_server().live(run.parent, "predict", "run", "one two three", "six seven", "--max-tokens", "15")
    assert ended.out.splitlines() == ["four five six", "eight nine ten"]
    ended = fork_server().live(run.parent, "predict", "run", "one two", "--max-tokens", "60", "--stop", "six", "--json")
    (answer,) = (json.loads(line) for line in ended.out.splitlines())
    assert answer["output"] == " three four five "
    assert -5 < answer["log_probability"] < 0


def test_one_line_for_each_line_also_for_empty_ones(run: Path) -> None:
    (run.parent / "asked.txt").write_text("one two\n\n\nnine\n")
    ended = fork_server().live(
        run.parent, "predict", "run", "--file", "asked.txt", "--max-tokens", "8", "--temperature", "1"
    )
    assert len(ended.out.splitlines()) == 4
    again = fork_server().live(
        run.parent, "predict", "run", "--file", "asked.txt", "--max-tokens", "8", "--temperature", "1"
    )
    assert again.out == ended.out


def test_eval_says_the_same_as_arithmetic(run: Path) -> None:
    ended = fork_server().live(run.parent, "eval", "run", "--json")
    found = json.loads(ended.out)
    assert found["documents"] == 1
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    held = TEXT.rstrip("\n")[round(0.9 * (len(TEXT) - 1)) :]
    words = len(held) + 1  # and its end
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * words / math.log(2) / len(held))


def test_transformers_goes_on_in_the_same_way(run: Path) -> None:
    """As a text: the tokenizer's own frame, the ends in config.json, the rotary cache. 12 tokens, greedy."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run)
    given = tokenizer("three four", return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        made = theirs.generate(**given, max_new_tokens=12, do_sample=False)
    ours = qkv.load(run).predict(["three four"], max_tokens=12)[0]
    assert tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True) == ours.output


def test_a_killed_training_goes_on_to_the_same_bits(place: Path, run: Path) -> None:
    """Also the mean of the last weights, of which one is in when it is killed."""
    assert train(place, "killed", after_step=100, signal=signal.SIGKILL).code == -signal.SIGKILL
    ended = train(place, "killed")
    assert ended.code == 0, ended.err
    assert "going on from step 98" in ended.err
    assert_same_end(run, place / "killed")


def test_the_mean_of_the_last_weights_is_what_is_shipped(place: Path, run: Path) -> None:
    checkpoint = Run(run).load(120)
    means = {name: tensor for name, tensor in checkpoint.optimiser.items() if name.startswith("average.")}
    assert set(means) == {f"average.{name}" for name in checkpoint.weights}
    shipped = dict(qkv.load(run).model.named_parameters())
    for name, weight in checkpoint.weights.items():
        assert torch.equal(shipped[name], means[f"average.{name}"])
        assert not torch.equal(shipped[name], weight)


def test_a_mean_of_weights_is_their_mean() -> None:
    average: dict[str, torch.Tensor] = {}
    states = [build_model(ModelConfig(family="decoder", vocabulary=9, width=8), seed=seed) for seed in range(3)]
    for number, state in enumerate(states):
        include(average, state, number)
    for name, weight in averaged_model(states[0], average).named_parameters():
        wanted = torch.stack([dict(state.named_parameters())[name] for state in states]).mean(0)
        torch.testing.assert_close(weight, wanted)
    assert [is_due(step, 130, 50, 2) for step in (50, 100, 130)] == [False, True, True]
    assert not is_due(130, 130, 50, 0)


@pytest.mark.parametrize(
    ("content", "settings", "code", "said"),
    [
        ("", [], 2, "counting.txt"),
        ("a", [], 0, "there are no validation rows"),
        ("\n \n", [], 2, "counting.txt"),
        ("short\n\ntexts\n\n" * 60, ["data.documents=blank-lines", "train.steps=2"], 2, "held out"),
        (MANY, ["data.documents=blank-lines", "train.steps=2"], 0, "documents"),
        (MANY, ["data.documents=blank-lines", "train.steps=2", "data.pack_documents=true"], 0, "documents"),
        (TEXT.replace("\n", " "), ["train.steps=2", "tokenizer.kind=bytes"], 0, "1 test documents"),
        (TEXT, ["train.mask_rate=0.3"], 2, "train.mask_rate = 0.3: is not read where task = 'complete'"),
        (TEXT, ["model.family=encoder"], 2, "task = 'complete' needs model.family = decoder; found 'encoder'"),
        (TEXT, ["data.length=2000"], 2, "train.batch_tokens = 1024: must hold a text of data.length = 2000"),
    ],
)  # fmt: skip
def test_odd_texts(tmp_path: Path, content: str, settings: list[str], code: int, said: str) -> None:
    (tmp_path / "counting.txt").write_text(content)
    (tmp_path / "my.toml").write_text(RECIPE.replace("average = 2\n", ""))
    ended = train(tmp_path, "run", *settings)
    assert ended.code == code, ended.err
    assert said in ended.err
    assert "Traceback" not in ended.err


def test_bytes_and_pieces_complete_too(tmp_path: Path, place: Path) -> None:
    for kind in ("bytes", "bpe"):
        settings = [f"tokenizer.kind={kind}", "train.steps=40", "train.average=0", "tokenizer.vocab_size=300"]
        ended = train(place, kind, *settings)
        assert ended.code == 0, ended.err
        assert qkv.load(place / kind).predict(["one two"], max_tokens=4)[0].output is not None
