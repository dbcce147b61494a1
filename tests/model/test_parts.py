"""The parts a family is made of, each against its formula: norms, residual, activations, tables, heads, weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from qkv.config.recipe import ModelConfig
from qkv.model import build_model
from qkv.model.build import initialise
from qkv.model.layers import ACTIVATIONS, FeedForward, Residual
from qkv.schema import UserError
from tests.support.tiny_models import (
    FAMILIES,
    SCHEMES,
    B,
    D,
    F,
    L,
    V,
    build,
    decoder,
    encoder,
    near,
    normal,
    ragged,
    states,
    tiny,
    tokens,
)

families = pytest.mark.parametrize("family", FAMILIES)
sides = pytest.mark.parametrize("side", ["left", "right"])


def test_batch_norm_needs_two_tokens() -> None:
    """One token has no variance in training; in use, the running one serves."""
    model = encoder(norm="batch")
    assert model(tokens(1, 1)).isfinite().all()
    sentence = r"^norm = 'batch' needs at least 2 tokens in a training batch to have a variance; found 1$"
    with pytest.raises(UserError, match=sentence):
        model.train()(tokens(1, 1))


@pytest.mark.parametrize(("place", "expected"), [("post", [-1.0, 1.0]), ("pre", [0.0, 4.0])])
def test_norm_places_by_hand(place: str, expected: list[float]) -> None:
    """x = (1, 3) has mean 2 and deviation 1, so norm(x) = (-1, 1). With a part that changes nothing:
    post, norm(x + x) = (-1, 1); pre, x + norm(x) = (0, 4)."""
    around = Residual(norm=nn.LayerNorm(2, 0.0), place=place, residual=True, dropout=0.0)
    x = torch.tensor([[[1.0, 3.0]]])
    assert around.after(x, around.before(x)).flatten().tolist() == expected


@pytest.mark.parametrize("place", ["post", "pre"])
def test_residual_is_the_only_way_round(place: str) -> None:
    """Where every part answers zero, the input comes through the residual path unchanged, and nothing without it."""
    for residual in (True, False):
        model = encoder(norm="none", norm_place=place, residual=residual)
        for name, weight in model.named_parameters():
            if ".output." in name:
                nn.init.zeros_(weight)
        x = normal(B, L, D)
        assert torch.equal(model.stack(x, torch.arange(L)[None], None)[0], x if residual else torch.zeros_like(x))


def test_activations() -> None:
    """Each against its formula in plain Python."""

    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    formulas: dict[str, Callable[[float], float]] = {
        "relu": lambda x: max(x, 0.0),
        "gelu": lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2,
        "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
        "silu": lambda x: x * sigmoid(x),
        "sigmoid": sigmoid,
        "tanh": math.tanh,
        "identity": lambda x: x,
    }
    x = normal(B, 2 * F).detach() * 3
    for name, formula in formulas.items():
        near(ACTIVATIONS[name](x), x.clone().apply_(formula))
    gate, value = x[:, :F], x[:, F:]
    near(ACTIVATIONS["swiglu"](x), gate.clone().apply_(formulas["silu"]) * value)
    assert set(ACTIVATIONS) == {*formulas, "swiglu"}
    gated = FeedForward(width=D, feedforward=F, activation="swiglu", bias=False)
    assert (gated.inner.weight.shape, gated.output.weight.shape) == ((2 * F, D), (D, F))


@pytest.mark.parametrize(
    ("family", "tied", "tables"),
    [("decoder", "output", 1), ("decoder", "none", 2), ("encoder", "output", 1), ("encoder-decoder", "none", 3),
     ("encoder-decoder", "inputs", 2), ("encoder-decoder", "output", 2), ("encoder-decoder", "all", 1)],
)  # fmt: skip
def test_tied_tables(family: str, tied: str, tables: int) -> None:
    """Tied tables are one tensor, saved once, whose gradient is the sum of what it is owed as input and as output."""
    model: Any = build(tiny(family, tied=tied, head="tokens"))
    assert [value.shape for value in model.state_dict().values()].count((V, D)) == tables
    table = (getattr(model, "target", None) or model.embedding).table_VD
    hidden = states(model, tokens(B, L))
    logits = model.logits(hidden)
    direction = normal(*logits.shape).detach()
    (as_output,) = torch.autograd.grad(model.logits(hidden.detach()), table, direction, allow_unused=True)
    if tied in ("none", "inputs"):
        assert as_output is None
        return
    (upstream,) = torch.autograd.grad(logits, hidden, direction, retain_graph=True)
    (as_input,) = torch.autograd.grad(hidden, table, upstream, retain_graph=True)
    (total,) = torch.autograd.grad(logits, table, direction)
    assert as_input.abs().max() > 1e-6
    assert as_output.abs().max() > 1e-6
    torch.testing.assert_close(total, as_input + as_output, rtol=0, atol=1e-10)


@sides
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_pools(family: str, side: str) -> None:
    """First, mean and last of the visible vectors only, wherever the padding is; auto is first, last for a decoder."""
    _, keep = ragged([tokens(1, length)[0] for length in (5, 7, 2)], side)
    hidden = normal(3, L, D)
    visible = [row[mask] for row, mask in zip(hidden, keep, strict=True)]
    expected = {
        "first": torch.stack([row[0] for row in visible]),
        "mean": torch.stack([row.mean(0) for row in visible]),
        "last": torch.stack([row[-1] for row in visible]),
    }
    expected["auto"] = expected["first" if family == "encoder" else "last"]
    for pool, pooled in expected.items():
        for pooler, activation in {"none": None, "tanh": torch.tanh, "relu": torch.relu}.items():
            model: Any = build(tiny(family, head="classification", classes=5, pool=pool, pooler=pooler))
            head = model.text
            x = pooled if activation is None else activation(head.dense(pooled))
            near(head(hidden, keep), head.output(x))
            assert head(hidden).shape == (3, 5)


def test_heads() -> None:
    """What each name of a head builds, and what its answer is."""
    hidden = normal(B, L, D)
    shapes = {"classification": (B, 2), "regression": (B, 1), "pretraining": (B, 2)}
    for name, shape in shapes.items():
        assert encoder(head=name).text(hidden).shape == shape  # type: ignore[misc]
    assert encoder(pooler="tanh").text(hidden).shape == (B, D)  # type: ignore[misc]
    both = encoder(head="pretraining", output_bias=True)
    words: Any = both.words
    rows = words.transform.norm(nn.functional.gelu(words.transform.dense(hidden)))
    near(both.logits(hidden), rows @ both.embedding.table_VD.T + words.bias)
    untied: Any = decoder(tied="none", output_bias=True)
    near(untied.logits(hidden), hidden @ untied.words.weight.T + untied.words.bias)
    tied = decoder()
    near(tied.logits(hidden[0, 0]), tied.embedding.table_VD @ hidden[0, 0])
    near(decoder(output_scale=True).logits(hidden), tied.logits(hidden) / math.sqrt(D))
    sentence = r"^this model was built without a token head; accepted: model.head = 'tokens' or 'pretraining'$"
    for family in FAMILIES:
        with pytest.raises(UserError, match=sentence):
            build(tiny(family, head="none")).logits(hidden)


@families
def test_only_training_is_random(family: str) -> None:
    """Dropout of both kinds in training; in eval the very numbers of a model that has none."""
    model = build(tiny(family), dropout=0.5, attention_dropout=0.5)
    near(states(model, tokens(B, L)), states(build(tiny(family)), tokens(B, L)))
    assert torch.equal(states(model, tokens(B, L)), states(model, tokens(B, L)))
    model.train()
    assert not torch.equal(states(model, tokens(B, L)), states(model, tokens(B, L)))


def test_first_weights_depend_on_seed_and_name() -> None:
    """A head or a layer more leaves the other weights as they were, to the bit; another seed changes them all."""
    for family in FAMILIES:
        small = build_model(tiny(family, head="none", layers=1), seed=3).state_dict()
        large = build_model(tiny(family, head="tokens", tied="none", layers=2), seed=3).state_dict()
        assert small.keys() < large.keys()
        assert all(torch.equal(small[name], large[name]) for name in small)
        other = build_model(tiny(family, head="none", layers=1), seed=4).state_dict()
        assert all(not torch.equal(small[name], other[name]) for name in small if small[name].std() > 0)
        maps = [value for value in large.values() if value.ndim > 1]
        assert len({value.flatten()[0].item() for value in maps}) == len(maps), "no two weights share a stream"


@pytest.mark.parametrize("config", [
    *(tiny(family, scheme, head="tokens", tied="none", output_bias=True) for family in FAMILIES for scheme in SCHEMES),
    tiny("encoder", score="additive", norm="rms", head="pretraining", segments=2, pooler="tanh", embedding_norm=True),
    tiny("encoder", norm="batch", head="classification"),
], ids=lambda config: f"{config.family}-{config.positions}-{config.norm}")  # fmt: skip
def test_no_weight_is_left_out(config: ModelConfig) -> None:
    """Memory full of NaN before the first weights are given has none after, and they are those of a new model."""
    model = build_model(config)
    fresh = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for value in model.state_dict().values():
            value.fill_(torch.nan if value.is_floating_point() else 99)
    initialise(model, config, 0)
    assert all(torch.equal(value, fresh[name]) for name, value in model.state_dict().items())
    assert all(value.isfinite().all() for value in fresh.values())
