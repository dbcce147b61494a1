"""Documents to batches for `complete`: windows of one document, in which every word is guessed from those before it.

A window begins with what the tokenizer puts before a text, so that a model has met a beginning everywhere; where it
puts nothing, with the word before it. Only the last window of a document holds its end. A document that fits is one
window. Windows of a longer one begin elsewhere in each epoch, and always hold all of it.

N windows · B windows of a batch · R documents
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.data.batch import NextBatch
from qkv.data.store import Store
from qkv.streams import stream

Ints = NDArray[np.int64]
MANY = 16  # windows of a document that is worth one more, so that all of them can begin anywhere


@dataclass(frozen=True)
class Windows:
    """Where each window lies among the words to be guessed of its document: its tokens, and its end."""

    store: Store
    room: int  # words to be guessed in one window, at most
    before: int | None  # id that every window begins with
    end: int | None  # id that ends a document
    pad: int
    seed: int
    documents_N: Ints  # which document
    numbers_N: Ints  # which window of it
    counts_R: Ints  # windows of each document
    sizes_R: Ints  # words to be guessed of each document

    @staticmethod
    def of(store: Store, room: int, *, before: int | None, end: int | None, pad: int, seed: int) -> Windows:
        sizes_R = np.diff(store.starts_R) + (end is not None) - (before is None)
        counts_R = -(-np.maximum(sizes_R, 0) // room)
        counts_R = counts_R + (counts_R >= MANY)
        documents_N = np.repeat(np.arange(len(store)), counts_R)
        numbers_N = np.arange(len(documents_N)) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R)
        return Windows(store, room, before, end, pad, seed, documents_N, numbers_N, counts_R, sizes_R)

    def lengths(self) -> Ints:
        """Words to be guessed in each window: the same in every epoch."""
        return np.minimum(self.sizes_R[self.documents_N], self.room)

    def begins(self, epoch: int) -> Ints:
        """Where the windows begin in this epoch: side by side from a place that the epoch draws, the first and the last
        moved so that they are full."""
        sizes_R, counts_R = self.sizes_R, self.counts_R
        slack_R = np.where(counts_R > MANY, self.room - 1, np.maximum(counts_R * self.room - sizes_R, 0))
        raw_R = stream(self.seed, "windows", epoch).random_raw(len(self.store))
        shift_R = (raw_R % (slack_R + 1).astype(np.uint64)).astype(np.int64)
        wanted_N = self.numbers_N * self.room - shift_R[self.documents_N]
        return np.clip(wanted_N, 0, np.maximum(sizes_R[self.documents_N] - self.room, 0))

    def collate(self, numbers_B: Ints, begins_N: Ints) -> NextBatch:
        """Windows side by side, padded on the right."""
        sizes_B = np.minimum(self.sizes_R[self.documents_N[numbers_B]] - begins_N[numbers_B], self.room)
        spans = [
            self._words(int(self.documents_N[number]), int(begins_N[number]), int(size))
            for number, size in zip(numbers_B, sizes_B, strict=True)
        ]
        length = max(len(words) for words in spans) - 1
        tokens_BL = np.full((len(spans), length), self.pad, np.int64)
        for row, words in enumerate(spans):
            tokens_BL[row, : len(words) - 1] = words[:-1]
        keep_BL = np.arange(length) < sizes_B[:, None]
        whole = bool(keep_BL.all())
        return NextBatch(
            tokens_BL=torch.from_numpy(tokens_BL),
            keep_BL=None if whole else torch.from_numpy(keep_BL),
            segments_BL=None,
            numbers_B=numbers_B,
            real_tokens=int(keep_BL.sum()),
            places_N=None if whole else torch.from_numpy(np.flatnonzero(keep_BL)),
            words_N=torch.from_numpy(np.concatenate([words[1:] for words in spans])),
        )

    def _words(self, document: int, begin: int, size: int) -> Ints:
        """What a window starts from, and the words to be guessed in it."""
        start, stop = int(self.store.starts_R[document]), int(self.store.starts_R[document + 1])
        first = start + begin + (self.before is None)  # of the words to be guessed
        words = self.store.tokens[first : min(first + size, stop)].astype(np.int64)
        lead = self.store.tokens[first - 1 : first] if self.before is None else [self.before]
        tail = [self.end] if first + size > stop else []
        return np.concatenate([np.asarray(part, np.int64) for part in (lead, words, tail)])


def each_once(windows: Windows) -> tuple[Windows, Ints]:
    """Windows in which every word is guessed exactly once, for evaluation, and where they begin."""
    counts_R = -(-np.maximum(windows.sizes_R, 0) // windows.room)
    documents_N = np.repeat(np.arange(len(counts_R)), counts_R)
    numbers_N = np.arange(len(documents_N)) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R)
    made = replace(windows, documents_N=documents_N, numbers_N=numbers_N, counts_R=counts_R)
    return made, numbers_N * windows.room


def as_one(store: Store, end: int | None) -> Store:
    """All documents as a single one, with an end after each, for windows that run across."""
    between = np.zeros(0, np.uint32) if end is None else np.array([end], np.uint32)
    pieces = [
        part
        for first, last in zip(store.starts_R[:-1], store.starts_R[1:], strict=True)
        for part in (store.tokens[first:last], between)
    ]
    tokens = np.concatenate(pieces[:-1]) if pieces else np.zeros(0, np.uint32)  # the last end is Windows' own
    return Store(tokens, np.array([0, len(tokens)]), store.middles_R, store.labels_R[:1], False)
