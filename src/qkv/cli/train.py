"""`qkv train`: train a recipe, or resume it."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from qkv import disk
from qkv.cli.console import SECONDS_BETWEEN_LINES, Settings, say, stdout
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.config.recipe import Recipe
    from qkv.metrics import TestMetrics
    from qkv.training.comparison import BaselineComparison
    from qkv.training.loop import Report
    from qkv.training.trainer import Trainer


def train(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="TABLE|RECIPE",
            help="A table of texts and labels (CSV, TSV, JSON lines, Parquet, a folder), a recipe's name, or a TOML "
            "file. Without one: list recipes.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="RUN", help="Run folder; default runs/NAME.")
    ] = None,
    settings: Settings = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Text column of a table.")] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Label column of a table.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="COLUMN", help="Second text of a pair.")] = None,
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Test set of a table: a file with the same columns.")
    ] = None,
    save_recipe: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the recipe that is chosen for a table, and do not train."),
    ] = None,
    help_recipe: Annotated[bool, typer.Option("--help-recipe", help="Explain every key of a recipe.")] = False,
) -> None:
    """Train a model, or resume: the same command continues an interrupted run. Ctrl-C stops safely.

    Of a table, the columns, the task, the pre-trained model and all hyper-parameters are chosen by its data."""
    from qkv.config import recipes

    if help_recipe:
        explain_recipe()
        return
    if recipe is None:
        for name in recipes.names():
            print(f"{name}\n  {recipes.promise(name)}")
        return
    from qkv.api import default_output
    from qkv.autotrain.plan import is_table

    columns = {"text": text, "label": label, "pair": pair}
    if recipe not in recipes.names() and is_table(recipe):
        folder = output or default_output(recipe)
        raise typer.Exit(_train_table(recipe, folder, columns, settings or [], test, save_recipe))
    _refuse_table_options(recipe, {**columns, "test": test, "save-recipe": save_recipe})
    folder = output or default_output(recipe)
    code, found = run_training(recipes.resolve(recipe, settings or ()), folder)
    show_result(folder, code, found)
    raise typer.Exit(code)


def _refuse_table_options(recipe: str, options: dict[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise UserError(f"--{name} is for a table; {recipe[:200]} is a recipe: set its keys with --set")


def show_result(folder: Path, code: int, found: TestMetrics | None) -> None:
    """Metrics of a finished run, and what it is worth over a linear model."""
    from qkv.cli.eval import show_metrics
    from qkv.training.comparison import read_comparison

    if found is not None:
        comparison = read_comparison(folder)
        crossed = comparison is not None and comparison.figures is not None
        show_metrics(stdout(), found, details=False, rows="cross-validated" if crossed else "test")
        if comparison is not None and (verdict := comparison.verdict_on(found)) is not None:
            print(verdict)
    if code == 0:
        print(f"{folder}: done; learning curves: curves.png, model card: README.md")


def _train_table(
    source: str,
    folder: Path,
    columns: dict[str, str | None],
    settings: list[str],
    test: str | None,
    save_recipe: Path | None,
) -> int:
    """Choose a recipe for a table, compare simpler models, train; or resume the run that is there. The exit code."""
    from qkv.autotrain.plan import plan_table
    from qkv.autotrain.run import recipe_for

    if save_recipe is not None:
        if save_recipe.exists():
            raise UserError(f"--save-recipe {save_recipe}: already exists; choose another name")
        plan = plan_table(source, columns, settings, test=test, say=say)
        try:
            disk.replace_file(save_recipe, plan.to_toml().encode())
        except OSError as error:
            raise UserError(f"--save-recipe {save_recipe}: cannot be written: {error.strerror}") from None
        say(f"{save_recipe}: written; edit it, then: qkv train {save_recipe}")
        if plan.folds:
            say("note: a recipe is trained without cross-validation; set data.test to a file or to split for metrics")
        return 0
    recipe, comparison = recipe_for(source, folder, columns, settings, test=test, say=say)
    code, found = run_training(recipe, folder, comparison)
    show_result(folder, code, found)
    if code == 0:
        print(f'try it: qkv predict {folder} "..."')
    return code


def explain_recipe() -> None:
    """Every key of a recipe as a TOML file."""
    from qkv.config.recipe import Recipe

    print("# Every key of a recipe with its default. All are optional.\n")
    print(Recipe().to_toml(), end="")


class Stop:
    """Ctrl-C or SIGTERM: stop after the current step. A second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.by: int | None = None

    def __call__(self) -> bool:
        return self.by is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:
            raise KeyboardInterrupt
        self.by = number

    @contextmanager
    def listening(self) -> Iterator[None]:
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(kind, self._note) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, before, strict=True):
                signal.signal(kind, handler)


def run_training(
    recipe: Recipe, folder: Path, comparison: BaselineComparison | None = None
) -> tuple[int, TestMetrics | None]:
    """Train in a folder, with progress on stderr. The exit code, and the test metrics of a finished model."""
    from qkv.training.trainer import open_trainer

    with open_trainer(recipe, folder, say, comparison) as trainer:
        _introduce(trainer)
        stop = Stop()
        with stop.listening():
            _follow(trainer, stop)
        if stop.by is not None and not trainer.finished:
            say(f"stopped safely at step {trainer.state.progress.step:,}; run the same command to resume")
            return 128 + stop.by, None
        found = trainer.finish()
    return 0, found


def _introduce(trainer: Trainer) -> None:
    data, state = trainer.data, trainer.state
    counts = ", ".join(f"{sum(labels.values()):,} {split}" for split, labels in data.prepared.counts.items())
    labels = f"; labels {', '.join(data.prepared.labels[:10])}" if data.prepared.labels else ""
    say(f"{trainer.recipe.data.corpus}: {counts} {data.corpus.format.unit}{labels}")
    weights = sum(weight.numel() for weight in state.model.parameters())
    threads = trainer.recipe.runtime.threads
    say(f"{weights:,} parameters, {state.steps:,} steps on {threads} threads, in {trainer.run.path}")
    for note in trainer.notes:
        say(f"note: {note}")
    if trainer.finished:
        say(f"this run is already finished, at step {trainer.resumed_at:,}")
    elif trainer.resumed_at:
        say(f"resuming from step {trainer.resumed_at:,}")


def _follow(trainer: Trainer, stop: Stop) -> None:
    """Show reports as they come: a progress bar on a terminal, else a line every ten seconds and at each validation."""
    if not sys.stderr.isatty():
        last = 0.0
        for report in trainer.reports(stop):
            if report.validation or (report.line and time.monotonic() - last > SECONDS_BETWEEN_LINES):
                last = time.monotonic()
                say(_plain(report, trainer))
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        start = trainer.state.progress.step
        task = bar.add_task("training", total=trainer.state.steps, completed=start, facts="")
        for report in trainer.reports(stop):
            if report.line:
                facts = f"loss {report.line['loss']:.3f}  {report.line['tokens_per_second']:,.0f} tokens/s"
                bar.update(task, completed=report.step, facts=facts)
            if report.validation:
                bar.console.print(_plain(report, trainer), highlight=False)


def _plain(report: Report, trainer: Trainer) -> str:
    text, line = "output layer fitted", report.line or {}
    if line:
        rate = f"{line['tokens_per_second']:,.0f} tokens/s"
        text = f"step {report.step:,}/{report.steps:,}  loss {line['loss']:.4f}  {rate}"
    if report.validation is None:
        left = line["seconds"] / report.step * (report.steps - report.step)
        return f"{text}  about {left:,.0f} s left"
    found = report.validation
    kept = "best so far" if trainer.recipe.train.keep == "best" else "lowest loss so far; the last weights are kept"
    best = f"  ({kept})" if report.is_best else ""
    known = [metric for metric in trainer.data.task.metrics if metric.name in found.metrics]
    values = "".join(f"{metric.title} {found.metrics[metric.name]:.4f}, " for metric in known)
    return f"{text}  validation: {values}loss {found.loss:.4f}{best}"
