"""What is minimised: the only file that knows both a Batch and a model.

A loss is a total and a count, never a mean: means of pieces of different size cannot be averaged, totals and counts can
be added over micro-batches and divided once.

B examples · C labels
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from qkv.data.batch import Batch
from qkv.model.transformer import Encoder, EncoderDecoder, Model


@dataclass(frozen=True)
class Part:
    """One part of a loss: the sum over its targets, and how many (or how much) they are."""

    total: Tensor
    count: float


Loss = dict[str, Part]


def label_scores(model: Model, batch: Batch) -> Tensor:
    """A score for each label (B, C)."""
    assert not isinstance(model, EncoderDecoder), "a recipe's family is checked before"
    assert model.text is not None, "a recipe's head is checked before"
    if isinstance(model, Encoder) and model.embedding.segments is not None:
        hidden_BLD = model(batch.tokens_BL, batch.keep_BL, segments_BL=batch.segments_BL)
    else:
        hidden_BLD = model(batch.tokens_BL, batch.keep_BL)
    return model.text(hidden_BLD, batch.keep_BL)


def classify(model: Model, batch: Batch, *, smoothing: float) -> Loss:
    """Cross-entropy of the labels, each example counted by its weight; smoothing after Szegedy et al., 2016."""
    losses_B = F.cross_entropy(label_scores(model, batch), batch.labels_B, reduction="none", label_smoothing=smoothing)
    return {"labels": Part((losses_B * batch.weights_B).sum(), float(batch.weights_B.double().sum()))}
