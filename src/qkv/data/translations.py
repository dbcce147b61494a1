"""Pairs to batches for `translate`: a source as it is framed, and a target of which every word is guessed from those
before it and from the source.

N pairs · B pairs of a batch
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.data.batch import NextBatch
from qkv.data.examples import Framed, SideBySide
from qkv.data.store import Store
from qkv.text.tokenizer import Frame

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Translations:
    """Pairs that fit: half a translation would teach to leave out half."""

    store: Store
    rows_N: Ints
    frame: Frame  # around a source
    start: int  # what a target begins with
    end: int  # and ends with
    pad: int
    target_pad: int

    @staticmethod
    def of(
        store: Store, longest: int, frame: Frame, *, start: int, end: int, pad: int, target_pad: int
    ) -> Translations:
        begin, middle, stop = store.bounds()
        source_R, target_R = middle - begin + len(frame.before) + len(frame.after), stop - middle + 1
        fits = (source_R <= longest) & (target_R <= longest)
        return Translations(store, np.flatnonzero(fits), frame, start, end, pad, target_pad)

    @property
    def too_long(self) -> int:
        """Pairs that are left out."""
        return len(self.store) - len(self.rows_N)

    def lengths(self) -> Ints:
        """Tokens of each target and source (N, 2), special ones included."""
        begin, middle, stop = (edge[self.rows_N] for edge in self.store.bounds())
        around = len(self.frame.before) + len(self.frame.after)
        return np.stack([stop - middle + 1, middle - begin + around], 1)

    def collate(self, numbers_B: Ints) -> NextBatch:
        """Pairs side by side, padded on the right."""
        begin, middle, stop = (edge[self.rows_N[numbers_B]] for edge in self.store.bounds())
        sources = [self._tokens(a, z) for a, z in zip(begin, middle, strict=True)]
        targets = [self._tokens(a, z) for a, z in zip(middle, stop, strict=True)]
        source = SideBySide.of([Framed.of(one, None, self.frame) for one in sources], pad=self.pad, segment_b=0)
        given = [np.concatenate([[self.start], one]) for one in targets]
        laid = SideBySide.of([Framed(one, len(one)) for one in given], pad=self.target_pad, segment_b=0)
        places = None if laid.keep_BL is None else laid.keep_BL.flatten().nonzero()[:, 0]
        return NextBatch(
            tokens_BL=laid.tokens_BL,
            keep_BL=laid.keep_BL,
            segments_BL=None,
            numbers_B=numbers_B,
            real_tokens=laid.real_tokens + source.real_tokens,
            places_N=places,
            words_N=torch.from_numpy(np.concatenate([word for one in targets for word in (one, [self.end])])),
            source_BS=source.tokens_BL,
            source_keep_BS=source.keep_BL,
        )

    def _tokens(self, first: int, last: int) -> Ints:
        return self.store.tokens[first:last].astype(np.int64)
