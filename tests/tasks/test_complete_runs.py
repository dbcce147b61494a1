"""`task = "complete"` on a corpus of one's own: train, generate, eval, kill and resume, and every odd kind of text."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
import transformers

import qkv
from qkv.config.recipe import ModelConfig
from qkv.model.build import build_model
from qkv.run.folder import Run
from qkv.training.averaging import averaged_model, include, is_due
from tests.support.cli import check_ended, check_kill_and_resume, run_json, run_qkv, train, trained
from tests.support.fork_server import Ended

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
TEXT = LINE * 2200  # more than 100,000 characters, so that it is split by position


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("running")
    (folder / "counting.txt").write_text(TEXT)
    (folder / "my.toml").write_text(RECIPE)
    return folder


@pytest.fixture(scope="module")
def training(place: Path) -> Ended:
    return trained(place, "run")


@pytest.fixture(scope="module")
def run(place: Path, training: Ended) -> Path:
    return place / "run"


def test_a_training_shows_its_metrics(run: Path, training: Ended) -> None:
    assert "counting.txt: 1 train, 1 validation, 1 test documents" in training.err
    shown = re.findall(r"perplexity (\S+), token accuracy (\S+), bits per byte (\S+), loss", training.err)
    assert len(shown) == 3
    assert float(shown[-1][0]) < 1.2 < float(shown[0][0])
    card = (run / "README.md").read_text()
    held_out = "The end of each long document is held out."
    for words in ("A language model that completes text", "bits per byte", held_out, "LlamaForCausalLM"):
        assert words in card
    assert (run / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_it_completes_a_text(run: Path) -> None:
    ended = run_qkv(run.parent, "predict", "run", "one two three", "six seven", "--max-tokens", "15")
    assert ended.out.splitlines() == ["four five six", "eight nine ten"]
    answer = run_json(run.parent, "predict", "run", "one two", "--max-tokens", "60", "--stop", "six")
    assert answer["output"] == " three four five "
    assert -5 < answer["log_probability"] < 0


def test_one_line_for_each_line_also_for_empty_ones(run: Path) -> None:
    (run.parent / "prompts.txt").write_text("one two\n\n\nnine\n")
    sampled = ("predict", "run", "--file", "prompts.txt", "--max-tokens", "8", "--temperature", "1")
    ended = run_qkv(run.parent, *sampled)
    assert len(ended.out.splitlines()) == 4
    assert run_qkv(run.parent, *sampled).out == ended.out


def test_eval_gives_the_metrics_that_arithmetic_gives(run: Path) -> None:
    found = run_json(run.parent, "eval", "run")
    assert found["documents"] == 1
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    held_out = TEXT.rstrip("\n")[round(0.9 * (len(TEXT) - 1)) :]
    tokens = len(held_out) + 1  # and its end token
    assert found["bits_per_byte"] == pytest.approx(found["loss"] * tokens / math.log(2) / len(held_out))


def test_transformers_generates_the_same(run: Path) -> None:
    """From text: the tokenizer's own template, the end token of config.json, the rotary cache. 12 tokens, greedy."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(run)
    given = tokenizer("three four", return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        made = theirs.generate(**given, max_new_tokens=12, do_sample=False)
    ours = qkv.load(run).predict(["three four"], max_tokens=12)[0]
    assert tokenizer.decode(made[0, given["input_ids"].shape[1] :], skip_special_tokens=True) == ours.output


def test_a_killed_training_resumes_to_the_same_bits(place: Path, run: Path) -> None:
    """Also the average of the last weights, of which one is in when it is killed."""
    check_kill_and_resume(place, run.name, kill_after=100, resume_from=98)


def test_the_average_of_the_last_weights_is_the_final_model(run: Path) -> None:
    checkpoint = Run(run).checkpoints.load(120)
    means = {name: tensor for name, tensor in checkpoint.optimiser.items() if name.startswith("average.")}
    assert set(means) == {f"average.{name}" for name in checkpoint.weights}
    final = dict(qkv.load(run).model.named_parameters())
    for name, weight in checkpoint.weights.items():
        assert torch.equal(final[name], means[f"average.{name}"])
        assert not torch.equal(final[name], weight)


def test_averaged_weights_are_their_mean() -> None:
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
    ("content", "settings", "code", "sentence"),
    [
        ("", [], 2, "counting.txt"),
        ("a", [], 0, "note: the validation set is empty, so the last weights are kept\n"),
        ("\n \n", [], 2, "counting.txt"),
        ("short\n\ntexts\n\n" * 60, ["data.documents=blank-lines", "train.steps=2"], 2, "none is left to train on"),
        (MANY, ["data.documents=blank-lines", "train.steps=2"], 0, "documents"),
        (MANY, ["data.documents=blank-lines", "train.steps=2", "data.pack_documents=true"], 0, "documents"),
        (TEXT.replace("\n", " "), ["train.steps=2", "tokenizer.kind=bytes"], 0, "1 test documents"),
        (TEXT, ["train.mask_rate=0.3"], 2, "train.mask_rate = 0.3: not used by task = 'complete'; remove this key"),
        (TEXT, ["model.family=encoder"], 2, "task = 'complete' needs model.family = decoder; found 'encoder'"),
        (TEXT, ["data.length=2000"], 2, "train.batch_tokens = 1024: must be at least data.length = 2000"),
    ],
)  # fmt: skip
def test_odd_texts(tmp_path: Path, content: str, settings: list[str], code: int, sentence: str) -> None:
    (tmp_path / "counting.txt").write_text(content)
    (tmp_path / "my.toml").write_text(RECIPE.replace("average = 2\n", ""))
    check_ended(train(tmp_path, "run", *settings), code, sentence)


def test_other_tokenizers_complete_too(place: Path) -> None:
    for kind in ("bytes", "bpe"):
        settings = [f"tokenizer.kind={kind}", "train.steps=40", "train.average=0", "tokenizer.vocab_size=300"]
        trained(place, kind, *settings)
        assert qkv.load(place / kind).predict(["one two"], max_tokens=4)[0].output is not None
