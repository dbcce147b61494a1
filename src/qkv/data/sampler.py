"""Which examples a step sees: a pure function of the step's number.

There is no iterator to save or to restore. Every example has a length cell (ceilings 4% apart). Batches are cut once,
in the space of ranks sorted by cell, so that rows x ceiling stays within the token budget: an epoch always has the
same number of batches, and `epoch, k = divmod(step, batches)`. What changes with the epoch is which example of a cell
takes which rank, and in which order the batches come. Padding is then about 1% of the tokens.

A translation has two lengths. Its cell is that of the target, and within it that of the source, by turns up and down,
so that neighbours are alike in both.

N examples · K lengths of each
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from qkv.streams import permutation, stream

GROWTH = 1.04


class BatchSampler:
    """Batch number -> examples. `lengths` (N) or (N, 2) and `budget` are in tokens, the budget with padding."""

    def __init__(self, lengths: NDArray[np.int64], budget: int, seed: int) -> None:
        ceilings = _ceilings(int(lengths.max(initial=1)))
        cells_NK = np.searchsorted(ceilings, lengths if lengths.ndim == 2 else lengths[:, None])
        self._cells = _in_turns(cells_NK, len(ceilings))
        self.seed = seed
        self._cuts = _cut(ceilings[cells_NK[np.argsort(self._cells, kind="stable")]], budget)
        self._epoch, self._order = -1, np.zeros(0, np.int64)  # the last epoch's order: kept for speed, never needed
        self._batches = self._order

    @property
    def batches(self) -> int:
        """Batches of one epoch."""
        return len(self._cuts) - 1

    def batch(self, number: int) -> tuple[int, NDArray[np.int64]]:
        """The epoch that batch `number` (from 0, over all epochs) falls in, and its examples."""
        epoch, k = divmod(number, self.batches)
        if epoch != self._epoch:
            keys = stream(self.seed, "order", epoch, 0).random_raw(len(self._cells))
            self._order = np.lexsort((keys, self._cells))
            self._batches = permutation(stream(self.seed, "order", epoch, 1), self.batches)
            self._epoch = epoch
        chosen = self._batches[k]
        return epoch, self._order[self._cuts[chosen] : self._cuts[chosen + 1]]

    def in_order(self) -> list[NDArray[np.int64]]:
        """All examples once, shortest first, in batches of the same size: for evaluation."""
        order = np.argsort(self._cells, kind="stable")
        return [order[a:b] for a, b in zip(self._cuts[:-1], self._cuts[1:], strict=True)]


def evenly(batches: list[NDArray[np.int64]], tokens: int, wanted: int) -> list[NDArray[np.int64]]:
    """An even choice of these batches, which have so many tokens in all, of about `wanted` tokens; 0: all."""
    share = wanted / max(1, tokens)
    if wanted == 0 or share >= 1:
        return batches
    chosen = np.unique(np.floor(np.arange(0.5, len(batches), max(1.0, 1 / share))).astype(int))
    return [batches[number] for number in chosen]


def _ceilings(longest: int) -> NDArray[np.int64]:
    ceilings = [1]
    while ceilings[-1] < longest:
        ceilings.append(max(ceilings[-1] + 1, int(ceilings[-1] * GROWTH)))
    return np.array(ceilings)


def _in_turns(cells_NK: NDArray[np.int64], cells: int) -> NDArray[np.int64]:
    """One number for the cells of an example: the first decides, then the second, upwards and downwards by turns."""
    first_N = cells_NK[:, 0]
    if cells_NK.shape[1] == 1:
        return first_N
    second_N = cells_NK[:, 1]
    return first_N * cells + np.where(first_N % 2, cells - 1 - second_N, second_N)


def _cut(ceilings_NK: NDArray[np.int64], budget: int) -> NDArray[np.int64]:
    """Where batches begin and end among sorted examples: as many rows as the budget allows, one at least."""
    cuts = [0]
    while cuts[-1] < len(ceilings_NK):
        start = cuts[-1]
        within = ceilings_NK[start : start + max(1, budget // int(ceilings_NK[start].sum()))]
        widest = np.maximum.accumulate(within).sum(1)  # of the first 1, 2, ... rows
        tokens = widest * np.arange(1, len(within) + 1)
        cuts.append(start + max(1, int(np.searchsorted(tokens, budget, side="right"))))
    return np.array(cuts)
