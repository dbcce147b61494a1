"""Which tokens are masked, and what replaces them (Devlin et al., 2019, section 3.1).

Of the chosen tokens 80% become the mask token, 10% a random token, and 10% stay, because text has no mask tokens after
pre-training. The choice depends on seed, epoch and example, so every epoch masks other tokens and a resumed run masks
the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.streams import stream

Ints = NDArray[np.int64]
BELOW_MASKED, BELOW_REPLACED = round(0.8 * 2**32), round(0.9 * 2**32)  # a 32-bit number below: mask; random token


@dataclass(frozen=True)
class Masking:
    """Chooses and masks tokens."""

    rate: float
    mask: int
    special_V: NDArray[np.bool_]  # never chosen, and never a random token
    inside_V: NDArray[np.bool_] | None  # tokens that continue a word; None: no whole-word masking
    seed: int

    def __call__(self, tokens_L: Ints, epoch: int, example: int) -> tuple[Ints, Ints]:
        """The tokens with some masked, and the positions of those to predict, ascending."""
        usable = np.flatnonzero(~self.special_V[tokens_L])
        bits = stream(self.seed, "mask", epoch, example).random_raw(2 * len(usable))  # half to choose, half to replace
        positions = usable[self._chosen(tokens_L, usable, bits)]
        draw = bits[len(usable) : len(usable) + len(positions)]
        how, which = draw >> np.uint64(32), draw & np.uint64(2**32 - 1)  # two 32-bit numbers of one draw
        plain = np.flatnonzero(~self.special_V)
        random = plain[(which * np.uint64(len(plain)) >> np.uint64(32)).astype(np.int64)]
        masked = tokens_L.copy()
        kept_or_random = np.where(how < BELOW_REPLACED, random, tokens_L[positions])
        masked[positions] = np.where(how < BELOW_MASKED, self.mask, kept_or_random)
        return masked, positions

    def _chosen(self, tokens_L: Ints, usable: Ints, bits: NDArray[np.uint64]) -> Ints:
        """Words (tokens, without whole-word masking) in random order until the rate is reached: at least one, and none
        that would go beyond."""
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
        wanted = max(1, round(self.rate * len(usable)))
        words = order[: max(1, int(np.searchsorted(so_far, wanted, side="right")))]
        return np.flatnonzero(np.isin(word_of, words))
