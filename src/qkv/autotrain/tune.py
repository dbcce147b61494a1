"""Hyper-parameter search for a table: random search around the recipe that `qkv train TABLE` would choose.

Each trial is scored by its validation loss: by cross-validation with the same folds for all trials, or on the
validation rows of a larger table. No trial is scored on test rows.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from qkv import disk, runtime
from qkv.autotrain.ladder import cross_validate_fine_tuned, scoring_of
from qkv.autotrain.plan import Plan
from qkv.config.recipe import TrainConfig
from qkv.schema import Say, UserError, override, silent
from qkv.streams import permutation, stream
from qkv.training.build import TrainingData, build_state, open_data
from qkv.training.loop import train

FACTORS = {"learning_rate": (0.5, 1, 2), "steps": (0.5, 1, 2)}  # of the value of trial 1
VALUES = {"token_dropout": (0.1, 0.25, 0.4), "layer_decay": (0.7, 0.8, 0.9)}
FOLLOW_STEPS = ("warmup", "eval_every")  # scaled as the steps are
SHORTEST, LONGEST = 1, 1440  # minutes of a search

Values = dict[str, float]  # by key of [train]


@dataclass(frozen=True)
class Trial:
    """One recipe and how it validated."""

    number: int
    settings: Values  # that differ from trial 1
    steps: int
    loss: float | None  # None: the training diverged
    score: float | None  # accuracy, or Pearson correlation
    seconds: float


@dataclass(frozen=True)
class Search:
    """The data of a table, how trials are validated, and the search space."""

    data: TrainingData
    folds: int  # 0: validated on the validation rows
    space: dict[str, tuple[float, ...]]
    fixed: frozenset[str]  # keys of [train] that the user set

    @property
    def base(self) -> TrainConfig:
        """[train] of trial 1."""
        return self.data.recipe.train

    @property
    def metric(self) -> str:
        """What the score of a trial is."""
        return scoring_of(self.data).metric

    @property
    def key(self) -> str:
        """A hash of table, pre-trained model, base recipe and search space: trials with equal keys are comparable."""
        recipe = self.data.recipe.model_dump(exclude={"runtime"})
        content = json.dumps([self.data.hashes(), recipe, self.folds, self.space], sort_keys=True, default=str)
        return hashlib.sha256(content.encode()).hexdigest()


def check_minutes(minutes: float) -> None:
    if not SHORTEST <= minutes <= LONGEST:
        raise UserError(f"--minutes {minutes:g}: must be from {SHORTEST} to {LONGEST}; for example --minutes 10")


def open_search(plan: Plan, settings: Sequence[str] = (), say: Say = silent) -> Search:
    """Read the data of a plan, and choose the search space around its recipe."""
    runtime.start(plan.recipe.runtime.threads)
    data = open_data(plan.recipe, say)
    if not plan.folds and not len(data.prepared.validation):
        raise UserError(
            f"data.validation = {plan.recipe.data.validation!r}: there are no validation rows to score trials on; "
            "accepted: split or a file: --set data.validation=split"
        )
    if data.pretrained is not None and data.pretrained.saw_all:
        say(f"note: {plan.recipe.init} was trained on all rows of its table; if they are these, validation says little")
    named = override({}, settings).get("train", {})
    fixed = frozenset(named) if isinstance(named, dict) else frozenset[str]()
    return Search(data, plan.folds, search_space(data.recipe.train, fixed), fixed)


def search_space(base: TrainConfig, fixed: frozenset[str]) -> dict[str, tuple[float, ...]]:
    """The values of each key that is searched. Keys that the user fixed are not."""
    scaled = {key: tuple(_scaled(getattr(base, key), by) for by in factors) for key, factors in FACTORS.items()}
    space = {key: tuple(dict.fromkeys(values)) for key, values in {**scaled, **VALUES}.items() if key not in fixed}
    if not base.steps:  # counted in epochs
        space.pop("steps", None)
    return space


def _scaled(value: float, factor: float) -> float:
    return max(1, round(value * factor)) if isinstance(value, int) else float(f"{value * factor:.3g}")


def candidates(search: Search) -> Iterator[Values]:
    """What differs from trial 1 in each trial: nothing in the first, then every other point of the search space in a
    random order that depends on the seed alone."""
    yield {}
    points = list(itertools.product(*search.space.values()))
    for number in permutation(stream(search.data.recipe.seed, "sample"), len(points)).tolist():
        point = dict(zip(search.space, points[number], strict=True))
        changed = {key: value for key, value in point.items() if value != getattr(search.base, key)}
        if changed:
            yield changed


def trial_settings(search: Search, changed: Values) -> Values:
    """The keys of [train] that a trial changes, with those that follow the number of steps."""
    if "steps" not in changed:
        return changed
    factor = changed["steps"] / search.base.steps
    following = [key for key in FOLLOW_STEPS if key not in search.fixed and getattr(search.base, key)]
    return {**changed, **{key: _scaled(getattr(search.base, key), factor) for key in following}}


def run_trials(
    search: Search, minutes: float, kept: Sequence[Trial] = (), clock: Callable[[], float] = time.monotonic
) -> Iterator[Trial]:
    """Run trials until the next one would exceed the budget, which also counts the seconds of kept trials. Trial 1
    always runs."""
    done = list(kept)
    for changed in candidates(search):
        if any(trial.settings == changed for trial in done):
            continue
        if done and not _fits(search, changed, done, 60 * minutes):
            return
        trial = _run(search, len(done) + 1, changed, clock)
        done.append(trial)
        yield trial


def _fits(search: Search, changed: Values, done: Sequence[Trial], budget: float) -> bool:
    """Whether a trial, estimated by the seconds per step of earlier trials, fits into the budget."""
    whole = [trial for trial in done if trial.loss is not None]
    per_step = sum(trial.seconds for trial in whole) / max(1, sum(trial.steps for trial in whole))
    return sum(trial.seconds for trial in done) + per_step * changed.get("steps", search.base.steps) <= budget


def _run(search: Search, number: int, changed: Values, clock: Callable[[], float]) -> Trial:
    """One trial. A training that diverges is a result, except in trial 1."""
    began, steps = clock(), int(changed.get("steps", search.base.steps))
    settings = {**search.base.model_dump(), **trial_settings(search, changed)}
    data = replace(search.data, recipe=search.data.recipe.replace(train=settings))
    loss: float | None
    score: float | None
    try:
        loss, score = validated(data, search.folds)
    except UserError:
        if not changed:
            raise
        loss = score = None
    return Trial(number, changed, steps, loss, score, clock() - began)


def validated(data: TrainingData, folds: int) -> tuple[float, float]:
    """Validation loss and score of a recipe: of its cross-validation, or of the weights that the training keeps."""
    if folds:
        rung = cross_validate_fine_tuned(data, folds)
        return rung.loss, rung.score
    state, _ = build_state(data)
    kept = [report.validation for report in train(state) if report.keep and report.validation is not None][-1]
    return kept.loss, kept.metrics[data.task.metrics[0].name]


def best_of(trials: Sequence[Trial]) -> Trial:
    """The trial with the lowest validation loss; of equal ones the first."""
    return min((trial for trial in trials if trial.loss is not None), key=lambda trial: trial.loss or 0.0)


class TrialLog:
    """Finished trials as JSON lines, each with the key of its search. Trials of other searches stay in the file."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def read(self) -> tuple[list[Trial], int]:
        """The finished trials of this search, and the number of trials of other searches. Half a line, which a crash
        left, is removed."""
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            disk.replace_file(self.path, whole)
        try:
            lines: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
            own = [Trial(**line["trial"]) for line in lines if line["search"] == self.key]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{self.path}: not a file of trials: {str(error)[:200]}; delete it") from None
        return own, len(lines) - len(own)

    def append(self, trial: Trial) -> None:
        """Keep a trial. It is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            file.write(json.dumps({"search": self.key, "trial": asdict(trial)}).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
