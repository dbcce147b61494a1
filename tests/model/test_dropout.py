"""Proven here: our dropout drops the share it says, evenly over features, without bias; its gradient is its mask; it is
a function of (seed, step, micro-batch) alone, on any number of threads; and it keeps one byte an element for backward.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from qkv.model import dropout
from qkv.model.dropout import Dropout, random_bytes, seed_dropout

SHARES = [0.1, 0.25, 0.5, 0.9]


@pytest.fixture(autouse=True)
def fixed_seed() -> Iterator[None]:
    """Every test starts from one key, and leaves torch's generator as it found it."""
    state = torch.default_generator.get_state()
    seed_dropout(7, 0, 0)
    yield
    torch.default_generator.set_state(state)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """A way to set the number of threads that is undone afterwards."""
    count = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(count)


def drop(share: float, x: Tensor) -> Tensor:
    return Dropout(share).train()(x)


# The share that is really used


@pytest.mark.parametrize(
    ("asked", "threshold"),
    [(0.0, 0), (0.001, 0), (0.0019, 0), (0.002, 1), (0.1, 26), (0.25, 64), (0.5, 128), (0.998, 255), (0.999, 255)],
)
def test_the_share_is_whole_bytes_and_recorded(asked: float, threshold: int) -> None:
    layer = Dropout(asked)
    assert layer.threshold == threshold
    assert layer.share == threshold / 256
    assert abs(layer.share - asked) <= 0.5 / 256 or layer.threshold == 255
    assert f"share={threshold / 256:.4f}" in repr(layer)


def test_extreme_shares() -> None:
    """0.001 rounds to nothing dropped; 0.999 is capped so that one in 256 is left and the scale stays finite."""
    x = torch.ones(2**18)
    assert drop(0.001, x) is x
    y = drop(0.999, x)
    assert set(y.tolist()) == {0.0, 256.0}
    kept = int((y != 0).sum())
    assert abs(kept - 2**10) < 5 * 32


@pytest.mark.parametrize("share", SHARES)
def test_values_are_dropped_or_scaled_and_nothing_else(share: float) -> None:
    layer = Dropout(share)
    x = torch.randn(10_007).add_(10)
    y = layer(x)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - layer.share), rtol=1e-6, atol=0)


@pytest.mark.parametrize("share", SHARES)
def test_mean_and_variance(share: float) -> None:
    """On 2^20 ones: mean 1, variance p / (1 - p), both within five of their own standard errors."""
    layer, n = Dropout(share), 2**20
    y = layer(torch.ones(n, dtype=torch.float64))
    p, scale = layer.share, 1 / (1 - layer.share)
    variance = scale**2 * p * (1 - p)
    fourth = scale**4 * p * (1 - p) * (1 - 3 * p * (1 - p))
    assert abs(y.mean().item() - 1) < 5 * math.sqrt(variance / n)
    # For one half the sample variance of two equally likely values has no first-order error: floor by the second order.
    error = math.sqrt(max(fourth - variance**2, 0) / n) + 10 * variance / n
    assert abs(y.var().item() - variance) < 5 * error


# Evenness


def _z(counts: Tensor, n: int, p: float) -> Tensor:
    return (counts.double() - n * p) / math.sqrt(n * p * (1 - p))


def _assert_flat(share: float) -> None:
    """The rate of every feature column, alone (largest of 256) and together (sum of squares)."""
    rows, columns = 8192, 256
    layer = Dropout(share)
    dropped = (layer(torch.ones(rows, columns)) == 0).sum(0)
    z = _z(dropped, rows, layer.share)
    assert z.abs().max() < 5
    assert abs(z.square().sum() - columns) < 5 * math.sqrt(2 * columns)


@pytest.mark.parametrize("share", SHARES)
def test_every_feature_is_dropped_equally_often(share: float) -> None:
    _assert_flat(share)


def test_plain_random_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """`random_()` never sets the top bit: every eighth byte is below 128, its feature is dropped twice as often."""

    def plain(n: int) -> Tensor:
        return torch.empty((n + 7) // 8, dtype=torch.int64).random_().view(torch.uint8)[:n]

    monkeypatch.setattr(dropout, "random_bytes", plain)
    dropped = (drop(0.1, torch.ones(8192, 256)) == 0).double().mean(0)
    assert dropped[7::8].mean() == pytest.approx(2 * 26 / 256, rel=0.05)
    with pytest.raises(AssertionError):
        _assert_flat(0.1)


def test_random_bytes_are_uniform_in_each_of_the_eight_places() -> None:
    lanes = random_bytes(2**20).view(-1, 8)
    for lane in lanes.unbind(1):
        counts = torch.bincount(lane.int(), minlength=256).double()
        expected = len(lane) / 256
        chi_square = float(((counts - expected) ** 2 / expected).sum())
        assert abs(chi_square - 255) < 5 * math.sqrt(2 * 255)


@pytest.mark.parametrize("distance", [1, 7, 8, 256])
def test_neighbours_are_dropped_independently(distance: int) -> None:
    layer, n = Dropout(0.25), 2**20
    dropped = layer(torch.ones(n + distance)) == 0
    both = (dropped[:-distance] & dropped[distance:]).sum()
    assert abs(_z(both, n, layer.share**2)) < 5


# Gradient


def test_the_gradient_is_the_mask_times_the_scale() -> None:
    layer = Dropout(0.3)
    x = torch.randn(37, 41, requires_grad=True)
    with torch.no_grad():
        x += 10 * x.sign()  # no zero among them
    y = layer(x)
    incoming = torch.randn(37, 41)
    (gradient,) = torch.autograd.grad(y, x, incoming)
    scale = 256 / (256 - layer.threshold)
    assert 0 < (y == 0).sum() < y.numel()
    torch.testing.assert_close(gradient, (y != 0) * scale * incoming, rtol=0, atol=0)
    torch.testing.assert_close(y.detach(), (y != 0) * scale * x.detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("share", SHARES)
def test_gradcheck(share: float) -> None:
    layer = Dropout(share)

    def seeded(x: Tensor) -> Tensor:
        seed_dropout(1, 2, 3)
        return layer(x)

    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(seeded, (x,))
    assert torch.autograd.gradgradcheck(seeded, (x,))


def test_backward_needs_no_randomness() -> None:
    """Random numbers drawn between forward and backward, by another layer, change nothing."""
    x = torch.ones(1000, requires_grad=True)
    y = drop(0.5, x)
    random_bytes(100)
    state = torch.default_generator.get_state()
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y)
    assert torch.equal(torch.default_generator.get_state(), state)


def test_forward_keeps_one_byte_an_element() -> None:
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    x = torch.ones(123, 45, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        drop(0.1, x)
    assert [tensor.dtype for tensor in saved] == [torch.uint8]
    assert sum(tensor.nbytes for tensor in saved) == x.numel()
    assert sum(tensor.untyped_storage().nbytes() for tensor in saved) < x.numel() + 8


# A function of its key


def _masks(seed: int, step: int, micro_batch: int, n: int = 4096) -> Tensor:
    seed_dropout(seed, step, micro_batch)
    return drop(0.5, torch.ones(n)) != 0


def test_the_same_key_gives_the_same_mask_whatever_went_before() -> None:
    first = _masks(7, 3, 2)
    torch.rand(1001)
    _masks(8, 1, 1)
    assert torch.equal(_masks(7, 3, 2), first)


def test_another_key_gives_another_mask() -> None:
    keys = [(7, 3, 2), (8, 3, 2), (7, 4, 2), (7, 3, 3), (7, 2, 3), (3, 7, 2)]
    masks = [_masks(*key) for key in keys]
    for i, one in enumerate(masks):
        for other in masks[:i]:
            assert abs(_z((one == other).sum(), one.numel(), 0.5)) < 5


def test_two_layers_of_one_micro_batch_have_masks_of_their_own() -> None:
    x = torch.ones(4096)
    one, other = drop(0.5, x), drop(0.5, x)
    assert abs(_z((one == other).sum(), 4096, 0.5)) < 5


def test_threads_do_not_change_a_bit(threads: Callable[[int], None]) -> None:
    x = torch.randn(1024, 1031)
    results = []
    for count in (1, 2):
        threads(count)
        seed_dropout(7, 3, 2)
        leaf = x.clone().requires_grad_()
        y = drop(0.1, leaf)
        (gradient,) = torch.autograd.grad(y, leaf, x)
        results.append((y.detach(), gradient))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


# Every kind of input


def test_evaluation_is_the_identity() -> None:
    x, layer = torch.randn(3, 5), Dropout(0.5).eval()
    state = torch.default_generator.get_state()
    assert layer(x) is x
    assert torch.equal(torch.default_generator.get_state(), state)


def test_share_zero_is_the_identity_in_training() -> None:
    x = torch.randn(3, 5)
    state = torch.default_generator.get_state()
    assert drop(0.0, x) is x
    assert torch.equal(torch.default_generator.get_state(), state)


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 15, 16, 17, 1001])
def test_sizes_that_eight_does_not_divide(n: int) -> None:
    assert random_bytes(n).shape == (n,)
    x = torch.ones(n, requires_grad=True)
    y = drop(0.5, x)
    assert y.shape == (n,)
    assert set(y.tolist()) <= {0.0, 2.0}
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], y)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (5, 0, 2)])
def test_an_empty_tensor(shape: tuple[int, ...]) -> None:
    x = torch.ones(shape, requires_grad=True)
    y = drop(0.5, x)
    assert y.shape == shape
    assert torch.autograd.grad(y.sum(), x)[0].shape == shape


def test_a_scalar() -> None:
    assert drop(0.5, torch.tensor(3.0)).item() in (0.0, 6.0)


@pytest.mark.parametrize("layout", ["transposed", "strided", "expanded", "permuted"])
def test_an_input_that_is_not_contiguous(layout: str) -> None:
    """The mask belongs to the element, not to the place in memory: the result is that of a contiguous copy."""
    x = {
        "transposed": torch.randn(31, 37).t(),
        "strided": torch.randn(62, 74)[::2, 1::2],
        "expanded": torch.randn(37).expand(31, 37),
        "permuted": torch.randn(3, 5, 7, 11).permute(2, 0, 3, 1),
    }[layout]
    assert not x.is_contiguous()
    results = []
    for y in (x, x.contiguous()):
        seed_dropout(1, 2, 3)
        leaf = y.detach().requires_grad_()
        out = drop(0.3, leaf)
        results.append((out.detach(), torch.autograd.grad(out, leaf, torch.ones_like(out))[0]))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert not torch.equal(results[0][0], x)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_mask_and_the_type_do_not_touch_each_other(kind: torch.dtype) -> None:
    seed_dropout(1, 2, 3)
    expected = drop(0.5, torch.ones(1000))
    seed_dropout(1, 2, 3)
    y = drop(0.5, torch.ones(1000, dtype=kind))
    assert y.dtype == kind
    assert torch.equal(y.float(), expected)


def test_float64_is_scaled_in_float64() -> None:
    y = drop(0.1, torch.ones(100, dtype=torch.float64))
    assert set(y.tolist()) <= {0.0, 256 / 230}


def test_the_input_is_not_changed() -> None:
    x = torch.randn(100)
    kept = x.clone()
    drop(0.5, x)
    assert torch.equal(x, kept)
