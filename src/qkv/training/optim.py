"""AdamW, its parameter groups, and the learning rate as a pure function of the step."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from qkv.config.recipe import TrainConfig
from qkv.schema import UserError


def build_optimiser(model: nn.Module, train: TrainConfig) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019), fused. Weight decay applies to matrices, and at a rate of its own to token
    embeddings; not to biases, norms and position embeddings. With `layer_decay` (Howard and Ruder, 2018) each layer has
    a smaller learning rate than the one above it. Frozen weights are in no group."""
    decays = {"matrices": train.weight_decay, "tokens": train.embedding_decay, "others": 0.0}
    heights = {name: _height(name) for name, _ in model.named_parameters()}
    top = 1 + max(height for height in heights.values() if height is not None)
    groups: dict[tuple[str, int], list[Tensor]] = {}
    for name, weight in model.named_parameters():
        height = heights[name]
        above = top if height is None else height  # the heads are above all layers
        weight.requires_grad_(above >= train.freeze)
        if weight.requires_grad:
            below_top = 0 if train.layer_decay == 1.0 else top - above
            groups.setdefault((_group(name, weight), below_top), []).append(weight)
    if not groups:
        raise UserError(f"train.freeze = {train.freeze}: nothing is left to train; accepted: 0 to {top}")
    tables = [
        {"params": weights, "weight_decay": decays[kind], "scale": train.layer_decay**below}
        for (kind, below), weights in sorted(groups.items(), key=lambda item: item[0])
    ]
    return torch.optim.AdamW(tables, lr=train.learning_rate, betas=(train.beta1, train.beta2), eps=1e-8, fused=True)


def _height(name: str) -> int | None:
    """0 for what comes before the first layer, 1 for that layer, ...; None for what comes after the last."""
    layer = re.search(r"\bblocks\.(\d+)\.", name)
    if layer:
        return 1 + int(layer[1])
    before = name.startswith(("embedding.", "target.")) or re.search(r"\b(embedding_norm|positions)\.", name)
    return 0 if before else None


def _group(name: str, weight: Tensor) -> str:
    """A token embedding has a gradient only where its token occurs, but decays at every step: rare ones most."""
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
    """The learning rate of step 1, 2, ..., steps. Linear and cosine reach 0 one step after the last. A short training
    warms up for half of its steps at most."""
    warmup = min(train.warmup, max(1, steps // 2))
    if step <= warmup:
        return train.learning_rate * step / warmup
    done = (step - warmup) / max(1, steps + 1 - warmup)
    return train.learning_rate * SCHEDULES[train.schedule](min(done, 1.0), step, warmup)


def set_learning_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = rate * group["scale"]


def optimiser_tensors(optimiser: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The state of AdamW, by the name of the weight."""
    state = optimiser.state
    return {f"{name}.{key}": value for name, weight in model.named_parameters() for key, value in state[weight].items()}


def restore_optimiser(optimiser: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state of AdamW. Copies: the tensors may be mapped to a file."""
    for name, weight in model.named_parameters():
        prefix = f"{name}."
        own = {key.removeprefix(prefix): value.clone() for key, value in tensors.items() if key.startswith(prefix)}
        optimiser.state[weight].update({key: value for key, value in own.items() if "." not in key})
