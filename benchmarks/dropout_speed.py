"""Our dropout, a byte an element, against torch's, a float an element: forward, and forward with backward.

    .venv/bin/python benchmarks/dropout_speed.py --rounds 100

Both are in training mode, keep what backward needs, and run with the same threads and allocator settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from interleave import interleaved, ratio
from torch import Tensor

from qkv import runtime
from qkv.model.dropout import Dropout

SHAPES = [(512, 256), (2048, 256), (2048, 1024), (4096, 1024)]  # tokens x features
SHARE = 0.1


def theirs(x: Tensor) -> Tensor:
    return F.dropout(x, SHARE, training=True)


def passes(drop: Callable[[Tensor], Tensor], x: Tensor, train: bool) -> Callable[[], object]:
    """One forward pass, or one forward and backward pass with a gradient that is already there."""
    gradient = torch.randn_like(x)

    def both() -> object:
        return torch.autograd.grad(drop(x), x, gradient)

    return both if train else lambda: drop(x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    runtime.start()
    ours = Dropout(SHARE).train()
    print("| pass | shape | torch ms | qkv ms | qkv is faster by (quartiles) |")
    print("|---|---|---|---|---|")
    for train in (False, True):
        for tokens, features in SHAPES:
            x = torch.randn(tokens, features, requires_grad=True)
            turns = {"theirs": passes(theirs, x, train), "ours": passes(ours, x, train)}
            times = interleaved(turns, rounds)
            low, middle, high = ratio(times["theirs"], times["ours"])
            slow, fast = (1000 * sorted(times[name])[rounds // 2] for name in ("theirs", "ours"))
            row = ["forward + backward" if train else "forward", f"{tokens} x {features}", f"{slow:.2f}", f"{fast:.2f}"]
            print("|", *(f"{cell} |" for cell in [*row, f"{middle:.2f} ({low:.2f} to {high:.2f})"]))


if __name__ == "__main__":
    main()
