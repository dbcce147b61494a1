"""The public Python functions: `qkv.load(run)`, `qkv.train(recipe)`, `qkv.evaluate(run)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from qkv.autotrain.frames import rows_of, write_rows
from qkv.autotrain.plan import is_table
from qkv.autotrain.run import recipe_for
from qkv.config import recipes
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.corpus import NONE, SPLIT, Corpus, RowFormat, open_corpus
from qkv.corpus.files import Columns, column_names, find
from qkv.corpus.formats import MissingColumn
from qkv.corpus.overlap import overlap, own_corpus
from qkv.corpus.split import SPLITS
from qkv.hub import path_of
from qkv.metrics import TestMetrics
from qkv.predict.predictor import Predictor, load_predictor
from qkv.predict.table import TableJob, choose_columns, model_hash, open_job
from qkv.run.folder import Run
from qkv.schema import Say, UserError, silent
from qkv.tasks import TASKS, task_for
from qkv.tasks.task import Keep, Labelled, Task
from qkv.training.loop import Report
from qkv.training.trainer import open_trainer


def load(run: str | PathLike[str]) -> Predictor:
    """A model from a run, a Hugging Face folder or a name of `qkv models list`: `.predict(texts)`, `.embed(texts)`,
    `.model`, `.config`."""
    return load_predictor(path_of(os.fspath(run)))


def open_table_job(
    run: str | PathLike[str],
    file: Path,
    column: str | None = None,
    pair: str | None = None,
    options: dict[str, Any] | None = None,
    say: Say = silent,
) -> TableJob:
    """A prediction for every row of a table, to be written by `predict.table`: texts are those of `column`, for a model
    of pairs also of `pair`. Without a name the columns are those of the run's recipe, or found in the table."""
    path = path_of(os.fspath(run))
    predictor, recipe = load(path), Run(path).recipe
    own = (
        None if recipe is None else Columns(recipe.data.text, None if recipe.data.pair == "none" else recipe.data.pair)
    )
    given = Columns(column, pair) if column is not None else None
    columns = choose_columns(file, column_names(find(str(file))), given, own, say)
    columns = Columns(columns.text, pair or columns.pair, None)
    return open_job(predictor, file, columns, model_hash(path), options or {})


def train(
    recipe: str | PathLike[str] | Recipe | Any,
    output: str | PathLike[str] | None = None,
    *,
    settings: list[str] | None = None,
    columns: Mapping[str, str | None] | None = None,
    test: str | None = None,
    say: Say = silent,
    on_report: Callable[[Report], None] = lambda report: None,
) -> Predictor:
    """Train in a folder (default runs/NAME), or resume there, and load the result.

    `recipe` is a recipe (a name, a TOML file or a Recipe) or a table: a file, a DataFrame of pandas or polars, or
    (texts, labels). Of a table all hyper-parameters are chosen by its data; `columns` names its columns where they are
    not found ({"text": "message", "label": "team"}), and `test` a file with test rows. `settings` override keys, as
    `train.epochs=2`. `say` receives messages (`say=print`)."""
    if isinstance(recipe, Recipe) and settings:
        raise UserError("settings are for a recipe's name or file; change a Recipe with its replace()")
    source = os.fspath(recipe) if isinstance(recipe, str | PathLike) else ""
    if not source and output is None:
        raise UserError("output: name a folder for the run, for example output='runs/mine'")
    folder = Path(output) if output is not None else default_output(source)
    if not source and not isinstance(recipe, Recipe):
        source = str(folder / "data" / "table.jsonl")
        write_rows(Path(source), rows_of(recipe), folder)
    comparison = None
    if isinstance(recipe, Recipe):
        resolved = recipe
    elif is_table(source) and source not in recipes.names():
        resolved, comparison = recipe_for(source, folder, columns or {}, settings or (), test=test, say=say)
    else:
        resolved = recipes.resolve(source, settings or ())
    with open_trainer(resolved, folder, say, comparison) as trainer:
        for note in trainer.notes:
            say(f"note: {note}")
        for report in trainer.reports():
            on_report(report)
        trainer.finish()
    return load(folder)


def default_output(recipe: str) -> Path:
    """runs/NAME, for a recipe's name or file, or for a table."""
    name = Path(recipe).name
    return Path("runs") / (name.removesuffix(".toml").partition(".")[0] or name)


def evaluate(
    run: str | PathLike[str],
    data: str | None = None,
    say: Say = silent,
    *,
    columns: Mapping[str, str] | None = None,
    keep: Keep | None = None,
) -> TestMetrics:
    """Metrics of a run on its own test set, or of any model on a file with the columns that its recipe names, or that
    `columns` names in their place: {"text": "message", "label": "team"}; also `pair` and `target`. Under "all":
    ClassificationMetrics of a classifier, Metrics of any other model. `keep` gets each row with its prediction."""
    path = path_of(os.fspath(run))
    predictor, own = load(path), Run(path).recipe
    if data is None:
        if columns:
            raise UserError(f"--{next(iter(columns))}: names a column of other data; give it with --data FILE")
        if own is None or not Run(path).begun:
            raise UserError(f"{path}: has no test set of its own; give --data FILE")
        if own.data.test == NONE:
            raise UserError(f"{path}: was trained on all its rows (data.test = none); give other rows with --data FILE")
        task = TASKS[own.task]
        corpus = open_corpus(own.data, task.format(own), say)
        if corpus.data_hash != Run(path).data_hash():
            raise UserError(f"{path}: its data has changed since, and with it the test set; give --data FILE")
        held_out = "held out by a hash of the text" if own.data.test == SPLIT else f"of {own.data.test}"
        say(f"note: the rows are the test set of {own.data.corpus}, {held_out}; the model was not trained on them")
        return _tested(task, predictor, corpus.labelled(["test"], predictor.labels), own, say, keep)
    fitting = task_for(predictor.config)
    if fitting is None:
        raise UserError(f"{path}: has no head, so there is nothing to evaluate")
    settings = (own.data if own is not None else DataConfig()).replace(
        **{"corpus": data, "validation": SPLIT, "test": SPLIT, "group": "none", **(columns or {})}
    )
    format = fitting.format(own or Recipe())
    try:
        corpus = open_corpus(settings, format, say)
        if own is not None:
            _say_overlap(corpus, own, format, say)
        return _tested(fitting, predictor, corpus.labelled(SPLITS), own, say, keep)
    except MissingColumn as error:
        option = "target" if format.aligned and error.column == "pair" else error.column
        raise error.advise(f"--{option}") from None


def _tested(
    task: Task, predictor: Predictor, rows: Iterable[Labelled], own: Recipe | None, say: Say, keep: Keep | None
) -> TestMetrics:
    if keep is None:
        return task.test(predictor, rows, own, say)
    if task.test_keeping is None:
        raise UserError("--errors: only a classifier has wrong rows; this model is evaluated by other metrics")
    return task.test_keeping(predictor, rows, own, say, keep)


def _say_overlap(corpus: Corpus, own: Recipe, format: RowFormat, say: Say) -> None:
    """Say how many rows the model has been trained on."""
    trained_on = own_corpus(own.data, format)
    if trained_on is None:
        say(f"note: {own.data.corpus}, which this run was trained on, is not here: not compared with its training rows")
        return
    found = overlap((row for _, row in corpus.rows()), trained_on)
    if found.rows:
        say(str(found))
