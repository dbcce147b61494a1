"""The same from Python: `qkv.load(run)`, `qkv.train(recipe)`, `qkv.evaluate(run)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path

from qkv import recipes
from qkv.bundled import path_of
from qkv.config import DataConfig, Family, Recipe, Task
from qkv.data.source import open_source
from qkv.learn.finish import finish, test_rows
from qkv.learn.metrics import Findings
from qkv.learn.score import score
from qkv.learn.session import Session, open_session
from qkv.learn.setup import check_recipe
from qkv.learn.train import Report
from qkv.predict import Predictor, load_predictor
from qkv.run import Run
from qkv.schema import UserError

Say = Callable[[str], None]
TASK_OF_FAMILY: dict[Family, Task] = {"encoder": "fill", "decoder": "complete", "encoder-decoder": "translate"}


def _silent(sentence: str) -> None:
    pass


def load(run: str | PathLike[str]) -> Predictor:
    """A model from a run or a Hugging Face folder, or a bundled one by its name: `.predict(texts)`, `.embed(texts)`,
    `.model`, `.config`."""
    return load_predictor(path_of(os.fspath(run)))


@contextmanager
def training(recipe: Recipe, output: Path, say: Say = _silent) -> Iterator[Session]:
    """A training in a folder, begun or resumed, with the folder locked. `session.reports()` does the work."""
    check_recipe(recipe)
    with Run(output).lock():
        yield open_session(recipe, output, say)


def train(
    recipe: str | PathLike[str] | Recipe,
    output: str | PathLike[str] | None = None,
    *,
    settings: list[str] | None = None,
    say: Say = _silent,
    on_report: Callable[[Report], None] = lambda report: None,
) -> Predictor:
    """Train a recipe (a name, a TOML file or a Recipe) in a folder (default runs/NAME), or go on where it stopped; and
    load what came out. `settings` are dotted, as `train.epochs=2`; `say` is told, in sentences, what is being done and
    what to know (`say=print`)."""
    if isinstance(recipe, Recipe) and settings:
        raise UserError("settings are for a recipe's name or file; a Recipe is changed by its replace()")
    resolved = recipe if isinstance(recipe, Recipe) else recipes.resolve(os.fspath(recipe), settings or ())
    if isinstance(recipe, Recipe) and output is None:
        raise UserError("output: say where the run goes, for example output='runs/mine'")
    folder = Path(output) if output is not None else default_output(os.fspath(recipe))  # type: ignore[arg-type]
    with training(resolved, folder, say) as session:
        for note in session.notes:
            say(f"note: {note}")
        for report in session.reports():
            on_report(report)
        finish(session)
    return load(folder)


def default_output(recipe: str) -> Path:
    """runs/NAME, for a recipe's name or file."""
    return Path("runs") / Path(recipe).name.removesuffix(".toml")


def evaluate(run: str | PathLike[str], data: str | None = None, say: Say = _silent) -> Findings:
    """What a run is worth on its own test rows, or any model on a file with the columns its recipe names: Scores of a
    classifier, Figures of a model that gives grades or fills in words."""
    path = path_of(os.fspath(run))
    predictor = load(path)
    head, family = predictor.config.head, predictor.config.family
    if head == "none":
        raise UserError(f"{path}: has no head, so there is nothing to evaluate")
    own = Run(path).recipe
    if data is None:
        if own is None or not Run(path).begun:
            raise UserError(f"{path}: is no run with a recipe that says what to evaluate on; give --data FILE")
        source = open_source(own.data, say, own.task)
        if source.data_hash != Run(path).data_hash():
            raise UserError(f"{path}: its data has changed since, so its test rows are others; give --data FILE")
        return score(predictor, test_rows(source), own, say)
    task: Task = "classify" if head in ("classes", "grade") else TASK_OF_FAMILY[family]
    settings = own.data if own is not None else DataConfig()
    source = open_source(settings.replace(corpus=data, validation="split", test="split", group="none"), say, task)
    return score(predictor, ((source.label_of(row), row) for _, row in source.rows()), own, say)
