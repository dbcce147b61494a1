"""How weights move: AdamW, its groups, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from qkv.config import TrainConfig


def build_optimiser(model: nn.Module, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019), fused. Matrices decay towards 0, tables of tokens at a rate of their own;
    biases, norms and tables of positions do not."""
    decays = {"matrices": train.weight_decay, "tokens": train.table_decay, "others": 0.0}
    weights: dict[str, list[Tensor]] = {group: [] for group in decays}
    for name, weight in model.named_parameters():
        weights[_group(name, weight)].append(weight)
    groups = [{"params": weights[group], "weight_decay": decay} for group, decay in decays.items() if weights[group]]
    return torch.optim.AdamW(groups, lr=train.learning_rate, betas=(train.beta1, train.beta2), eps=1e-8, fused=True)


def _group(name: str, weight: Tensor) -> str:
    """A row of a table has a gradient only when its token occurs, but decays at every step: the rarer, the more."""
    if weight.ndim < 2 or name.endswith("positions.table"):
        return "others"
    return "tokens" if name.startswith(("embedding.", "target.")) else "matrices"


def _linear(done: float, step: int, warmup: int) -> float:
    return 1.0 - done


def _cosine(done: float, step: int, warmup: int) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * done))


def _inverse_sqrt(done: float, step: int, warmup: int) -> float:
    """The 2017 paper's, section 5.3, scaled so that it is 1 at the end of the warm-up."""
    return math.sqrt(max(warmup, 1) / max(step, 1))


def _constant(done: float, step: int, warmup: int) -> float:
    return 1.0


SCHEDULES: dict[str, Callable[[float, int, int], float]] = {
    "linear": _linear,
    "cosine": _cosine,
    "inverse_sqrt": _inverse_sqrt,
    "constant": _constant,
}


def learning_rate(step: int, train: TrainConfig, steps: int) -> float:
    """The learning rate of step 1, 2, ..., steps. Linear and cosine reach 0 one step after the last."""
    if step <= train.warmup:
        return train.learning_rate * step / train.warmup
    done = (step - train.warmup) / max(1, steps + 1 - train.warmup)
    return train.learning_rate * SCHEDULES[train.schedule](min(done, 1.0), step, train.warmup)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate


def optimiser_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """What AdamW remembers, by the name of the weight it is about."""
    state = optimiser.state
    return {f"{name}.{key}": value for name, weight in model.named_parameters() for key, value in state[weight].items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give AdamW back what it remembered. Copies: the tensors may be mapped to a file."""
    for name, weight in model.named_parameters():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}
        optimiser.state[weight].update({key: value for key, value in own.items() if "." not in key})
