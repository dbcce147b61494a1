"""Rows to examples: what is cut, what is read in windows, what stands around it, what is hidden. Pure functions.

R rows · N examples · B examples of a batch · L tokens of the longest
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.config import Long
from qkv.data.batch import LabelBatch
from qkv.data.store import Store
from qkv.schema import UserError
from qkv.streams import stream
from qkv.text.tokenizer import Frame

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Examples:
    """Where the tokens of each example lie in a store: first text a[0]:a[1], second b[0]:b[1]. Of a single text, the
    second is its end if its middle is left out, else empty."""

    rows_N: Ints
    a_N2: Ints
    b_N2: Ints
    cut: int  # rows that did not fit in one piece

    def lengths(self, frame: Frame) -> Ints:
        """Tokens of each example, special ones included."""
        around = len(frame.before) + len(frame.between) + len(frame.after)
        return np.diff(self.a_N2)[:, 0] + np.diff(self.b_N2)[:, 0] + around


def cut_to(store: Store, room: int) -> Examples:
    """One example a row: its beginning. Of a pair, the longer text is cut first, as the tokenizer does it."""
    start, middle, end = store.bounds()
    a, b = middle - start, end - middle
    a_cut, b_cut = longest_first(a, b, room)
    rows = np.arange(len(store))
    pieces_a, pieces_b = np.stack([start, start + a_cut], 1), np.stack([middle, middle + b_cut], 1)
    return Examples(rows, pieces_a, pieces_b, int(np.count_nonzero(a + b > room)))


def longest_first(a: Ints, b: Ints, room: int) -> tuple[Ints, Ints]:
    """How many tokens of each text of a pair stay: the shorter one whole if it leaves the other more than half."""
    small = np.minimum(a, b)
    keep_large = np.where(small > room, small, np.maximum(small, room - small))
    halves = small + keep_large > room
    keep_small = np.where(halves, room // 2, small)
    keep_large = np.where(halves, room // 2 + room % 2, keep_large)
    fits = a + b <= room
    first = np.where(a > b, keep_large, keep_small)
    second = np.where(a > b, keep_small, keep_large)
    return np.where(fits, a, np.minimum(a, first)), np.where(fits, b, np.minimum(b, second))


def ends_of(store: Store, room: int) -> Examples:
    """One example a row: the beginning and the end of a text that is longer than `room`."""
    start, _, end = store.bounds()
    _single(store, "ends")
    head, tail = ends(end - start, room)
    pieces_a, pieces_b = np.stack([start, start + head], 1), np.stack([end - tail, end], 1)
    return Examples(np.arange(len(store)), pieces_a, pieces_b, int(np.count_nonzero(end - start > room)))


def ends(length: Ints, room: int) -> tuple[Ints, Ints]:
    """How many tokens of the beginning and of the end stay. A text that fits is all beginning."""
    fits = length <= room
    return np.where(fits, length, room - room // 2), np.where(fits, 0, room // 2)


def stretches(length: int, room: int, long: Long) -> list[list[tuple[int, int]]]:
    """The examples of one text, each as the stretches of it that are read one after the other."""
    if long == "windows":
        return [[window] for window in windows(length, room)]
    if long == "cut" or length <= room:
        return [[(0, min(length, room))]]
    head, tail = (int(some) for some in ends(np.array(length), room))
    return [[(0, head), (length - tail, length)]]


def _single(store: Store, long: str) -> None:
    if store.pairs:
        raise UserError(f"data.long = {long!r} is for single texts; for pairs accepted: cut")


def windows_of(store: Store, room: int) -> Examples:
    """As many examples of a row as it takes to read all of it, each of at most `room` tokens, half of them shared with
    the one before."""
    start, _, end = store.bounds()
    _single(store, "windows")
    pieces = [
        (row, a + first, a + last)
        for row, (a, z) in enumerate(zip(start.tolist(), end.tolist(), strict=True))
        for first, last in windows(z - a, room)
    ]
    table = np.array(pieces, np.int64).reshape(-1, 3)
    nothing = np.repeat(table[:, 2:], 2, 1)
    return Examples(table[:, 0], table[:, 1:], nothing, int(np.count_nonzero(end - start > room)))


def windows(length: int, room: int) -> list[tuple[int, int]]:
    """Where the windows of one text begin and end; the last is moved back so that it is full too."""
    if length <= room:
        return [(0, length)]
    step = max(1, room // 2)
    return [(min(first, length - room), min(first + room, length)) for first in range(0, length - room + step, step)]


@dataclass(frozen=True)
class Hide:
    """Put the mask token in place of a share of a text's tokens: which ones depends on seed, epoch and example."""

    share: float
    mask: int
    seed: int
    epoch: int

    def __call__(self, tokens: Ints, example: int) -> Ints:
        noise = stream(self.seed, "hide", self.epoch, example).random_raw((len(tokens) + 7) // 8)
        hidden = noise.view(np.uint8)[: len(tokens)] < round(256 * self.share)
        return np.where(hidden, self.mask, tokens)


@dataclass(frozen=True)
class Framed:
    """The tokens of one example with special ones around them, and where the second text begins (the end: nowhere).

    [SEP] and segments separate a pair (measured by `qkv lab special`).
    """

    tokens_L: Ints
    second: int

    @staticmethod
    def of(a: Ints, b: Ints | None, frame: Frame) -> Framed:
        parts = [frame.before, a, frame.between, () if b is None else b, frame.after]
        tokens = np.concatenate([np.asarray(part, np.int64) for part in parts])
        return Framed(tokens, len(tokens) if b is None else len(frame.before) + len(a) + len(frame.between))


@dataclass(frozen=True)
class SideBySide:
    """Examples as tensors, padded on the right. `keep_BL` is None where nothing is padding."""

    tokens_BL: Tensor
    keep_BL: Tensor | None
    segments_BL: Tensor
    real_tokens: int

    @staticmethod
    def of(texts: Sequence[Framed], *, pad: int, segment_b: int) -> SideBySide:
        lengths_B = np.array([len(one.tokens_L) for one in texts])
        shape = (len(texts), int(lengths_B.max(initial=1)))
        tokens_BL, segments_BL = np.full(shape, pad, np.int64), np.zeros(shape, np.int64)
        for row, one in enumerate(texts):
            tokens_BL[row, : len(one.tokens_L)] = one.tokens_L
            segments_BL[row, one.second : len(one.tokens_L)] = segment_b
        keep_BL = np.arange(shape[1]) < lengths_B[:, None]
        kept = None if keep_BL.all() else torch.from_numpy(keep_BL)
        return SideBySide(torch.from_numpy(tokens_BL), kept, torch.from_numpy(segments_BL), int(lengths_B.sum()))


def collate(
    store: Store,
    examples: Examples,
    numbers_B: Ints,
    frame: Frame,
    *,
    pad: int,
    weights_C: NDArray[np.float32],
    hide: Hide | None = None,
) -> LabelBatch:
    """Labelled examples side by side."""
    laid = SideBySide.of(
        [_framed(store, examples, int(n), frame, hide) for n in numbers_B], pad=pad, segment_b=frame.segment_b
    )
    labels_B = store.labels_R[examples.rows_N[numbers_B]]
    classes_B = labels_B.astype(np.int64) if labels_B.dtype.kind == "i" else np.zeros(len(labels_B), np.int64)
    return LabelBatch(
        tokens_BL=laid.tokens_BL,
        keep_BL=laid.keep_BL,
        segments_BL=laid.segments_BL if store.pairs else None,
        numbers_B=numbers_B,
        real_tokens=laid.real_tokens,
        labels_B=torch.from_numpy(classes_B if labels_B.dtype.kind == "i" else labels_B.copy()),
        weights_B=torch.from_numpy(weights_C[classes_B]),
    )


def _framed(store: Store, examples: Examples, number: int, frame: Frame, hide: Hide | None) -> Framed:
    a, b = (store.tokens[slice(*span[number])].astype(np.int64) for span in (examples.a_N2, examples.b_N2))
    if hide is not None:
        hidden = hide(np.concatenate([a, b]), number)
        a, b = hidden[: len(a)], hidden[len(a) :]
    return Framed.of(a, b, frame) if store.pairs else Framed.of(np.concatenate([a, b]), None, frame)
