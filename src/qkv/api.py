"""The public Python functions: `qkv.load(run)`, `qkv.train(recipe)`, `qkv.evaluate(run)`."""

from __future__ import annotations

import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path

from qkv.bundled import path_of
from qkv.config import recipes
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.corpus import open_corpus
from qkv.metrics import TestMetrics
from qkv.predict.predictor import Predictor, load_predictor
from qkv.run.folder import Run
from qkv.schema import Say, UserError, silent
from qkv.tasks import TASKS, task_for
from qkv.training.loop import Report
from qkv.training.trainer import open_trainer


def load(run: str | PathLike[str]) -> Predictor:
    """A model from a run or a Hugging Face folder, or a bundled one by its name: `.predict(texts)`, `.embed(texts)`,
    `.model`, `.config`."""
    return load_predictor(path_of(os.fspath(run)))


def train(
    recipe: str | PathLike[str] | Recipe,
    output: str | PathLike[str] | None = None,
    *,
    settings: list[str] | None = None,
    say: Say = silent,
    on_report: Callable[[Report], None] = lambda report: None,
) -> Predictor:
    """Train a recipe (a name, a TOML file or a Recipe) in a folder (default runs/NAME), or resume it there; and load
    the result. `settings` override keys, as `train.epochs=2`. `say` receives messages (`say=print`)."""
    if isinstance(recipe, Recipe) and settings:
        raise UserError("settings are for a recipe's name or file; change a Recipe with its replace()")
    resolved = recipe if isinstance(recipe, Recipe) else recipes.resolve(os.fspath(recipe), settings or ())
    if isinstance(recipe, Recipe) and output is None:
        raise UserError("output: name a folder for the run, for example output='runs/mine'")
    folder = Path(output) if output is not None else default_output(os.fspath(recipe))  # type: ignore[arg-type]
    with open_trainer(resolved, folder, say) as trainer:
        for note in trainer.notes:
            say(f"note: {note}")
        for report in trainer.reports():
            on_report(report)
        trainer.finish()
    return load(folder)


def default_output(recipe: str) -> Path:
    """runs/NAME, for a recipe's name or file."""
    return Path("runs") / Path(recipe).name.removesuffix(".toml")


def evaluate(run: str | PathLike[str], data: str | None = None, say: Say = silent) -> TestMetrics:
    """Metrics of a run on its own test set, or of any model on a file with the columns that its recipe names. Under
    "all": ClassificationMetrics of a classifier, Metrics of any other model."""
    path = path_of(os.fspath(run))
    predictor, own = load(path), Run(path).recipe
    if data is None:
        if own is None or not Run(path).begun:
            raise UserError(f"{path}: has no test set of its own; give --data FILE")
        task = TASKS[own.task]
        corpus = open_corpus(own.data, task.format(own), say)
        if corpus.data_hash != Run(path).data_hash():
            raise UserError(f"{path}: its data has changed since, and with it the test set; give --data FILE")
        return task.test(predictor, corpus.labelled(["test"]), own, say)
    fitting = task_for(predictor.config)
    if fitting is None:
        raise UserError(f"{path}: has no head, so there is nothing to evaluate")
    settings = (own.data if own is not None else DataConfig()).replace(
        corpus=data, validation="split", test="split", group="none"
    )
    corpus = open_corpus(settings, fitting.format(own or Recipe()), say)
    return fitting.test(predictor, corpus.labelled(["train", "validation", "test"]), own, say)
