"""The last layer computed at some places only gives there what it gives everywhere, and the same gradients."""

from typing import Any

import pytest
import torch

from qkv.model.masks import positions_of
from qkv.model.transformer import hidden_states, text_answers
from tests.support.tiny_models import SCHEMES, SOURCE, B, L, build, encoder, encoder_decoder, near, normal, tiny, tokens

AT = torch.tensor([3, 0, 9, 12, 12, 5])  # in any order, and one of them twice
KEEP = torch.ones(B, L, dtype=torch.bool)
KEEP[1, -2:] = False  # the places 12 and 13


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "none"])
@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_states_at_some_places_are_those_of_all_and_so_are_gradients(
    family: str, place: str, norm: str, learning: bool
) -> None:
    whole, some = (
        build(tiny(family, "learned", norm=norm, norm_place=place, embedding_norm=True, layers=3)).train(learning)
        for _ in range(2)
    )
    ids, weights = tokens(B, L), normal(len(AT), 13).detach()
    expected = whole(ids, KEEP).flatten(0, 1)[AT]
    found = some(ids, KEEP, at_N=AT)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
    (expected * weights).sum().backward()
    (found * weights).sum().backward()
    for (name, one), other in zip(whole.named_parameters(), some.parameters(), strict=True):
        if one.grad is None:
            assert other.grad is None, name
        else:
            torch.testing.assert_close(other.grad, one.grad, rtol=0, atol=1e-9, msg=name)
    for (name, kept), again in zip(whole.named_buffers(), some.buffers(), strict=True):
        torch.testing.assert_close(again, kept, rtol=0, atol=1e-9, msg=name)  # what batch norm remembers


@pytest.mark.parametrize("positions", SCHEMES)
def test_states_at_some_places_with_every_scheme_of_positions(positions: str) -> None:
    model, ids = encoder(positions, segments=2), tokens(B, L)
    segments = torch.randint(2, (B, L), generator=torch.Generator().manual_seed(1))
    near(hidden_states(model, ids, KEEP, segments, AT), hidden_states(model, ids, KEEP, segments).flatten(0, 1)[AT])
    near(hidden_states(model, ids, None, segments, AT), hidden_states(model, ids, None, segments).flatten(0, 1)[AT])


def test_states_at_some_places_of_a_decoder_that_asks_a_source() -> None:
    model, ids = encoder_decoder("learned"), tokens(B, L)
    memory = model.decoder.remember(model.encode(SOURCE.expand(B, -1)))
    x_BLD = model.embedding(ids)
    whole, some = (
        model.decoder(x_BLD, positions_of(x_BLD, None), None, memory=memory, at_N=at)[0] for at in (None, AT)
    )
    near(some, whole.flatten(0, 1)[AT])


@pytest.mark.parametrize("side", ["left", "right", "none"])
@pytest.mark.parametrize("pool", ["first", "last", "mean"])
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_an_answer_is_what_the_head_says_of_all_states(family: str, pool: str, side: str) -> None:
    model: Any = build(tiny(family, "learned", head="classification", classes=3, pool=pool, pooler="tanh"))
    ids, keep = tokens(B, L), None if side == "none" else KEEP.flip(1) if side == "left" else KEEP
    expected = model.text(model(ids, keep), keep)
    near(text_answers(model, ids, keep, None), expected)
    hidden = model(ids, keep)
    first, last = {"left": (2, 6), "right": (0, 4), "none": (0, 6)}[side]  # of the second row
    pooled = {"first": hidden[1, first], "last": hidden[1, last], "mean": hidden[1, first : last + 1].mean(0)}[pool]
    near(model.text.answer(pooled[None])[0], expected[1])
