"""Dropout (Srivastava et al., 2014) made cheap for a CPU.

torch draws one random float an element. A byte is enough: eight elements share one 64-bit draw, an element is dropped
when its byte is below a threshold t, and the rest are scaled by 256 / (256 - t), which is unbiased for the
probability t / 256 that is really used. Forward keeps the bytes (a quarter of the size of a float mask) for backward.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.schema import UserError
from qkv.streams import seed_for


def seed_dropout(seed: int, step: int, micro_batch: int) -> None:
    """Fix all dropout of one micro-batch, the unit of work: four on one machine equal one on each of four."""
    torch.default_generator.manual_seed(seed_for(seed, "dropout", step, micro_batch))  # torch.manual_seed is far slower


class Dropout(nn.Module):
    """Zero a share of the features in training, the identity otherwise. `share` is what is really used: n / 256."""

    def __init__(self, share: float) -> None:
        super().__init__()
        if not 0.0 <= share < 1.0:
            raise UserError(f"dropout = {share}: must be at least 0 and below 1")
        self.threshold = min(round(256 * share), 255)
        self.share = self.threshold / 256

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.threshold == 0:
            return x
        return _Drop.apply(x, self.threshold)  # type: ignore[no-untyped-call]

    def extra_repr(self) -> str:
        return f"share={self.share:.4f}"


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, threshold: int) -> Tensor:
        noise = random_bytes(x.numel()).view(x.shape)
        ctx.save_for_backward(noise)
        ctx.threshold = threshold  # type: ignore[attr-defined]
        return _masked(x, noise, threshold)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (noise,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return _masked(gradient, noise, ctx.threshold), None  # type: ignore[attr-defined]


def random_bytes(n: int) -> Tensor:
    """n uniform bytes from torch's generator. The range is spelled out: plain `random_()` never sets the top bit."""
    words = torch.empty((n + 7) // 8, dtype=torch.int64).random_(-(2**63), None)
    return words.view(torch.uint8)[:n]


def _masked(x: Tensor, noise: Tensor, threshold: int) -> Tensor:
    """x where the noise reaches the threshold, scaled up; else 0. Comparing straight into floats is 8 times faster
    than into booleans, and so is multiplying by them."""
    keep = torch.empty_like(x)
    torch.ge(noise, threshold, out=keep)
    return keep.mul_(256 / (256 - threshold)).mul_(x)
