"""Beam search as a tree, of a model whose weights are set by hand: a Markov chain that attends where it should."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv.config.recipe import ModelConfig
from qkv.exchange.folder import write_folder
from qkv.exchange.native import write_native
from qkv.model import build_model
from qkv.model.transformer import EncoderDecoder
from qkv.predict.beam_trace import Node, trace_beams
from qkv.schema import UserError
from tests.support.cli import run_json, run_qkv
from tests.support.small_folders import IDS, make_folder, tokenizer

START, END = "[PAD]", "</s>"
CHAIN = {  # token -> probabilities of the next
    START: {"film": 0.6, "plot": 0.3, "dull": 0.1},
    "film": {"good": 0.5, "bad": 0.4, END: 0.1},
    "plot": {"good": 0.5, "bad": 0.5},
    "good": {END: 0.9, "very": 0.1},
    "bad": {END: 1.0},
}
ATTENDS = {START: "film", "film": "good", "good": END, "bad": END}  # input token -> source token
TEXT = "good film"
SOURCE = ("good", "film", END)
SEARCH: dict[str, Any] = {"beam": 2, "best": 2, "length_penalty": 1.0, "max_tokens": 5}


@torch.no_grad()
def chain_model() -> tuple[EncoderDecoder, ModelConfig]:
    """Every hidden state is the one-hot vector of its token, so the output layer is the table of log-probabilities."""
    size = len(IDS)
    config = ModelConfig.read({
        "family": "encoder-decoder", "vocabulary": size, "width": size, "heads": 1, "layers": 1, "feedforward": 1,
        "positions": "none", "norm": "none", "scale": "none", "bias": False, "tied": "inputs",
        "head": "tokens",
    })  # fmt: skip
    model = build_model(config, seed=1)
    assert isinstance(model, EncoderDecoder)
    for weight in model.parameters():
        weight.zero_()
    model.embedding.table_VD.copy_(torch.eye(size))
    assert model.words is not None
    assert model.words.weight is not None
    model.words.weight.fill_(-50.0)
    for given, following in CHAIN.items():
        for token, probability in following.items():
            model.words.weight[IDS[token], IDS[given]] = math.log(probability)
    cross = model.decoder.get_submodule("blocks.0.cross.project").weight
    assert isinstance(cross, torch.Tensor)
    cross[size : 2 * size] = torch.eye(size)  # keys
    for given, token in ATTENDS.items():
        cross[IDS[token], IDS[given]] = 20.0  # queries
    return model, config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, config = chain_model()
    ids = {"pad_token_id": IDS[START], "decoder_start_token_id": IDS[START], "eos_token_id": IDS[END]}
    written = write_native(model, config, ids)
    path = tmp_path_factory.mktemp("trace") / "chain"
    files = {"tokenizer.json": tokenizer("translate").to_str().encode()}
    write_folder(path, config=written.config, generation={}, tensors=written.tensors, files=files)
    return path


def test_every_hypothesis_of_every_step(folder: Path) -> None:
    """At the second step both live hypotheses continue "film", so "plot" is dropped; at the third both end."""
    trace = trace_beams(qkv.load(folder), TEXT, **SEARCH)
    assert (trace.text, trace.source) == (TEXT, SOURCE)
    expected: list[list[tuple[str, int | None, float, bool, int]]] = [
        [("film", None, 0.6, False, 1), ("plot", None, 0.3, False, 1)],
        [("good", 0, 0.3, False, 0), ("bad", 0, 0.24, False, 0)],
        [(END, 0, 0.27, True, 2), (END, 1, 0.24, True, 2)],
    ]
    assert [len(nodes) for nodes in trace.steps] == [2, 2, 2]
    for length, (nodes, wanted) in enumerate(zip(trace.steps, expected, strict=True), 1):
        for node, (token, parent, probability, ended, attends_to) in zip(nodes, wanted, strict=True):
            assert (node.token, node.token_id, node.parent, node.ended) == (token, IDS[token], parent, ended)
            assert math.exp(node.log_probability) == pytest.approx(probability, rel=1e-5)
            assert node.length_penalty == pytest.approx((5 + length) / 6)
            assert node.score == pytest.approx(node.log_probability / node.length_penalty)
            assert node.alignment == pytest.approx([float(n == attends_to) for n in range(3)], abs=1e-5)
    assert [text for text, _ in trace.outputs] == ["film good", "film bad"]
    for (_, found), node in zip(trace.outputs, trace.steps[-1], strict=True):
        assert (found.log_probability, found.score, found.ended) == (node.log_probability, node.score, True)


def test_a_trace_is_plain_data(folder: Path) -> None:
    trace = trace_beams(qkv.load(folder), TEXT, **SEARCH)
    found = json.loads(json.dumps(trace.to_json()))
    assert found["outputs"][0][0] == "film good"
    assert [Node(**{**node, "alignment": tuple(node["alignment"])}) for node in found["steps"][1]] == list(
        trace.steps[1]
    )


def test_the_command_line_draws_the_tree(folder: Path) -> None:
    options = [word for name, value in SEARCH.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    command = ("predict", str(folder), TEXT, "--show-beams", *options)
    lines = run_qkv(folder.parent, *command).out.splitlines()
    assert lines[0] == TEXT
    branches = [line for line in lines if "── " in line]
    shown = [(line.split("── ")[1].split()[0], line.split()[-1]) for line in branches]
    assert shown == [
        ("film", "1.00"), ("good", "1.00"), (END, "ended"), ("bad", "1.00"), (END, "ended"), ("plot", "dropped"),
    ]  # fmt: skip
    assert "-0.511 / 1.000 = -0.511  <- film 1.00" in branches[0]
    assert "-1.309 / 1.333 = -0.982  <- </s> 1.00" in branches[2]
    assert lines[-2:] == [
        "-> film good   (log-probability -1.3093, score -0.9820)",
        "-> film bad   (log-probability -1.4271, score -1.0703)",
    ]
    assert run_json(folder.parent, *command)["outputs"][1][0] == "film bad"


def test_a_decoder_has_no_source(tmp_path: Path) -> None:
    trace = trace_beams(qkv.load(make_folder(tmp_path / "decoder", "complete")), "the film", beam=2, max_tokens=3)
    assert trace.source == ()
    assert all(node.alignment == () for nodes in trace.steps for node in nodes)


def test_a_model_that_does_not_generate_has_no_beam_search(tmp_path: Path) -> None:
    predictor = qkv.load(make_folder(tmp_path / "classifier", "classify"))
    with pytest.raises(UserError, match="only a model that generates text has a beam search to show"):
        trace_beams(predictor, TEXT, beam=2)
