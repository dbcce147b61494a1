"""Randomness without state: every random number is a pure function of what it is for.

A generator that is advanced by use must be saved, restored and never touched out of turn, or a resumed run differs
from an uninterrupted one. Here nothing is advanced: `stream(seed, purpose, step, part, index)` names a position in
Philox, a counter-based generator (Salmon et al., 2011), and reads from there: epoch 5 can be drawn without 1 to 4.
"""

from __future__ import annotations

import zlib
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Purpose = Literal["weights", "dropout", "order", "hide", "pairs", "mask", "windows", "sample"]
# Part of the format of a run: append, never renumber.
_NUMBER: dict[Purpose, int] = {
    "weights": 1, "dropout": 2, "order": 3, "hide": 4, "pairs": 5, "mask": 6, "windows": 7, "sample": 8
}  # fmt: skip


def stream(seed: int, purpose: Purpose, step: int = 0, part: int = 0, index: int = 0) -> np.random.Philox:
    """The random bits for one use: read them with `random_raw`, whose values numpy promises never to change."""
    return np.random.Philox(key=[seed, _NUMBER[purpose]], counter=[0, index, part, step])


def seed_for(seed: int, purpose: Purpose, step: int = 0, part: int = 0, index: int = 0) -> int:
    """A 32-bit seed for another generator (torch's CPU generator uses no more than 32 bits of its seed)."""
    return int(stream(seed, purpose, step, part, index).random_raw() >> np.uint64(32))


def permutation(bits: np.random.Philox, n: int) -> NDArray[np.int64]:
    """A random order of 0..n-1: the argsort of raw keys, since `Generator.permutation` may change between versions."""
    return np.argsort(bits.random_raw(n), kind="stable")


def number_of(name: str) -> int:
    """A fixed number for a name, to key a stream by it (CRC-32; Python's own `hash` differs between processes)."""
    return zlib.crc32(name.encode())
