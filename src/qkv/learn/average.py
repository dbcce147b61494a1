"""The mean of a model's weights at its last evaluations: often better than any of them (Vaswani et al., 2017, section
6.1, average the last 5 checkpoints)."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor

from qkv.model.transformer import Model

PREFIX = "average."  # before the names of such weights, in a checkpoint


def is_due(step: int, steps: int, every: int, last: int) -> bool:
    """Whether an evaluation at this step is one of so many last ones."""
    return -(-(steps - step) // every) < last


@torch.no_grad()
def include(average: dict[str, Tensor], model: Model, before: int) -> None:
    """Take the weights of a model into a mean of `before` others."""
    for name, weight in model.named_parameters():
        if before:
            average[name].lerp_(weight, 1.0 / (before + 1))
        else:
            average[name] = weight.detach().clone()


@torch.no_grad()
def with_weights(model: Model, average: Mapping[str, Tensor]) -> Model:
    """A copy of the model that has the mean weights; the model itself where there is no mean."""
    if not average:
        return model
    mean = copy.deepcopy(model)
    for name, weight in mean.named_parameters():
        weight.copy_(average[name])
    return mean


def average_tensors(average: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A mean as a checkpoint holds it."""
    return {PREFIX + name: weight for name, weight in average.items()}


def restored_average(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """And back. Copies: the tensors may be mapped to a file."""
    return {name.removeprefix(PREFIX): value.clone() for name, value in tensors.items() if name.startswith(PREFIX)}
