"""Documents to examples for `fill`: which sentences form a passage, and which negatives may replace the next sentence.

Passages are cut once. An epoch decides only whether the second text of a passage is its own or a negative: one of
another document, of nearly the same length, so that neither the length of a text nor its end reveals which it is.

N examples · M of them are pairs
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from qkv.data.sampler import GROWTH
from qkv.data.store import Store
from qkv.data.truncation import Examples
from qkv.streams import stream
from qkv.tasks.task import EVALUATION

Ints = NDArray[np.int64]
TRIES = 16  # draws for a negative with another text
LEAST = 8  # second texts of a length


def passages_of(store: Store, room: int, *, pairs: bool, seed: int) -> Examples:
    """Whole sentences of one document, as many as `room` tokens hold, all passages of a document about equally long; a
    sentence longer than half of the room is broken. If `pairs`, a passage of two sentences or more is split after one
    of them, never inside one: half a sentence would reveal what follows. A row of the store is a sentence, its label
    the number of its document."""
    starts, documents = store.starts_R.tolist(), store.labels_R
    edges = np.flatnonzero(np.diff(documents, prepend=-1, append=-1)).tolist()
    table = list[tuple[int, int, int, int]]()  # document, begin, where it is split (the end: nowhere), end
    for first, last in pairwise(edges):
        borders = set(starts[first : last + 1])
        for cuts in _passages(_pieces(starts[first : last + 1], max(1, room // 2)), room):
            inner = [cut for cut in cuts[1:-1] if cut in borders] if pairs else []
            which = int(stream(seed, "pairs", 0, len(table)).random_raw() % len(inner)) if inner else 0
            table.append((int(documents[first]), cuts[0], inner[which] if inner else cuts[-1], cuts[-1]))
    found = np.array(table, np.int64).reshape(-1, 4)
    lengths_N = found[:, 3] - found[:, 2]
    ends_N = found[:, 2] + common_lengths(lengths_N)
    return Examples(found[:, 0], found[:, 1:3], np.stack([found[:, 2], ends_N], 1), 0)


def common_lengths(lengths_N: Ints) -> Ints:
    """What each second text is cut to: the shortest of those of about its length (within 4%), of which there are LEAST
    or more. So each has a negative, and a rare length reveals nothing. 0 stays 0."""
    values, counts = np.unique(lengths_N[lengths_N > 0], return_counts=True)
    shortest, members, highest = values.copy(), 0, len(values)
    for lowest in range(len(values) - 1, -1, -1):
        members += int(counts[lowest])
        wide = lowest == 0 or values[lowest - 1] * GROWTH < values[highest - 1]
        if members >= LEAST and wide:
            shortest[lowest:highest] = values[lowest]
            highest, members = lowest, 0
    if highest and len(values):  # too few short ones: they join those above
        joined = np.searchsorted(shortest, shortest[highest], side="right") if highest < len(values) else len(values)
        shortest[:joined] = values[0]
    return np.where(lengths_N > 0, shortest[np.searchsorted(values, lengths_N)] if len(values) else 0, 0)


def _pieces(starts: list[int], most: int) -> list[int]:
    """Where the pieces of a document begin, and where the last ends. No piece has more than `most` tokens, none is
    empty."""
    cuts = [starts[0]]
    for end in starts[1:]:
        length = end - cuts[-1]
        parts = -(-length // most)
        cuts += [end - length + length * part // parts for part in range(1, parts + 1)]
    return cuts


def _passages(cuts: list[int], room: int) -> Iterator[list[int]]:
    """The pieces of each passage of one document, as the places where they begin and the last one ends."""
    total = cuts[-1] - cuts[0]
    if total == 0:
        return
    target = total / -(-total // room)
    first = 0
    for last in range(1, len(cuts)):
        ends = last + 1 == len(cuts) or cuts[last + 1] - cuts[first] > room
        if ends or cuts[last] - cuts[first] >= target:
            yield cuts[first : last + 1]
            first = last


@dataclass(frozen=True)
class Negatives:
    """Second texts by length: those of one length may change places, unless they are of one document."""

    store: Store
    examples: Examples
    seed: int
    members_M: Ints  # numbers of the examples that are pairs, by length, then by document
    begin_N: Ints  # where the texts of an example's length begin among the members, and how many there are
    count_N: Ints
    own_N: Ints  # where those of its own document begin among them, and how many there are
    siblings_N: Ints

    @staticmethod
    def of(store: Store, examples: Examples, seed: int) -> Negatives:
        lengths, documents = np.diff(examples.b_N2)[:, 0], examples.rows_N
        pairs = np.flatnonzero(lengths)
        members = pairs[np.lexsort((documents[pairs], lengths[pairs]))]
        begin, end = (np.searchsorted(lengths[members], lengths, side=side) for side in ("left", "right"))
        both = lengths * (1 + int(documents.max(initial=0))) + documents  # one number for length and document
        own, last = (np.searchsorted(both[members], both, side=side) for side in ("left", "right"))
        return Negatives(store, examples, seed, members, begin, end - begin, own, last - own)

    def second(self, number: int, epoch: int) -> tuple[int, bool | None]:
        """The example whose second text `number` gets in this epoch, and whether that is a negative: never of the same
        document, never an equal text. None: there is no negative, so there is nothing to predict."""
        others = int(self.count_N[number] - self.siblings_N[number])
        if not others:
            return number, None
        raw = stream(self.seed, "pairs", 1 + epoch, number).random_raw(1 + TRIES)
        begin, own, siblings = int(self.begin_N[number]), int(self.own_N[number]), int(self.siblings_N[number])
        for draw in raw[1:].tolist():
            place = begin + draw % others
            other = int(self.members_M[place if place < own else place + siblings])
            if self._differs(number, other):  # the coin comes last: an example without a negative is not a pair at all
                return (other, True) if raw[0] >> np.uint64(63) else (number, False)
        return number, None

    def _differs(self, one: int, other: int) -> bool:
        b = self.examples.b_N2
        return not np.array_equal(self.store.tokens[slice(*b[one])], self.store.tokens[slice(*b[other])])


@dataclass(frozen=True)
class Overlap:
    """Moves the first text of some pairs forward, so that it ends with their own next sentence: the inverse cloze task,
    where a sentence sometimes stays in its context (Lee et al., 2019). Unless such a pair gets a negative, both texts
    share these tokens, so it teaches to match tokens across the pair. Whether a text is moved does not depend on
    whether the pair gets a negative, so it reveals nothing."""

    examples: Examples
    share: float
    seed: int

    def shift(self, number: int, epoch: int) -> int:
        """Tokens by which the first text of a pair is moved in this epoch: 0, or the length of its own second text.
        Evaluation moves none."""
        if not self.share or epoch == EVALUATION:
            return 0
        draw = int(stream(self.seed, "pairs", 1 + epoch, number, 1).random_raw())
        begin, end = self.examples.b_N2[number].tolist()
        return end - begin if draw < self.share * 2**64 else 0
