"""Examples to tensors: padding, and what every batch has.

B examples · L tokens of the longest
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from qkv.tokenizer.tokenizer import Template

EXAMPLES_VERSION = (
    2  # version of how stores become examples and batches: a run resumes only with the one it was begun with
)
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Batch(ABC):
    """What every batch has. `keep_BL` is None where nothing is padding; `segments_BL` where there are no pairs."""

    tokens_BL: Tensor
    keep_BL: Tensor | None
    segments_BL: Tensor | None
    examples_B: Ints  # which examples these are
    real_tokens: int  # without padding

    @property
    @abstractmethod
    def counts(self) -> dict[str, float]:
        """The number of targets of each part of the loss. Known before the forward pass, so that the counts of all
        micro-batches can be added first."""


@dataclass(frozen=True)
class Padded:
    """Sequences of token ids side by side, padded on the right."""

    tokens_BL: Tensor
    keep_BL: Tensor
    segments_BL: Tensor
    real_tokens: int

    @staticmethod
    def of(
        ids: Sequence[ArrayLike], segments: Sequence[ArrayLike] | None = None, *, pad: int = 0, min_length: int = 1
    ) -> Padded:
        """Token ids, and segments where there are pairs. `min_length` is L where all sequences are shorter."""
        lengths_B = np.array([np.size(one) for one in ids])
        shape = (len(ids), int(lengths_B.max(initial=min_length)))
        tokens_BL, segments_BL = np.full(shape, pad, np.int64), np.zeros(shape, np.int64)
        for row, length in enumerate(lengths_B):
            tokens_BL[row, :length] = ids[row]
            if segments is not None:
                segments_BL[row, :length] = segments[row]
        keep_BL = torch.from_numpy(np.arange(shape[1]) < lengths_B[:, None])
        return Padded(torch.from_numpy(tokens_BL), keep_BL, torch.from_numpy(segments_BL), int(lengths_B.sum()))

    @property
    def keep_if_padded(self) -> Tensor | None:
        """`keep_BL`, or None where nothing is padding: attention without a mask is faster."""
        return None if bool(self.keep_BL.all()) else self.keep_BL


def framed(a: Ints, b: Ints | None, template: Template) -> tuple[Ints, Ints]:
    """A text, or a pair, with its special tokens: ids and segments.

    [SEP] and segments separate a pair (measured by `qkv lab special`).
    """
    parts = [template.before, a, template.between, () if b is None else b, template.after]
    ids = np.concatenate([np.asarray(part, np.int64) for part in parts])
    segments = np.zeros_like(ids)
    if b is not None:
        segments[len(template.before) + len(a) + len(template.between) :] = template.segment_b
    return ids, segments
