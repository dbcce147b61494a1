"""The same numbers as torch's own Transformer, in float64, outputs and gradients, by copied weights.

torch.nn.Transformer is an implementation we did not write: agreeing with it shows that the order of q, k and v in one
matrix, the place of every norm and bias, the scale, and the masks are those of the 2017 paper (norm after) and of its
variant with the norm before. It hides where we keep, so its masks are ours inverted. It ties heads x head width to the
width, hence 3 x 5 = 15 here, the one size that is not prime.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from qkv.model import Decoder, Encoder, EncoderDecoder
from qkv.model.attention import Attention
from qkv.model.layers import Block
from qkv.model.transformer import Stack
from tests.support.tiny_models import B, F, H, L, S, build, normal, tiny

WIDTH, LAYERS = 15, 2
Pair = tuple[Tensor, Tensor]  # one of our weights, and the same weight in torch's model

variants = pytest.mark.parametrize(
    ("norm_first", "activation", "bias"),
    [(first, activation, bias) for first in (False, True) for activation in ("relu", "gelu") for bias in (True, False)],
)
# nn.Transformer offers no way to switch off nested tensors, and warns that it does not use them.
pytestmark = pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")


def ours(family: str, norm_first: bool, activation: str, bias: bool, final_norm: bool, layers: int = LAYERS) -> Any:
    place = "pre" if norm_first else "post"
    sizes: dict[str, Any] = {"width": WIDTH, "layers": layers, "feedforward": F, "heads": H, "head_width": WIDTH // H}
    parts: dict[str, Any] = {"norm_place": place, "activation": activation, "bias": bias, "final_norm": final_norm}
    return build(tiny(family, **sizes, **parts))


def theirs(norm_first: bool, activation: str, bias: bool) -> dict[str, Any]:
    """What every torch layer here is told."""
    return {
        "d_model": WIDTH, "nhead": H, "dim_feedforward": F, "dropout": 0.0, "activation": activation,
        "batch_first": True, "norm_first": norm_first, "bias": bias, "dtype": torch.float64,
    }  # fmt: skip


def of_module(our: nn.Module, their: nn.Module) -> Iterator[Pair]:
    """Weight and bias of a linear map or norm."""
    names = [name for name, _ in their.named_parameters()]
    assert names == [name for name, _ in our.named_parameters()]
    for name in names:
        yield our.get_parameter(name), their.get_parameter(name)


def of_attention(our: Attention, their: nn.MultiheadAttention) -> Iterator[Pair]:
    yield our.project.weight, cast(Tensor, their.in_proj_weight)
    if our.project.bias is not None:
        yield our.project.bias, cast(Tensor, their.in_proj_bias)
    yield from of_module(our.output, their.out_proj)


def of_layer(our: Block, their: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Iterator[Pair]:
    yield from of_attention(our.attention, their.self_attn)
    yield from of_module(our.attention_residual.norm, their.norm1)
    if isinstance(their, nn.TransformerDecoderLayer):
        assert our.cross is not None
        assert our.cross_residual is not None
        yield from of_attention(our.cross, their.multihead_attn)
        yield from of_module(our.cross_residual.norm, their.norm2)
    last = their.norm3 if isinstance(their, nn.TransformerDecoderLayer) else their.norm2
    yield from of_module(our.feed.inner, their.linear1)
    yield from of_module(our.feed.output, their.linear2)
    yield from of_module(our.feed_residual.norm, last)


def of_stack(our: Stack, their: nn.TransformerEncoder | nn.TransformerDecoder) -> Iterator[Pair]:
    for block, layer in zip(our.blocks, their.layers, strict=True):
        yield from of_layer(cast(Block, block), cast(nn.TransformerEncoderLayer, layer))
    if their.norm is not None:
        yield from of_module(our.final_norm, their.norm)


def copy(pairs: list[Pair], their: nn.Module) -> None:
    """Give torch's model our weights, after checking that none of its weights is left out."""
    assert {id(weight) for _, weight in pairs} == {id(weight) for weight in their.parameters()}
    with torch.no_grad():
        for our_weight, their_weight in pairs:
            their_weight.copy_(our_weight)


def assert_equal(our: Tensor, their: Tensor, inputs: tuple[Tensor, ...], pairs: list[Pair]) -> None:
    """Outputs within 1e-10; gradients of a random function of them, by weights and inputs, within 1e-9."""
    torch.testing.assert_close(our, their, rtol=0, atol=1e-10)
    direction = normal(*our.shape, seed=11).detach()
    our_gradients = torch.autograd.grad((our * direction).sum(), [*inputs, *(weight for weight, _ in pairs)])
    their_gradients = torch.autograd.grad((their * direction).sum(), [*inputs, *(weight for _, weight in pairs)])
    for our_gradient, their_gradient in zip(our_gradients, their_gradients, strict=True):
        assert their_gradient.abs().max() > 1e-6, "a gradient of nothing proves nothing"
        torch.testing.assert_close(our_gradient, their_gradient, rtol=0, atol=1e-9)


def padded(length: int, real: int) -> Tensor:
    """A mask (B, length) whose second row keeps only its first `real` tokens."""
    return torch.arange(length) < torch.tensor([[length], [real]])


def positions(length: int) -> Tensor:
    return torch.arange(length)[None]


def later(length: int) -> Tensor:
    """torch's causal mask: True hides."""
    return torch.ones(length, length, dtype=torch.bool).triu(1)


@variants
def test_encoder_layer(norm_first: bool, activation: str, bias: bool) -> None:
    """One block is one nn.TransformerEncoderLayer, without and with a mask of both kinds at once."""
    model = cast(Encoder, ours("encoder", norm_first, activation, bias, final_norm=False, layers=1))
    layer = nn.TransformerEncoderLayer(**theirs(norm_first, activation, bias)).eval()
    pairs = list(of_layer(cast(Block, model.stack.blocks[0]), layer))
    copy(pairs, layer)
    x = normal(B, L, WIDTH)
    assert_equal(model.stack(x, positions(L), None)[0], layer(x), (x,), pairs)
    keep = padded(L, 5)
    pairwise = keep[:, None, :] & ~later(L)
    their = layer(x, src_mask=later(L), src_key_padding_mask=~keep)
    assert_equal(model.stack(x, positions(L), pairwise)[0], their, (x,), pairs)


@variants
def test_encoder(norm_first: bool, activation: str, bias: bool) -> None:
    """A padded stack with a last norm is nn.TransformerEncoder."""
    model = cast(Encoder, ours("encoder", norm_first, activation, bias, final_norm=True))
    layer = nn.TransformerEncoderLayer(**theirs(norm_first, activation, bias))
    norm = nn.LayerNorm(WIDTH, bias=bias, dtype=torch.float64)
    their = nn.TransformerEncoder(layer, LAYERS, norm, enable_nested_tensor=False).eval()
    pairs = list(of_stack(model.stack, their))
    copy(pairs, their)
    x, keep = normal(B, L, WIDTH), padded(L, 3)
    expected = their(x, src_key_padding_mask=~keep)
    assert_equal(model.stack(x, positions(L), keep)[0], expected, (x,), pairs)


@variants
def test_causal_decoder(norm_first: bool, activation: str, bias: bool) -> None:
    """A decoder (GPT's kind) is torch's encoder under a causal mask: what is left when cross-attention is taken out."""
    model = cast(Decoder, ours("decoder", norm_first, activation, bias, final_norm=False))
    layer = nn.TransformerEncoderLayer(**theirs(norm_first, activation, bias))
    their = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False).eval()
    pairs = list(of_stack(model.stack, their))
    copy(pairs, their)
    x, keep = normal(B, L, WIDTH), padded(L, 5)
    expected = their(x, mask=later(L), src_key_padding_mask=~keep)
    assert_equal(model.stack(x, positions(L), keep)[0], expected, (x,), pairs)


@variants
def test_decoder(norm_first: bool, activation: str, bias: bool) -> None:
    """The decoder of an encoder-decoder is nn.TransformerDecoder, of one layer nn.TransformerDecoderLayer, also in the
    gradient it sends back to the source."""
    for layers in (1, LAYERS):
        model = cast(EncoderDecoder, ours("encoder-decoder", norm_first, activation, bias, False, layers))
        layer = nn.TransformerDecoderLayer(**theirs(norm_first, activation, bias))
        their = nn.TransformerDecoder(layer, layers).eval()
        pairs = list(of_stack(model.decoder, their))
        copy(pairs, their)
        target, source = normal(B, L, WIDTH, seed=4), normal(B, S, WIDTH, seed=5)
        keep, source_keep = padded(L, 5), padded(S, 7)
        masks = {"tgt_key_padding_mask": ~keep, "memory_key_padding_mask": ~source_keep}
        expected = (their.layers[0] if layers == 1 else their)(target, source, tgt_mask=later(L), **masks)
        memory = model.decoder.remember(source)
        actual, _ = model.decoder(target, positions(L), keep, memory=memory, memory_keep=source_keep)
        assert_equal(actual, expected, (target, source), pairs)


@variants
def test_transformer(norm_first: bool, activation: str, bias: bool) -> None:
    """The whole is nn.Transformer, which has a last norm on both stacks wherever its other norms are."""
    model = cast(EncoderDecoder, ours("encoder-decoder", norm_first, activation, bias, final_norm=True))
    counts = {"num_encoder_layers": LAYERS, "num_decoder_layers": LAYERS}
    their = nn.Transformer(**{**theirs(norm_first, activation, bias), **counts}).eval()
    pairs = list(of_stack(model.encoder, their.encoder)) + list(of_stack(model.decoder, their.decoder))
    copy(pairs, their)
    source, target = normal(B, S, WIDTH, seed=4), normal(B, L, WIDTH, seed=5)
    keep, source_keep = padded(L, 3), padded(S, 7)
    masks = {"src_key_padding_mask": ~source_keep, "memory_key_padding_mask": ~source_keep}
    expected = their(source, target, tgt_mask=later(L), tgt_key_padding_mask=~keep, **masks)
    memory, _ = model.encoder(source, positions(S), source_keep)
    remembered = model.decoder.remember(memory)
    actual, _ = model.decoder(target, positions(L), keep, memory=remembered, memory_keep=source_keep)
    assert_equal(actual, expected, (source, target), pairs)
