"""Checkpoint averaging: the mean of the weights at the last validations, often better than any of them (Vaswani et al.,
2017, section 6.1, average the last 5 checkpoints)."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.model.transformer import Model

PREFIX = "average."  # of their names in a checkpoint


def is_due(step: int, steps: int, every: int, last: int) -> bool:
    """Whether a validation at this step is among the last so many."""
    return -(-(steps - step) // every) < last


@torch.no_grad()
def include(average: dict[str, Tensor], model: Model, before: int) -> None:
    """Add the weights of a model to the mean of `before` others."""
    for name, weight in model.named_parameters():
        if before:
            average[name].lerp_(weight, 1.0 / (before + 1))
        else:
            average[name] = weight.detach().clone()


@torch.no_grad()
def averaged_model(model: Model, average: Mapping[str, Tensor]) -> Model:
    """A copy of the model with the averaged weights; the model itself where there are none."""
    if not average:
        return model
    mean = copy.deepcopy(model)
    for name, weight in mean.named_parameters():
        weight.copy_(average[name])
    return mean


def average_tensors(average: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Averaged weights as a checkpoint holds them."""
    return {PREFIX + name: weight for name, weight in average.items()}


def restore_average(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """And back. Copies: the tensors may be mapped to a file."""
    return {name.removeprefix(PREFIX): value.clone() for name, value in tensors.items() if name.startswith(PREFIX)}
