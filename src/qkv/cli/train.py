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

from qkv.cli.console import SECONDS_BETWEEN_LINES, Settings, say, stdout

if TYPE_CHECKING:
    from qkv.config.recipe import Recipe
    from qkv.metrics import TestMetrics
    from qkv.tasks.task import Task
    from qkv.training.loop import Report
    from qkv.training.trainer import Trainer


def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A recipe's name or a TOML file. Without one: list recipes.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="RUN", help="Run folder; default runs/RECIPE.")
    ] = None,
    settings: Settings = None,
    help_recipe: Annotated[bool, typer.Option("--help-recipe", help="Explain every key of a recipe.")] = False,
) -> None:
    """Train a model, or resume: the same command continues an interrupted run. Ctrl-C stops safely."""
    from qkv.config import recipes

    if help_recipe:
        explain_recipe()
        return
    if recipe is None:
        for name in recipes.names():
            print(f"{name}\n  {recipes.promise(name)}")
        return
    from qkv.api import default_output
    from qkv.cli.eval import show_metrics

    folder = output or default_output(recipe)
    code, found = run_training(recipes.resolve(recipe, settings or ()), folder)
    if found is not None:
        show_metrics(stdout(), found, details=False)
    if code == 0:
        print(f"{folder}: done; learning curves: curves.png, model card: README.md")
    raise typer.Exit(code)


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


def run_training(recipe: Recipe, folder: Path) -> tuple[int, TestMetrics | None]:
    """Train in a folder, with progress on stderr. The exit code, and the test metrics of a finished model."""
    from qkv.training.trainer import open_trainer

    with open_trainer(recipe, folder, say) as trainer:
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
            if report.line and (report.validation or time.monotonic() - last > SECONDS_BETWEEN_LINES):
                last = time.monotonic()
                say(_plain(report, trainer.data.task))
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
                bar.console.print(_plain(report, trainer.data.task), highlight=False)


def _plain(report: Report, task: Task) -> str:
    line = report.line or {}
    text = f"step {report.step:,}/{report.steps:,}  loss {line['loss']:.4f}  {line['tokens_per_second']:,.0f} tokens/s"
    if report.validation is None:
        left = line["seconds"] / report.step * (report.steps - report.step)
        return f"{text}  about {left:,.0f} s left"
    found = report.validation
    best = "  (best so far)" if report.is_best else ""
    known = [metric for metric in task.metrics if metric.name in found.metrics]
    values = "".join(f"{metric.title} {found.metrics[metric.name]:.4f}, " for metric in known)
    return f"{text}  validation: {values}loss {found.loss:.4f}{best}"
