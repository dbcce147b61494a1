"""Passages to batches for `fill`: pairs drawn, words hidden, special tokens around, padding on the right.

N examples · B examples of a batch
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.data.batch import WordBatch
from qkv.data.examples import Examples, Framed, SideBySide
from qkv.data.masking import Masking
from qkv.data.passages import Strangers
from qkv.data.store import Store
from qkv.text.tokenizer import Frame

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Words:
    """Everything that makes a batch of numbers of examples and an epoch."""

    store: Store
    examples: Examples
    strangers: Strangers
    masking: Masking
    single: Frame  # around a passage that is one text
    pair: Frame
    pad: int

    def lengths(self) -> Ints:
        """Tokens of each example, special ones included: the same in every epoch."""
        two = np.diff(self.examples.b_N2)[:, 0] > 0
        return np.where(two, self.examples.lengths(self.pair), self.examples.lengths(self.single))

    def collate(self, numbers_B: Ints, epoch: int) -> WordBatch:
        """Examples side by side. What is hidden, and who stands in for whom, depends on the epoch."""
        texts, places, words, pairs, strangers = [], list[Ints](), list[Ints](), list[int](), list[int]()
        for row, number in enumerate(numbers_B.tolist()):
            whole, stranger = self._framed(number, epoch)
            hidden, at = self.masking(whole.tokens_L, epoch, number)
            texts.append(Framed(hidden, whole.second))
            places.append(at)
            words.append(whole.tokens_L[at])
            if stranger is not None:
                pairs.append(row)
                strangers.append(int(stranger))
        laid = SideBySide.of(texts, pad=self.pad, segment_b=self.pair.segment_b)
        length = laid.tokens_BL.shape[1]
        flat = np.concatenate([row * length + at for row, at in enumerate(places)])
        return WordBatch(
            tokens_BL=laid.tokens_BL,
            keep_BL=laid.keep_BL,
            segments_BL=laid.segments_BL if len(self.strangers.members_M) else None,
            numbers_B=numbers_B,
            real_tokens=laid.real_tokens,
            places_N=torch.from_numpy(flat),
            words_N=torch.from_numpy(np.concatenate(words)),
            pairs_M=torch.tensor(pairs, dtype=torch.long),
            strangers_M=torch.tensor(strangers, dtype=torch.long),
        )

    def _framed(self, number: int, epoch: int) -> tuple[Framed, bool | None]:
        """One example, nothing hidden yet, and whether its second text is a stranger's; None: nothing to judge."""
        a_N2, b_N2 = self.examples.a_N2, self.examples.b_N2
        a = self.store.tokens[slice(*a_N2[number])].astype(np.int64)
        if b_N2[number, 0] == b_N2[number, 1]:
            return Framed.of(a, None, self.single), None
        other, is_stranger = self.strangers.second(number, epoch)
        return Framed.of(a, self.store.tokens[slice(*b_N2[other])].astype(np.int64), self.pair), is_stranger
