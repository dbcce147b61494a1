"""Long texts: keep the head, the head and the tail, or read all of it in overlapping windows. Pure functions.

R rows · N examples
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.config.recipe import Truncation
from qkv.data.store import Store
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Template, longest_first

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """Where the tokens of each example lie in a store: first text a[0]:a[1], second b[0]:b[1]. Of a single text, the
    second is its tail if its middle is left out, else empty."""

    rows_N: Ints
    a_N2: Ints
    b_N2: Ints
    truncated: int  # rows that did not fit in one piece

    def lengths(self, template: Template) -> Ints:
        """Tokens of each example, special tokens included."""
        return np.diff(self.a_N2)[:, 0] + np.diff(self.b_N2)[:, 0] + len(template)


def keep_head(store: Store, room: int) -> Examples:
    """One example a row: its beginning. Of a pair the longer text is truncated first, as the tokenizer does it."""
    start, middle, end = store.bounds()
    a, b = middle - start, end - middle
    a_kept, b_kept = longest_first(a, b, room)
    spans_a, spans_b = np.stack([start, start + a_kept], 1), np.stack([middle, middle + b_kept], 1)
    return Examples(np.arange(len(store)), spans_a, spans_b, int(np.count_nonzero(a + b > room)))


def keep_head_and_tail(store: Store, room: int) -> Examples:
    """One example a row: the beginning and the end of a text that is longer than `room`."""
    start, _, end = store.bounds()
    _check_single(store, "head+tail")
    head, tail = head_and_tail(end - start, room)
    spans_a, spans_b = np.stack([start, start + head], 1), np.stack([end - tail, end], 1)
    return Examples(np.arange(len(store)), spans_a, spans_b, int(np.count_nonzero(end - start > room)))


def read_windows(store: Store, room: int) -> Examples:
    """As many examples of a row as it takes to read all of it, each of at most `room` tokens, half of them shared with
    the one before."""
    start, _, end = store.bounds()
    _check_single(store, "windows")
    pieces = [
        (row, a + first, a + last)
        for row, (a, z) in enumerate(zip(start.tolist(), end.tolist(), strict=True))
        for first, last in windows(z - a, room)
    ]
    table = np.array(pieces, np.int64).reshape(-1, 3)
    nothing = np.repeat(table[:, 2:], 2, 1)
    return Examples(table[:, 0], table[:, 1:], nothing, int(np.count_nonzero(end - start > room)))


TRUNCATIONS: dict[Truncation, Callable[[Store, int], Examples]] = {
    "head": keep_head, "head+tail": keep_head_and_tail, "windows": read_windows
}  # fmt: skip


def head_and_tail(length: Ints, room: int) -> tuple[Ints, Ints]:
    """How many tokens of the beginning and of the end are kept. A text that fits is all beginning."""
    fits = length <= room
    return np.where(fits, length, room - room // 2), np.where(fits, 0, room // 2)


def windows(length: int, room: int) -> list[tuple[int, int]]:
    """Where the windows of one text begin and end; the last is moved back so that it is full too."""
    if length <= room:
        return [(0, length)]
    step = max(1, room // 2)
    return [(min(first, length - room), min(first + room, length)) for first in range(0, length - room + step, step)]


def spans_of(length: int, room: int, truncation: Truncation) -> list[list[tuple[int, int]]]:
    """The same for one text at prediction: its examples, each as the spans of it that are read."""
    if truncation == "windows":
        return [[window] for window in windows(length, room)]
    if truncation == "head" or length <= room:
        return [[(0, min(length, room))]]
    head, tail = (int(some) for some in head_and_tail(np.array(length), room))
    return [[(0, head), (length - tail, length)]]


def _check_single(store: Store, truncation: str) -> None:
    if store.pairs:
        raise UserError(f"data.truncation = {truncation!r} is for single texts; accepted for pairs: head")
