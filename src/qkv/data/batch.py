"""What crosses from data to learning: some examples side by side, as tensors.

B examples · L tokens of the longest
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Batch:
    """Labelled texts or pairs. `keep_BL` is None where nothing is padding; `segments_BL` where there are no pairs."""

    tokens_BL: Tensor
    keep_BL: Tensor | None
    segments_BL: Tensor | None
    labels_B: Tensor
    weights_B: Tensor  # how much each example counts
    numbers_B: NDArray[np.int64]  # which examples these are
    real_tokens: int  # without padding
