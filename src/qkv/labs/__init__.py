"""The textbook's claims as experiments on the real model: one file a lab in `experiments/`, found here by name."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from qkv.schema import UserError, nearest

if TYPE_CHECKING:
    from qkv.labs.lab import Lab

NAMES = (
    "scale", "softmax", "residual", "norm", "depth", "xor", "order", "positions", "long-range", "heads", "additive",
    "who-asks", "mask", "cost", "count", "beam", "pretraining", "special", "context",
)  # fmt: skip


def load(name: str) -> Lab:
    """A lab by its name."""
    if name not in NAMES:
        raise UserError(f"lab {name!r}: {nearest(name, NAMES)}")
    lab: Lab = import_module(f"qkv.labs.experiments.{name.replace('-', '_')}").LAB
    return lab
