"""The one loop: a generator of Reports. It knows no run folder, prints nothing, and can go on from any step.

Everything a step does is a function of its number and of the weights before it: which examples, which are hidden, what
dropout drops, how fast to learn. So a loop that goes on from a saved state does what an uninterrupted one does, to the
bit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from qkv.config import Recipe
from qkv.data.batch import Batch
from qkv.learn.average import include, is_due, with_weights
from qkv.learn.evaluate import Evaluation, evaluate
from qkv.learn.material import Material
from qkv.learn.objectives import Totals, classify, fill, grade, guess_next
from qkv.learn.optim import build_optimiser, learning_rate, set_learning_rate
from qkv.model.dropout import seed_dropout
from qkv.model.transformer import Model
from qkv.schema import UserError


@dataclass
class Progress:
    """Where a training stands, beside weights and optimiser: all of it is saved and restored."""

    step: int = 0
    seconds: float = 0.0
    totals: dict[str, list[float]] = field(default_factory=dict)  # loss part -> total and count since the last report
    tokens: int = 0  # real ones since the last report
    learning_seconds: float = 0.0  # since the last report, evaluations not counted
    best: float | None = None
    best_step: int = 0
    temperature: float = 1.0  # of the model that is kept
    waited: int = 0  # evaluations since the best
    averaged: int = 0  # evaluations whose weights are in the mean
    finished: bool = False


@dataclass(frozen=True)
class Report:
    """What happened at a step: a line of metrics, an evaluation, a reason to save; any of them, or several."""

    step: int
    steps: int
    line: dict[str, Any] | None = None
    evaluation: Evaluation | None = None
    is_best: bool = False
    save: bool = False
    stopped: bool = False  # asked to stop before the end


@dataclass
class Learner:
    """A model on its way, with all that a checkpoint must hold."""

    model: Model
    recipe: Recipe
    train: Material
    validation: Material
    loss: Callable[[Model, Any], Totals]
    optimiser: torch.optim.AdamW
    progress: Progress
    average: dict[str, Tensor] = field(default_factory=dict)  # mean weights of the last evaluations, if they are wanted

    @property
    def shown(self) -> Model:
        """The model that is judged and shipped: this one, or the mean of its last states."""
        return with_weights(self.model, self.average)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        settings = self.recipe.train
        return settings.steps or settings.epochs * self.train.sampler.batches

    @property
    def eval_every(self) -> int:
        return self.recipe.train.eval_every or self.train.sampler.batches


def new_learner(model: Model, recipe: Recipe, train: Material, validation: Material) -> Learner:
    """A learner at step 0."""
    return Learner(model, recipe, train, validation, loss_of(recipe), build_optimiser(model, recipe.train), Progress())


def loss_of(recipe: Recipe) -> Callable[[Model, Any], Totals]:
    """What a recipe minimises."""
    if recipe.task == "fill":
        return fill
    if recipe.task in ("complete", "translate"):
        return partial(guess_next, smoothing=recipe.train.label_smoothing)
    return grade if recipe.model.head == "grade" else partial(classify, smoothing=recipe.train.label_smoothing)


def train(learner: Learner, stop: Callable[[], bool] = lambda: False) -> Iterator[Report]:
    """Learn from where the learner stands until the end, or until `stop()` says so after a step."""
    progress, settings = learner.progress, learner.recipe.train
    while not progress.finished:
        started = time.perf_counter()
        rate = _step(learner)
        progress.learning_seconds += time.perf_counter() - started
        due = progress.step % learner.eval_every == 0 or progress.step == learner.steps
        if due and is_due(progress.step, learner.steps, learner.eval_every, settings.average):
            include(learner.average, learner.model, progress.averaged)
            progress.averaged += 1
        evaluation = evaluate(learner.shown, learner.validation) if due else None
        is_best = due and _judge(learner, evaluation)
        patient = settings.patience == 0 or progress.waited < settings.patience
        progress.finished = progress.step >= learner.steps or not patient
        progress.seconds += time.perf_counter() - started
        line = None
        if due or progress.step % settings.report_every == 0 or progress.finished:
            line = _line(learner, rate, evaluation)
        stopped = not progress.finished and stop()
        save = progress.finished or stopped or is_best or progress.step % settings.save_every == 0
        yield Report(progress.step, learner.steps, line, evaluation, is_best, save, stopped)
        if stopped:
            return


def _step(learner: Learner) -> float:
    """One optimiser step: gradients of all micro-batches, divided once by what they count together."""
    model, progress, recipe = learner.model, learner.progress, learner.recipe
    _, batches = learner.train.step(progress.step)
    model.train()
    learner.optimiser.zero_grad(set_to_none=True)
    counts = _summed(batch.counts for batch in batches)
    sums: Counter[str] = Counter()
    for number, batch in enumerate(batches):
        seed_dropout(recipe.seed, progress.step, number)
        totals = learner.loss(model, batch)
        values = {part: total.item() for part, total in totals.items()}
        for part, value in values.items():
            if not math.isfinite(value):
                what = "loss" if len(values) == 1 else f"{part} loss"
                raise UserError(_not_finite(progress.step + 1, what, value, batch, recipe))
        loss = sum((total / counts[part] for part, total in totals.items() if counts[part]), start=torch.zeros(()))
        if loss.requires_grad:  # there is something to guess
            loss.backward()
        sums.update(values)
        progress.tokens += batch.real_tokens
    size = torch.nn.utils.clip_grad_norm_(_gradients(model), recipe.train.clip or math.inf, foreach=True).item()
    if not math.isfinite(size):
        raise UserError(_not_finite(progress.step + 1, "gradient", size, batches[0], recipe))
    progress.step += 1
    rate = learning_rate(progress.step, recipe.train, learner.steps)
    set_learning_rate(learner.optimiser, rate)
    learner.optimiser.step()
    for part, count in counts.items():
        so_far = progress.totals.setdefault(part, [0.0, 0.0])
        progress.totals[part] = [so_far[0] + sums[part], so_far[1] + count]
    return rate


def _summed(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Tables of numbers, added key by key, each sum exact."""
    columns: dict[str, list[float]] = {}
    for table in tables:
        for key, value in table.items():
            columns.setdefault(key, []).append(value)
    return {key: math.fsum(values) for key, values in columns.items()}


def _gradients(model: Model) -> list[Tensor]:
    return [weight for weight in model.parameters() if weight.grad is not None]


def _not_finite(step: int, what: str, value: float, batch: Batch, recipe: Recipe) -> str:
    examples = ", ".join(str(n) for n in batch.numbers_B[:8].tolist())
    return (
        f"step {step}: the {what} is {value}, so the step was not made; examples {examples}, ...; "
        f"a smaller train.learning_rate (now {recipe.train.learning_rate}) or a longer train.warmup "
        f"(now {recipe.train.warmup}) usually helps"
    )


def _judge(learner: Learner, evaluation: Evaluation | None) -> bool:
    """Is this the model to keep? Remembers the best, and how long it has been waiting for a better one."""
    progress = learner.progress
    improved = evaluation is None or progress.best is None or evaluation.loss < progress.best
    progress.waited = 0 if improved else progress.waited + 1
    if not improved and learner.recipe.train.keep == "best":
        return False
    progress.best_step = progress.step
    if evaluation is not None:
        progress.best = min(evaluation.loss, math.inf if progress.best is None else progress.best)
        progress.temperature = evaluation.temperature
    return True


def _line(learner: Learner, rate: float, evaluation: Evaluation | None) -> dict[str, Any]:
    """A line of metrics.jsonl, and a new start for what is summed between two lines."""
    progress = learner.progress
    means = {part: total / count for part, (total, count) in progress.totals.items() if count}
    busy = progress.learning_seconds
    line: dict[str, Any] = {
        "step": progress.step,
        "epoch": progress.step / learner.train.sampler.batches,
        "loss": sum(means.values()),
        **({f"{part}_loss": mean for part, mean in means.items()} if learner.recipe.task == "fill" else {}),
        "learning_rate": rate,
        "tokens_per_second": progress.tokens / busy if busy else 0.0,
        "seconds": progress.seconds,
    }
    if evaluation is not None:
        judged = {"loss": evaluation.loss, **evaluation.figures}
        line |= {f"validation_{name}": value for name, value in judged.items()}
    progress.totals, progress.tokens, progress.learning_seconds = {}, 0, 0.0
    return line
