"""Tiny models for all tests. Every dimension is a different prime, so that a mixed-up axis cannot pass unseen.

B batch · L length · S source length · D width · H heads · K head width · F feed-forward · V vocabulary
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.model import Cache, Decoder, Encoder, EncoderDecoder, Model, build_model

B, L, S, D, H, K, F, V, TARGET_V = 2, 7, 11, 13, 3, 5, 17, 19, 23
SCHEMES = ["none", "sinusoidal", "learned", "relative", "t5", "alibi", "rotary"]
FAMILIES = ["encoder", "decoder", "encoder-decoder"]


def tiny(family: str, positions: str = "none", **changes: Any) -> ModelConfig:
    """A config in primes. Rotary turns pairs of features and needs an even head width: 10. Reach and buckets are small
    enough that a sequence of seven tokens goes beyond them."""
    table = {
        "family": family, "positions": positions, "vocabulary": V, "context": 29, "width": D, "heads": H,
        "head_width": 2 * K if positions == "rotary" else K, "layers": 2, "feedforward": F,
        "reach": {"relative": 3, "t5": 5}.get(positions, 0), "buckets": 7,
    }  # fmt: skip
    return ModelConfig.read({**table, **changes})


def build(config: ModelConfig, seed: int = 1, **dropout: float) -> Model:
    """A float64 model in eval mode with every weight random: norms of 1 and biases of 0 would hide a mix-up."""
    model = build_model(config, seed=seed, **dropout).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64) * 0.3 + (weight == 1))
    return model


def encoder(positions: str = "none", **changes: Any) -> Encoder:
    return cast(Encoder, build(tiny("encoder", positions, **changes)))


def decoder(positions: str = "none", **changes: Any) -> Decoder:
    return cast(Decoder, build(tiny("decoder", positions, **changes)))


def encoder_decoder(positions: str = "none", **changes: Any) -> EncoderDecoder:
    return cast(EncoderDecoder, build(tiny("encoder-decoder", positions, **changes)))


def tokens(rows: int, length: int, vocabulary: int = V, seed: int = 2) -> Tensor:
    """Random ids (rows, length)."""
    return torch.randint(vocabulary, (rows, length), generator=torch.Generator().manual_seed(seed))


def normal(*shape: int, seed: int = 3) -> Tensor:
    """Random float64 numbers that a gradient can be asked of."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


SOURCE = tokens(1, S, seed=5)


def states(model: Any, ids: Tensor, keep: Tensor | None = None) -> Tensor:
    """Hidden states (B, L, D)."""
    if isinstance(model, EncoderDecoder):
        return model(SOURCE.expand(len(ids), S), ids, None, keep)
    return model(ids, keep)


def started(model: Any, rows: int) -> Cache:
    """A cache that has read the source, if there is one, and written nothing."""
    return model.start(model.encode(SOURCE.expand(rows, S))) if isinstance(model, EncoderDecoder) else model.start(rows)


def ragged(rows: list[Tensor], side: str) -> tuple[Tensor, Tensor]:
    """Rows of different lengths in one batch, filled up with a token that is also a real one, and the mask."""
    longest = max(len(row) for row in rows)
    ids, keep = torch.full((len(rows), longest), 3), torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, row in enumerate(rows):
        place = slice(len(row)) if side == "right" else slice(longest - len(row), None)
        ids[i, place], keep[i, place] = row, True
    return ids, keep


def near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
