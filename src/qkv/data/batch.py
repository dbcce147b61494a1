"""What crosses from data to learning: some examples side by side, as tensors.

B examples · L tokens of the longest · S of the longest source · N words to be guessed · M examples that are pairs
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch(ABC):
    """What every batch has. `keep_BL` is None where nothing is padding; `segments_BL` where there are no pairs."""

    tokens_BL: Tensor
    keep_BL: Tensor | None
    segments_BL: Tensor | None
    numbers_B: NDArray[np.int64]  # which examples these are
    real_tokens: int  # without padding

    @property
    @abstractmethod
    def counts(self) -> dict[str, float]:
        """How much there is of each part of the loss: known before the model is asked, so that the counts of all
        micro-batches can be added first."""


@dataclass(frozen=True)
class LabelBatch(Batch):
    """Texts or pairs with labels: numbers of classes, or grades (then they are floats)."""

    labels_B: Tensor
    weights_B: Tensor  # how much each example counts

    @property
    def counts(self) -> dict[str, float]:
        return {"labels": float(self.weights_B.double().sum())}


@dataclass(frozen=True)
class WordBatch(Batch):
    """Texts or pairs with hidden words. What is to be guessed is listed: no position, and no number, means "ignore",
    so neither loss can take the other's targets for its own."""

    places_N: Tensor  # of the words to be guessed, in the flattened tokens (row * L + column), ascending
    words_N: Tensor  # what stood there
    pairs_M: Tensor  # the rows that are pairs
    strangers_M: Tensor  # of each pair: 0 the second text is the next, 1 it is a stranger's (as in BERT's files)

    @property
    def counts(self) -> dict[str, float]:
        return {"word": float(len(self.words_N)), "next": float(len(self.pairs_M))}


@dataclass(frozen=True)
class NextBatch(Batch):
    """Texts of which every next word is to be guessed; of a translation, with the source they are made from."""

    places_N: Tensor | None  # of the words to be guessed from, in the flattened tokens; None: every place
    words_N: Tensor  # what comes next there
    source_BS: Tensor | None = None
    source_keep_BS: Tensor | None = None

    @property
    def counts(self) -> dict[str, float]:
        return {"word": float(len(self.words_N))}
