"""One attention, told two ways: `plain` is the specification, `fused` the same numbers by torch's fast kernel.

What is proven here: both agree in outputs and gradients for every scheme and mask; the fast one really is the fast
kernel and not a silent fall-back; what it cannot do it refuses; a query that sees nothing gets exactly nothing; and the
variants (additive scores, scales, shared key and value heads, dropped weights) are what their papers say.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from qkv.model import Recorder, fused, masks, plain
from qkv.model.attention import SCALES, Additive, Attend, Attention, How, View, dot
from qkv.model.dropout import Dropout
from tests.support.tiny_models import (
    SCHEMES,
    B,
    D,
    H,
    K,
    L,
    S,
    build,
    decoder,
    encoder,
    encoder_decoder,
    normal,
    tiny,
    tokens,
)

MASKS = ["none", "padding", "causal", "packing"]
NO_DROPOUT = Dropout(0.0)


class Kernels(TorchDispatchMode):
    """The names of all kernels that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def passed(scheme: str, mask: str, train: bool, attend: Attend | None) -> tuple[Tensor, dict[str, Tensor]]:
    """Hidden states of a model under a mask, and the gradient of each of its weights, none of which is without."""
    model = (decoder if mask == "causal" else encoder)(scheme).train(train)
    keep, pos = None, None
    if mask == "padding":
        keep = torch.tensor([[True] * L, [False] * 2 + [True] * 3 + [False] * 2])
    if mask == "packing":
        keep, pos = masks.packed(torch.tensor([[1, 1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 2, 2, 2]]))
    hidden = model(tokens(B, L), keep, pos=pos, attend=attend)
    (hidden * normal(*hidden.shape)).sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert gradients.keys() == dict(model.named_parameters()).keys()
    return hidden.detach(), gradients


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_plain_equals_fused(scheme: str, mask: str, train: bool) -> None:
    """Outputs and the gradients of all weights, in training too, where other codebases broke unseen."""
    hidden, gradients = passed(scheme, mask, train, plain)
    fast_hidden, fast_gradients = passed(scheme, mask, train, fused)
    torch.testing.assert_close(fast_hidden, hidden, rtol=0, atol=1e-12)
    torch.testing.assert_close(fast_gradients, gradients, rtol=0, atol=1e-10)
    default, _ = passed(scheme, mask, train, None)
    assert torch.equal(default, fast_hidden), "without dropout of weights the fast way is the default"


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scheme", ["none", "sinusoidal", "learned", "rotary", "alibi"])
def test_fused_is_flash_in_training(scheme: str, mask: str) -> None:
    """Under this context torch raises where it would leave the flash kernel (a mask of the wrong shape, or one that
    needs a gradient), instead of quietly becoming slow. That the kernel ran at all is seen by its name."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), Kernels() as kernels:
        passed(scheme, mask, True, None)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    assert {name, f"{name}_backward"} <= kernels.names


@pytest.mark.parametrize("mask", ["none", "padding", "causal"])
@pytest.mark.parametrize("scheme", ["t5", "relative"])
def test_trained_biases_are_flash_without_gradients(scheme: str, mask: str) -> None:
    """A bias that is trained leaves the flash kernel in training, as documented, but not when predicting."""
    model = (decoder if mask == "causal" else encoder)(scheme)
    keep = torch.arange(L) < torch.tensor([[L], [3]]) if mask == "padding" else None
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad():
        model(tokens(B, L), keep)
    flash_warning = pytest.warns(UserWarning, match="kernel not used because")
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), flash_warning, pytest.raises(RuntimeError, match="No available"):
        model(tokens(B, L), keep)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cross_attention_and_cached_steps_are_flash(scheme: str) -> None:
    """One new query against many remembered keys, and against a padded source."""
    model, keep = encoder_decoder(scheme), torch.arange(S) < torch.tensor([[S], [5]])
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION), torch.no_grad():
        cache = model.start(model.encode(tokens(B, S), keep), keep)
        _, cache = model.step(tokens(B, 3), cache)
        model.step(tokens(B, 1), cache)


def test_fused_refuses_what_it_cannot_do() -> None:
    """Additive scores and dropped weights are errors that name the way out, never a silent other result."""
    sentence = r"^fused attention knows the dot score only; use attend=plain for additive$"
    with pytest.raises(ValueError, match=sentence):
        encoder(score="additive")(tokens(B, L), attend=fused)
    model = build(tiny("encoder"), attention_dropout=0.5)
    model(tokens(B, L), attend=fused)  # in eval mode nothing is dropped
    sentence = r"^fused attention has no dropout inside; use attend=plain for attention_dropout$"
    with pytest.raises(ValueError, match=sentence):
        model.train()(tokens(B, L), attend=fused)


def test_dropped_weights_go_through_plain() -> None:
    """attention_dropout drops weights after the softmax and scales the rest up: a weight is 0 or w / (1 - 1/2)."""
    model = build(tiny("encoder", layers=1), attention_dropout=0.5)
    (attention,) = (part for part in model.modules() if isinstance(part, Attention))
    assert attention.attend is plain
    model.train()(tokens(B, L))  # without being told, it does not ask fused for what fused refuses
    torch.manual_seed(5)
    q, k, seen = normal(B, H, L, K, seed=5), normal(B, H, S, K, seed=7), torch.eye(S, dtype=torch.float64)
    how = How(dot, None, None, attention.drop)
    values = seen.expand(B, H, S, S)  # so that the output is the weights themselves
    dropped, whole = plain(q, k, values, how), plain(q, k, values, How(dot, None, None, NO_DROPOUT))
    zero = dropped == 0
    torch.testing.assert_close(dropped, torch.where(zero, 0.0, 2 * whole), rtol=0, atol=1e-12)
    assert 0.4 < zero.double().mean() < 0.6


@pytest.mark.parametrize("mask", MASKS)
def test_recorder(mask: str) -> None:
    """The recorded weights are a distribution over the keys that may be seen, exactly zero elsewhere, in layer order,
    and recording changes no result."""
    recorder = Recorder()
    hidden, _ = passed("alibi", mask, False, recorder)
    assert torch.equal(hidden, passed("alibi", mask, False, plain)[0])
    assert [weights.shape for weights in recorder.weights] == [(B, H, L, L)] * 2
    assert not torch.equal(recorder.weights[0], recorder.weights[1])
    keep = torch.ones(B, 1, L, L, dtype=torch.bool)
    if mask == "padding":
        keep[1, ..., [0, 1, 5, 6]] = False
    if mask == "causal":
        keep = keep.tril()
    if mask == "packing":
        documents = torch.tensor([[1, 1, 1, 2, 2, 3, 3], [1, 1, 2, 2, 2, 2, 2]])
        keep = (documents[:, :, None] == documents[:, None])[:, None]
    for weights in recorder.weights:
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, L, dtype=torch.float64), rtol=0, atol=1e-12)
        assert torch.equal(weights > 0, keep.expand_as(weights))


def test_recorder_keeps_cross_attention_too() -> None:
    """Encoder layers, then for each decoder layer its own attention and its attention to the source."""
    recorder, keep = Recorder(), torch.arange(S) < torch.tensor([[S], [5]])
    encoder_decoder()(tokens(B, S), tokens(B, L), keep, attend=recorder)
    shapes = [tuple(weights.shape[2:]) for weights in recorder.weights]
    assert shapes == [(S, S), (S, S), (L, L), (L, S), (L, L), (L, S)]
    assert (recorder.weights[3][1, :, :, 5:] == 0).all()


def test_additive() -> None:
    """Bahdanau et al. (2015), appendix A.1.2, as loops: the score is v . tanh(q + k), with a vector for each head."""
    score = Additive(H, K).double()
    torch.nn.init.normal_(score.vector_HK)
    q, k, vector = normal(B, H, L, K, seed=5), normal(B, H, S, K, seed=7), score.vector_HK.tolist()
    actual, ql, kl = score(q, k).tolist(), q.tolist(), k.tolist()
    for b in range(B):
        for h in range(H):
            for i in range(L):
                for j in range(S):
                    terms = [vector[h][c] * math.tanh(ql[b][h][i][c] + kl[b][h][j][c]) for c in range(K)]
                    assert actual[b][h][i][j] == pytest.approx(sum(terms), abs=1e-12)


def attention(**changes: Any) -> Attention:
    parts = {"width": D, "heads": H, "kv_heads": H, "head_width": K, "score": "dot", "scale": "sqrt"}
    return Attention(**{**parts, "bias": True, "dropout": 0.0, **changes}).double()


def test_scales() -> None:
    """Dot products are multiplied by K^-1/2, 1 or K^-1; additive scores are bounded and never scaled."""
    expected = {"sqrt": 1 / math.sqrt(5), "none": 1.0, "full": 1 / 5}
    assert {name: scale(5) for name, scale in SCALES.items()} == pytest.approx(expected)
    for name, factor in expected.items():
        module, recorder, x = attention(scale=name), Recorder(), normal(B, L, D)
        module(x, View(attend=recorder))
        q, k, _ = module.project(x).view(B, L, 3, H, K).permute(2, 0, 3, 1, 4)
        torch.testing.assert_close(recorder.weights[0], (q @ k.mT * factor).softmax(-1), rtol=0, atol=1e-12)
        assert attention(scale=name, score="additive").scale == 1.0


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", ["decoder", "encoder-decoder"])
def test_grouped_heads_are_repeated_heads(family: str, scheme: str) -> None:
    """Ainslie et al. (2023): with 2 key and value heads for 6 queries, queries 0-2 share the first. The same as 6 heads
    whose key and value weights repeat; also step by step, where the cache holds 2 heads only."""
    few: Any = build(tiny(family, scheme, heads=6, kv_heads=2))
    many: Any = build(tiny(family, scheme, heads=6, kv_heads=6))
    weights = few.state_dict()
    for name in [name for name in weights if ".project." in name]:
        heads = weights[name].unflatten(0, (10, -1))
        repeated = [heads[:6], *(part.repeat_interleave(3, 0) for part in (heads[6:8], heads[8:]))]
        weights[name] = torch.cat(repeated).flatten(0, 1)
    many.load_state_dict(weights)
    inputs = (tokens(B, S), tokens(B, L)) if family == "encoder-decoder" else (tokens(B, L),)
    whole = few(*inputs)
    torch.testing.assert_close(whole, many(*inputs), rtol=0, atol=1e-12)
    cache = few.start(few.encode(inputs[0])) if family == "encoder-decoder" else few.start(B)
    for i in range(L):
        hidden, cache = few.step(inputs[-1][:, i : i + 1], cache)
        torch.testing.assert_close(hidden[:, 0], whole[:, i], rtol=0, atol=1e-12)
    assert cache.own[0].k_NHSK.shape[:3] == (B, 2, L)


@pytest.mark.parametrize("attend", [plain, fused])
@pytest.mark.parametrize("biased", [False, True])
def test_a_query_that_sees_nothing(attend: Attend, biased: bool) -> None:
    """Exactly zero forward (not NaN, not the mean of the values) and backward; other rows are untouched by it."""
    q, k, v = normal(B, H, L, K, seed=5), normal(B, H, S, K, seed=7), normal(B, H, S, K, seed=11)
    bias = normal(1, H, L, S, seed=13) if biased else None
    keep = torch.ones(B, 1, L, S, dtype=torch.bool)
    keep[1, :, 3] = False
    out = attend(q, k, v, How(dot, keep, bias, NO_DROPOUT))
    assert (out[1, :, 3] == 0).all()
    others = keep.any(-1)[..., None].expand_as(out)
    unmasked = attend(q, k, v, How(dot, None, bias, NO_DROPOUT))
    torch.testing.assert_close(out[others], unmasked[others], rtol=0, atol=1e-12)
    inputs = [q, k, v] if bias is None else [q, k, v, bias]
    gradients = torch.autograd.grad(out.square().sum(), inputs)
    expected = torch.autograd.grad(unmasked[others].square().sum(), inputs)
    assert (gradients[0][1, :, 3] == 0).all()
    for gradient, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-12)  # fails on NaN
