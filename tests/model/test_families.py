"""What must hold for all three families and all seven position schemes, whatever their weights.

Invariances (nothing looks ahead, padding is nothing, packing keeps negatives apart, a cache remembers exactly), and the
edges where shapes run out. Each family is asked through `states`, in which an encoder-decoder writes its target to one
fixed source.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qkv.model import EncoderDecoder, masks
from qkv.schema import UserError
from tests.support.tiny_models import (
    FAMILIES,
    SCHEMES,
    TARGET_V,
    B,
    D,
    L,
    S,
    V,
    build,
    decoder,
    encoder,
    encoder_decoder,
    near,
    ragged,
    started,
    states,
    tiny,
    tokens,
)

schemes = pytest.mark.parametrize("scheme", SCHEMES)
families = pytest.mark.parametrize("family", FAMILIES)
writers = pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
sides = pytest.mark.parametrize("side", ["left", "right"])


@schemes
@writers
def test_future_cannot_move_the_past(family: str, scheme: str) -> None:
    """Another token at i changes states from i on, and those before by exactly nothing."""
    model, ids = build(tiny(family, scheme)), tokens(B, L)
    before = states(model, ids)
    for i in range(L):
        changed = ids.clone()
        changed[:, i] = (changed[:, i] + 1) % V
        after = states(model, changed)
        assert torch.equal(after[:, :i], before[:, :i])
        assert ((after - before)[:, i:].abs().amax((0, 2)) > 1e-9).all()


@schemes
def test_encoder_looks_both_ways(scheme: str) -> None:
    """The last token moves the state of the first, and so does a source's last token every state of a target."""
    model, ids, other = encoder(scheme), tokens(B, L), tokens(B, L)
    other[:, -1] = (other[:, -1] + 1) % V
    assert (model(ids) - model(other))[:, 0].abs().amax(-1).min() > 1e-9
    translator = encoder_decoder(scheme)
    assert (translator(ids, ids) - translator(other, ids)).abs().amax(-1).min() > 1e-9


@sides
@schemes
@families
def test_padding_cannot_move_real_tokens(family: str, scheme: str, side: str) -> None:
    """A ragged batch gives every row what it gets alone and unpadded, on the source side too."""
    model = build(tiny(family, scheme))
    rows = [tokens(1, length, seed=length)[0] for length in (5, 7, 1, 3)]
    ids, keep = ragged(rows, side)
    hidden = states(model, ids, keep)
    for i, row in enumerate(rows):
        near(hidden[i, keep[i]], states(model, row[None])[0])
    if isinstance(model, EncoderDecoder):
        target = tokens(len(rows), 2)
        hidden = model(ids, target, keep)
        for i, row in enumerate(rows):
            near(hidden[i], model(row[None], target[i : i + 1])[0])


@schemes
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_packed_documents_do_not_see_each_other(family: str, scheme: str) -> None:
    """Several documents in one row, also out of order, each with the states it has alone."""
    model: Any = build(tiny(family, scheme))
    documents = torch.tensor([[1, 1, 1, 2, 2, 3, 3], [4, 4, 4, 4, 4, 9, 9], [2, 1, 2, 1, 2, 1, 1]])
    ids, (keep, pos) = tokens(3, L), masks.packed(documents)
    hidden = model(ids, keep, pos=pos)
    for row in range(3):
        for document in set(documents[row].tolist()):
            mine = documents[row] == document
            near(hidden[row, mine], model(ids[row, mine][None])[0])


@schemes
@writers
def test_cached_steps_are_one_pass(family: str, scheme: str) -> None:
    """One token at a time from nothing, or a prompt, then one, then several: the states of a single pass."""
    model: Any = build(tiny(family, scheme))
    ids = tokens(B, L)
    whole = states(model, ids)
    for lengths in ([1] * L, [3, 1, 1, 1, 1], [2, 1, 4]):
        cache, parts = started(model, B), []
        for part in torch.split_with_sizes(ids, lengths, 1):
            hidden, cache = model.step(part, cache)
            parts.append(hidden)
        near(torch.cat(parts, 1), whole)


@sides
@schemes
@writers
def test_cached_steps_after_ragged_prompts(family: str, scheme: str, side: str) -> None:
    """Prompts of lengths 5 and 3 in one batch; then rows move and multiply, as in a beam; then four more tokens each.
    Every row has the states of its own text in one unpadded pass."""
    model: Any = build(tiny(family, scheme))
    prompts = [tokens(1, length, seed=length)[0] for length in (5, 3)]
    ids, keep = ragged(prompts, side)
    hidden, cache = model.step(ids, started(model, 2), keep)
    origin, more = [1, 0, 1], tokens(3, 4, seed=11)
    for i, prompt in enumerate(prompts):
        near(hidden[i, keep[i]], states(model, prompt[None])[0])
    cache, parts = cache.rows(torch.tensor(origin)), []
    for i in range(4):
        hidden, cache = model.step(more[:, i : i + 1], cache)
        parts.append(hidden)
    for i, row in enumerate(origin):
        whole = states(model, torch.cat([prompts[row], more[i]])[None])
        near(torch.cat(parts, 1)[i], whole[0, -4:])


@schemes
def test_cache_carries_the_source(scheme: str) -> None:
    """Padded sources stay with their rows when the rows of a cache are moved."""
    model = encoder_decoder(scheme)
    sources = [tokens(1, length, seed=length)[0] for length in (11, 5)]
    source, keep = ragged(sources, "right")
    cache = model.start(model.encode(source, keep), keep).rows(torch.tensor([1, 1, 0]))
    target = tokens(3, L)
    hidden, _ = model.step(target, cache)
    for i, row in enumerate([1, 1, 0]):
        near(hidden[i], model(sources[row][None], target[i : i + 1])[0])


def test_order_is_invisible_without_positions() -> None:
    """An encoder sees a set: shuffled tokens give shuffled states. With any scheme they do not."""
    ids, order = tokens(B, L), torch.tensor([3, 0, 6, 1, 5, 2, 4])
    for scheme in SCHEMES:
        model = encoder(scheme)
        difference = (model(ids[:, order]) - model(ids)[:, order]).abs().max()
        assert difference < 1e-12 if scheme == "none" else difference > 1e-4


@pytest.mark.parametrize(("layers", "notices"), [(1, False), (2, True)])
def test_causal_mask_tells_order(layers: int, notices: bool) -> None:
    """A decoder needs no positions to notice that two early tokens were swapped: the mask shows the second token a
    first one. The later states feel it from the second layer on."""
    model, ids = decoder(layers=layers), torch.tensor([[2, 3, 5, 7, 11]])
    difference = (model(ids) - model(ids[:, [1, 0, 2, 3, 4]]))[:, 2:].abs().max()
    assert difference > 1e-6 if notices else difference < 1e-12


@schemes
@families
def test_empty_batch_and_one_token(family: str, scheme: str) -> None:
    """No rows give no rows, forward, backward and with every kind of mask; a single token is a text."""
    model: Any = build(tiny(family, scheme))
    for keep in (None, torch.ones(0, L, dtype=torch.bool)):
        hidden = states(model, tokens(0, L), keep)
        assert hidden.shape == (0, L, D)
        torch.autograd.backward(hidden.sum())
    assert states(model, tokens(B, 1)).shape == (B, 1, D)
    if family != "encoder":
        hidden, cache = model.step(tokens(0, 3), started(model, 0))
        assert model.step(tokens(0, 1), cache)[0].shape == (0, 1, D)


def test_packing_no_rows() -> None:
    """An empty slice of a batch, as a rank with nothing to do has, packs to nothing."""
    keep, pos = masks.packed(torch.zeros(0, L, dtype=torch.long))
    assert keep.shape == (0, L, L)
    assert pos.shape == (0, L)


@pytest.mark.parametrize("masked", [False, True])
@families
def test_no_tokens(family: str, masked: bool) -> None:
    """A sequence of no tokens is a user's mistake, said in a sentence, also where a mask of no tokens comes with it."""
    model, ids = build(tiny(family)), tokens(B, 0)
    with pytest.raises(UserError, match=r"^a sequence of no tokens; a model needs at least one$"):
        states(model, ids, ids.bool() if masked else None)


def test_longer_than_context() -> None:
    """Learned positions end; the sentence says where and what to do. All others go on."""
    sentence = (
        r"^position 29 has no learned vector: model.context = 29 allows 0 to 28; "
        r"truncate the input, or train with a larger context or other positions$"
    )
    ids = tokens(1, 30)
    with pytest.raises(UserError, match=sentence):
        encoder("learned")(ids)
    model = decoder("learned")
    _, cache = model.step(ids[:, :29], model.start(1))
    with pytest.raises(UserError, match=sentence):
        model.step(ids[:, 29:], cache)
    for scheme in set(SCHEMES) - {"learned"}:
        assert encoder(scheme)(ids).isfinite().all()


def test_ids_out_of_range() -> None:
    """Neither a traceback nor a wrapped-around row: what was found, what is accepted."""
    for bad, found in (([1, V], f"1 to {V}"), ([-1, 2], "-1 to 2")):
        with pytest.raises(UserError, match=rf"^token id {found} found; ids must be 0 to {V - 1}$"):
            encoder()(torch.tensor([bad]))
    model, ids = encoder(segments=2), tokens(1, 2)
    with pytest.raises(UserError, match=r"^segment id 0 to 2 found; ids must be 0 to 1$"):
        model(ids, segments_BL=torch.tensor([[0, 2]]))
    near(model(ids), model(ids, segments_BL=torch.zeros(1, 2, dtype=torch.long)))
    assert (model(ids) - model(ids, segments_BL=torch.tensor([[0, 1]]))).abs().max() > 1e-6
    with pytest.raises(UserError, match=r"^segments were given to a model without segment vectors"):
        encoder()(ids, segments_BL=torch.zeros(1, 2, dtype=torch.long))


def test_separate_vocabularies() -> None:
    """Source and target ids are looked up in tables of their own, and the output tokens are the target's."""
    model = encoder_decoder(target_vocabulary=TARGET_V, tied="output")
    target = torch.tensor([[V, TARGET_V - 1]])
    assert model.logits(model(tokens(1, S), target)).shape == (1, 2, TARGET_V)
    with pytest.raises(UserError, match=rf"^token id {V} to {TARGET_V - 1} found; ids must be 0 to {V - 1}$"):
        model(target, target)


@pytest.mark.parametrize("score", ["dot", "additive"])
@pytest.mark.parametrize("norm", ["layer", "rms", "batch", "none"])
def test_no_mask_makes_nan(norm: str, score: str) -> None:
    """Random masks on pairs, among them tokens that see nothing and rows where nobody sees anything, forward and
    backward, with and without the residual path that could hide the damage."""
    generator = torch.Generator().manual_seed(7)
    for residual in (True, False):
        model: Any = build(tiny("encoder-decoder", norm=norm, score=score, residual=residual)).train()
        for share in (0.0, 0.2, 0.5, 0.9):
            source_keep = torch.rand(B, S, S, generator=generator) < share
            target_keep = torch.rand(B, L, L, generator=generator) < share
            source_keep[0], target_keep[1, 3] = False, False
            memory = model.encode(tokens(B, S), source_keep)
            seen = source_keep.any(1)[:, None].expand(B, L, S)
            pos, remembered = torch.arange(L)[None], model.decoder.remember(memory)
            x = model.embedding(tokens(B, L))
            hidden, _ = model.decoder(x, pos, target_keep, memory=remembered, memory_keep=seen)
            gradients = torch.autograd.grad(hidden.square().sum(), list(model.parameters()), allow_unused=True)
            assert hidden.isfinite().all()
            assert all(gradient.isfinite().all() for gradient in gradients if gradient is not None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.long, torch.uint8])
@families
def test_a_mask_is_made_of_truth_values(family: str, dtype: torch.dtype) -> None:
    """Numbers would be added to the scores, silently."""
    with pytest.raises(UserError, match=rf"keep has dtype {dtype}; must be torch.bool, True = may attend"):
        states(build(tiny(family)), tokens(B, L), torch.ones(B, L, dtype=dtype))


@schemes
def test_packed_pairs_do_not_see_each_other(scheme: str) -> None:
    """Two pairs of source and target in one row give each target what it gets alone."""
    model = encoder_decoder(scheme)
    sources, targets = [tokens(1, 5, seed=7), tokens(1, 6, seed=8)], [tokens(1, 4, seed=9), tokens(1, 3, seed=10)]
    alone = torch.cat([model(source, target) for source, target in zip(sources, targets, strict=True)], 1)
    source_number, target_number = torch.tensor([[1] * 5 + [2] * 6]), torch.tensor([[1] * 4 + [2] * 3])
    source_keep, source_pos = masks.packed(source_number)
    target_keep, target_pos = masks.packed(target_number)
    memory_keep = target_number[:, :, None] == source_number[:, None, :]
    together = model(
        torch.cat(sources, 1), torch.cat(targets, 1), source_keep, target_keep,
        source_pos=source_pos, target_pos=target_pos, memory_keep=memory_keep,
    )  # fmt: skip
    near(together, alone)


def test_a_decoder_that_asks_a_source_needs_one() -> None:
    model = encoder_decoder()
    with pytest.raises(ValueError, match="needs the memory of a source"):
        model.decoder(torch.zeros(1, L, D, dtype=torch.float64), torch.arange(L)[None], None)


@pytest.mark.parametrize("shape", [(1, L), (B, L - 1), (B, 1, L, L), (L,)])
@families
def test_a_mask_has_the_shape_of_its_tokens(family: str, shape: tuple[int, ...]) -> None:
    """One row of mask for two rows of tokens would be stretched, silently."""
    with pytest.raises(UserError, match=r"keep has the shape .*; must be \(2, 7\) or \(2, 7, 7\)"):
        states(build(tiny(family)), tokens(B, L), torch.ones(shape, dtype=torch.bool))


@writers
def test_a_cache_belongs_to_its_rows(family: str) -> None:
    model: Any = build(tiny(family))
    with pytest.raises(UserError, match="tokens have 2 rows, but what is remembered has 1"):
        model.step(tokens(2, 1), started(model, 1))


@pytest.mark.parametrize(
    "ids", [torch.zeros(L, dtype=torch.long), torch.zeros(B, L), torch.zeros(B, L, 1, dtype=torch.long)]
)
@families
def test_tokens_are_rows_of_whole_numbers(family: str, ids: torch.Tensor) -> None:
    with pytest.raises(UserError, match=r"tokens have shape .* must be whole numbers of shape \(rows, length\)"):
        states(build(tiny(family)), ids)
