"""Which words are to be guessed, and what stands in their place (Devlin et al., 2019, section 3.1).

Of the words chosen, eight in ten become the mask token, one becomes any other word, one stays: a model that met masks
only in training would not know what to do with text that has none. Which ones depends on seed, epoch and example, so
every epoch hides others and a resumed run hides the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.streams import stream

Ints = NDArray[np.int64]
MASKED, EXCHANGED = round(0.8 * 2**32), round(0.9 * 2**32)  # below: the mask; below: another word; else as it was


@dataclass(frozen=True)
class Masking:
    """How words are chosen and hidden."""

    share: float
    mask: int
    special_V: NDArray[np.bool_]  # never chosen, and never put in a word's place
    inside_V: NDArray[np.bool_] | None  # pieces that go on with a word; None: every token is chosen by itself
    seed: int

    def __call__(self, tokens_L: Ints, epoch: int, example: int) -> tuple[Ints, Ints]:
        """The tokens with some hidden, and the places of those to be guessed, ascending."""
        usable = np.flatnonzero(~self.special_V[tokens_L])
        bits = stream(self.seed, "mask", epoch, example).random_raw(2 * len(usable))
        places = usable[self._chosen(tokens_L, usable, bits)]
        fate, which = bits[len(usable) :][: len(places)] >> np.uint64(32), bits[len(usable) :] & np.uint64(2**32 - 1)
        words = np.flatnonzero(~self.special_V)
        others = words[(which[: len(places)] * np.uint64(len(words)) >> np.uint64(32)).astype(np.int64)]
        hidden = tokens_L.copy()
        hidden[places] = np.where(fate < MASKED, self.mask, np.where(fate < EXCHANGED, others, tokens_L[places]))
        return hidden, places

    def _chosen(self, tokens_L: Ints, usable: Ints, bits: NDArray[np.uint64]) -> Ints:
        """Words in a random order until the share is reached: one at least, none that would go beyond."""
        if not len(usable):
            return usable
        begins = np.diff(usable, prepend=-2) != 1  # no word goes on behind a special token
        if self.inside_V is None:
            begins[:] = True
        else:
            begins |= ~self.inside_V[tokens_L[usable]]
        word_of = np.cumsum(begins) - 1
        order = np.argsort(bits[: word_of[-1] + 1], kind="stable")
        so_far = np.cumsum(np.bincount(word_of)[order])
        wanted = max(1, round(self.share * len(usable)))
        words = order[: max(1, int(np.searchsorted(so_far, wanted, side="right")))]
        return np.flatnonzero(np.isin(word_of, words))
