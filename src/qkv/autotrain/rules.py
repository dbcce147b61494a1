"""From the size of a table to the hyper-parameters of a fine-tuning: every number that `qkv train TABLE` chooses.

The numbers were found on rows of SST-2, CoLA and passages of books that no benchmark tests on (docs/log.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

CROSS_VALIDATED = 1500  # up to so many rows, all are trained on and the figures come from cross-validation
MANY_FOLDS, FEW_FOLDS, FEW_FOLDS_FROM = 5, 3, 600  # folds, and the rows from which on there are few
FEWEST_TEXTS = 8  # different ones
LONGEST = 256  # tokens of a text; longer ones keep head and tail
LONG_SHARE = 0.95  # of the texts that the length is to hold whole
RATE_TIMES_WIDTH = 0.04  # the learning rate is this divided by the width: 1e-4 for 384 features
LAYER_DECAY = 0.8
TOKEN_DROPOUT = 0.25  # of all settings the one that matters most
EPOCHS_AT_1000 = 3.0  # passes over 1,000 rows; fewer rows are seen more often
MOST_EPOCHS, FEWEST_EPOCHS = 12.0, 2.0
SMALL_BATCH, LARGE_BATCH, LARGE_FROM = (
    16,
    32,
    2000,
)  # rows of a batch, and the rows of a table from which on it is large
WARMUP_SHARE = 0.1
FEWEST_STEPS = 40
EVALUATIONS = 8  # validations in a training with a validation set
PATIENCE = 3
MOST_WORK = 5e13  # floating-point operations of one training: six minutes at 140 GFLOP/s
BALANCED_FROM = 0.1  # share of the rarest label below which classes are weighted


@dataclass(frozen=True)
class Start:
    """The encoder that is fine-tuned, as far as the rules need to know it."""

    init: str
    width: int
    layers: int
    feedforward: int
    context: int  # longest input in tokens

    @property
    def work_per_token(self) -> float:
        """Floating-point operations of one training step: six for each weight of the layers."""
        return 6.0 * self.layers * (4 * self.width**2 + 2 * self.width * self.feedforward)


def epochs_for(rows: int) -> float:
    """Passes over a table: the number of examples that are seen grows as the rows to the power of 0.65."""
    return min(max(EPOCHS_AT_1000 * (1000 / max(1, rows)) ** 0.35, FEWEST_EPOCHS), MOST_EPOCHS)


def folds_for(rows: int) -> int:
    """Folds of the cross-validation; 0: rows are split instead."""
    if rows > CROSS_VALIDATED:
        return 0
    return FEW_FOLDS if rows > FEW_FOLDS_FROM else MANY_FOLDS


def length_for(lengths: Sequence[int], start: Start, special: int) -> int:
    """The maximum length: that of nearly all texts, in steps of 16, within what the encoder takes."""
    usual = int(np.quantile(np.asarray(lengths), LONG_SHARE)) + special
    return int(min(-(-usual // 16) * 16, LONGEST, start.context))


def fine_tuning(
    rows: int, lengths: Sequence[int], rarest_share: float, start: Start, *, special: int = 2
) -> dict[str, Any]:
    """[data] and [train] of a recipe that fine-tunes an encoder on so many rows of these lengths in tokens."""
    batch_rows = LARGE_BATCH if rows > LARGE_FROM else SMALL_BATCH
    length = length_for(lengths, start, special)
    held = [min(one + special, length) for one in lengths]
    mean = sum(held) / max(1, len(held))
    batch_tokens = max(length, round(batch_rows * mean))
    wanted = max(FEWEST_STEPS, round(rows * epochs_for(rows) / batch_rows))
    affordable = int(MOST_WORK / (start.work_per_token * batch_rows * mean))
    steps = max(FEWEST_STEPS, min(wanted, affordable))
    split = folds_for(rows) == 0
    return {
        "data": {
            "length": length,
            "truncation": "head+tail" if max(held) == length and length == LONGEST else "head",
            "balance": "weights" if 0 < rarest_share < BALANCED_FROM else "none",
            "validation": "split" if split else "none",
            "test": "split" if split else "none",
        },
        "train": {
            "steps": steps,
            "batch_tokens": batch_tokens,
            "learning_rate": float(f"{RATE_TIMES_WIDTH / start.width:.1g}"),
            "layer_decay": LAYER_DECAY,
            "token_dropout": TOKEN_DROPOUT,
            "warmup": max(1, round(WARMUP_SHARE * steps)),
            "fit_head": True,
            "pooling_layer": True,
            "eval_every": max(1, -(-steps // EVALUATIONS)) if split else steps,
            "patience": PATIENCE if split else 0,
            "keep": "best" if split else "last",
            "save_every": 100,
        },
    }
