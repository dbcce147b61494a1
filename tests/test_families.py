"""What must hold for all three families and all seven position schemes, whatever their weights.

Invariances (nothing looks ahead, padding is nothing, packing keeps strangers apart, a cache remembers exactly), the
edges where shapes run out, and the parts a family is made of: norms, activations, shared tables, heads, first weights.
Each family is asked through `states`, in which an encoder-decoder writes its target to one fixed source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import (
    FAMILIES,
    SCHEMES,
    TARGET_V,
    B,
    D,
    F,
    L,
    S,
    V,
    build,
    decoder,
    encoder,
    encoder_decoder,
    normal,
    tiny,
    tokens,
)
from torch import Tensor, nn

from qkv.config import ModelConfig
from qkv.model import Cache, EncoderDecoder, build_model, masks
from qkv.model.build import initialise
from qkv.model.layers import ACTIVATIONS, FeedForward, Residual
from qkv.schema import UserError

schemes = pytest.mark.parametrize("scheme", SCHEMES)
families = pytest.mark.parametrize("family", FAMILIES)
writers = pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
sides = pytest.mark.parametrize("side", ["left", "right"])
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
def test_packed_documents_are_strangers(family: str, scheme: str) -> None:
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
        r"cut the input, or train with a larger context or other positions$"
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
    """Source and target ids are looked up in tables of their own, and the words are the target's."""
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
    """Tied words are one tensor, saved once, whose gradient is the sum of what it is owed as input and as output."""
    model: Any = build(tiny(family, tied=tied, head="words"))
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
            model: Any = build(tiny(family, head="classes", classes=5, pool=pool, pooler=pooler))
            head = model.text
            x = pooled if activation is None else activation(head.dense(pooled))
            near(head(hidden, keep), head.output(x))
            assert head(hidden).shape == (3, 5)


def test_heads() -> None:
    """What each name of a head builds, and what its answer is."""
    hidden = normal(B, L, D)
    shapes = {"classes": (B, 2), "grade": (B, 1), "pretraining": (B, 2)}
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
    sentence = r"^this model was built without a word head; accepted: model.head = 'words' or 'pretraining'$"
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
        large = build_model(tiny(family, head="words", tied="none", layers=2), seed=3).state_dict()
        assert small.keys() < large.keys()
        assert all(torch.equal(small[name], large[name]) for name in small)
        other = build_model(tiny(family, head="none", layers=1), seed=4).state_dict()
        assert all(not torch.equal(small[name], other[name]) for name in small if small[name].std() > 0)
        maps = [value for value in large.values() if value.ndim > 1]
        assert len({value.flatten()[0].item() for value in maps}) == len(maps), "no two weights share a stream"


@pytest.mark.parametrize("config", [
    *(tiny(family, scheme, head="words", tied="none", output_bias=True) for family in FAMILIES for scheme in SCHEMES),
    tiny("encoder", score="additive", norm="rms", head="pretraining", segments=2, pooler="tanh", embedding_norm=True),
    tiny("encoder", norm="batch", head="classes"),
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
