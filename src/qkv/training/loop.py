"""The training loop: a generator of Reports. It knows no run folder, prints nothing, and can resume from any step.

Everything a step does is a function of its number and of the weights before it: which examples, which tokens are
masked, what dropout drops, the learning rate. So a loop that resumes from a saved state does what an uninterrupted one
does, to the bit.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.config.recipe import Recipe
from qkv.data.batch import Batch
from qkv.model.dropout import seed_dropout
from qkv.model.transformer import Model
from qkv.schema import UserError
from qkv.tasks.task import Dataset, Task, Validation
from qkv.training.averaging import averaged_model, include, is_due
from qkv.training.optim import build_optimiser, learning_rate, set_learning_rate


@dataclass
class Progress:
    """How far a training is, beside weights and optimiser. All of it is saved and restored."""

    step: int = 0
    seconds: float = 0.0
    totals: dict[str, list[float]] = field(default_factory=dict)  # loss part -> total and count since the last report
    tokens: int = 0  # without padding, since the last report
    training_seconds: float = 0.0  # since the last report, without validation
    best: float | None = None
    best_step: int | None = None  # of the weights that are kept: the best, or the last (train.keep); None: none yet
    temperature: float = 1.0  # of the model that is kept
    waited: int = 0  # validations since the best
    averaged: int = 0  # validations whose weights are in the average
    finished: bool = False


@dataclass(frozen=True)
class Report:
    """What happened at a step: a line of metrics, a validation, a reason to save; any of them, or several."""

    step: int
    steps: int
    line: dict[str, Any] | None = None
    validation: Validation | None = None
    is_best: bool = False  # the lowest validation loss so far
    keep: bool = False  # these weights replace those that the run kept before
    save: bool = False
    stopped: bool = False  # asked to stop before the end


@dataclass
class TrainState:
    """A model in training, with all that a checkpoint must hold."""

    model: Model
    recipe: Recipe
    task: Task
    train: Dataset
    validation: Dataset
    optimiser: torch.optim.AdamW
    progress: Progress
    average: dict[str, Tensor] = field(default_factory=dict)  # weights of the last validations, if they are averaged

    @property
    def kept_model(self) -> Model:
        """The model that is validated and kept: this one, or the average of its last states."""
        return averaged_model(self.model, self.average)

    @property
    def steps(self) -> int:
        """Optimiser steps of the whole training."""
        settings = self.recipe.train
        return settings.steps or settings.epochs * self.train.sampler.batches

    @property
    def eval_every(self) -> int:
        return self.recipe.train.eval_every or self.train.sampler.batches


def new_state(model: Model, recipe: Recipe, task: Task, train: Dataset, validation: Dataset) -> TrainState:
    """A training at step 0."""
    progress = Progress(temperature=recipe.train.temperature)
    return TrainState(model, recipe, task, train, validation, build_optimiser(model, recipe.train), progress)


def train(state: TrainState, stop: Callable[[], bool] = lambda: False) -> Iterator[Report]:
    """Train from where the state is until the end, or until `stop()` is true after a step."""
    progress, settings = state.progress, state.recipe.train
    if progress.best_step is None and progress.step == 0 and settings.fit_head:
        yield _fitted_head(state)
    while not progress.finished:
        started = time.perf_counter()
        rate = _step(state)
        progress.training_seconds += time.perf_counter() - started
        due = progress.step % state.eval_every == 0 or progress.step == state.steps
        if due and is_due(progress.step, state.steps, state.eval_every, settings.average):
            include(state.average, state.model, progress.averaged)
            progress.averaged += 1
        validation = validate(state) if due else None
        is_best, keep = _compare_best(state, validation) if due else (False, False)
        patient = settings.patience == 0 or progress.waited < settings.patience
        progress.finished = progress.step >= state.steps or not patient
        progress.seconds += time.perf_counter() - started
        line = None
        if due or progress.step % settings.report_every == 0 or progress.finished:
            line = _line(state, rate, validation)
        stopped = not progress.finished and stop()
        save = progress.finished or stopped or keep or progress.step % settings.save_every == 0
        yield Report(progress.step, state.steps, line, validation, is_best, keep, save, stopped)
        if stopped:
            return


def _fitted_head(state: TrainState) -> Report:
    """Step 0: the output layer is fitted to the vectors of the model as it is. The result is the first candidate."""
    started = time.perf_counter()
    state.task.fit_head(state.model.eval(), state.train, state.recipe)
    validation = validate(state)
    is_best, keep = _compare_best(state, validation)
    state.progress.finished = state.steps == 0
    state.progress.seconds += time.perf_counter() - started
    return Report(0, state.steps, None, validation, is_best, keep, save=True)


@torch.no_grad()
def validate(state: TrainState) -> Validation | None:
    """Metrics of the validation set; None where it is empty."""
    if not len(state.validation):
        return None
    model = state.kept_model
    was_training = model.training
    found = state.task.validate(model.eval(), state.validation)
    model.train(was_training)
    return found


def batches_of(state: TrainState, step: int) -> list[Batch]:
    """The micro-batches of step `step` (from 0). A function of the number alone."""
    epoch, examples_B = state.train.sampler.batch(step)
    pieces = np.array_split(examples_B, state.recipe.train.micro_batches)
    return [state.train.collate(piece, epoch) for piece in pieces if len(piece)]


def _step(state: TrainState) -> float:
    """One optimiser step. The loss of each micro-batch is a total; it is divided by the counts of all micro-batches
    together, so that 8 x 1 = 4 x 2. Returns the learning rate."""
    model, progress, recipe = state.model, state.progress, state.recipe
    batches = batches_of(state, progress.step)
    model.train()
    state.optimiser.zero_grad(set_to_none=True)
    counts = _summed(batch.counts for batch in batches)
    sums: Counter[str] = Counter()
    for number, batch in enumerate(batches):
        seed_dropout(recipe.seed, progress.step, number)
        totals = state.task.loss(model, batch, recipe)
        values = {part: total.item() for part, total in totals.items()}
        for part, value in values.items():
            if not math.isfinite(value):
                what = "loss" if len(values) == 1 else f"{part} loss"
                raise UserError(_not_finite(progress.step + 1, what, value, batch, recipe))
        loss = sum((total / counts[part] for part, total in totals.items() if counts[part]), start=torch.zeros(()))
        if loss.requires_grad:  # there is a target
            loss.backward()
        sums.update(values)
        progress.tokens += batch.real_tokens
    weights = [weight for weight in model.parameters() if weight.grad is not None]
    norm = torch.nn.utils.clip_grad_norm_(weights, recipe.train.clip or math.inf, foreach=True).item()
    if not math.isfinite(norm):
        raise UserError(_not_finite(progress.step + 1, "gradient", norm, batches[0], recipe))
    progress.step += 1
    rate = learning_rate(progress.step, recipe.train, state.steps)
    set_learning_rate(state.optimiser, rate)
    state.optimiser.step()
    for part, count in counts.items():
        before = progress.totals.setdefault(part, [0.0, 0.0])
        progress.totals[part] = [before[0] + sums[part], before[1] + count]
    return rate


def _summed(tables: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Tables of numbers, added key by key, each sum exact."""
    columns: dict[str, list[float]] = {}
    for table in tables:
        for key, value in table.items():
            columns.setdefault(key, []).append(value)
    return {key: math.fsum(values) for key, values in columns.items()}


def _not_finite(step: int, what: str, value: float, batch: Batch, recipe: Recipe) -> str:
    examples = ", ".join(str(n) for n in batch.examples_B[:8].tolist())
    return (
        f"step {step}: the {what} is {value}, so the weights were not updated; examples {examples}, ...; "
        f"try a smaller train.learning_rate (now {recipe.train.learning_rate}) or a longer train.warmup "
        f"(now {recipe.train.warmup})"
    )


def _compare_best(state: TrainState, validation: Validation | None) -> tuple[bool, bool]:
    """Is this the best model so far, and is it the one to keep? Updates the best loss, and how many validations ago it
    was."""
    progress = state.progress
    is_best = validation is not None and (progress.best is None or validation.loss < progress.best)
    progress.waited = 0 if is_best or validation is None else progress.waited + 1
    if not is_best and validation is not None and state.recipe.train.keep == "best":
        return False, False
    progress.best_step = progress.step
    if validation is not None:
        progress.best = min(validation.loss, math.inf if progress.best is None else progress.best)
        progress.temperature = validation.temperature
    return is_best, True


def _line(state: TrainState, rate: float, validation: Validation | None) -> dict[str, Any]:
    """A line of metrics.jsonl. Resets what is summed between two lines."""
    progress = state.progress
    means = {part: total / count for part, (total, count) in progress.totals.items() if count}
    parts = {f"{part}_loss": mean for part, mean in means.items()} if len(progress.totals) > 1 else {}
    busy = progress.training_seconds
    line: dict[str, Any] = {
        "step": progress.step,
        "epoch": progress.step / state.train.sampler.batches,
        "loss": sum(means.values()),
        **parts,
        "learning_rate": rate,
        "tokens_per_second": progress.tokens / busy if busy else 0.0,
        "seconds": progress.seconds,
    }
    if validation is not None:
        found = {"loss": validation.loss, **validation.metrics}
        line |= {f"validation_{name}": value for name, value in found.items()}
    progress.totals, progress.tokens, progress.training_seconds = {}, 0, 0.0
    return line
