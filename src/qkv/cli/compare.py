"""`qkv compare`: runs side by side, and why they differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from qkv.cli.console import plain_table, say, stdout
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.plots import History
    from qkv.run.folder import Run


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Two runs or more.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PICTURE", help="Learning curves, .png or .svg.")
    ] = None,
) -> None:
    """Compare runs: metrics and learning curves side by side, and every difference in recipe, data and machine."""
    from qkv.plots import check_picture, save_curves
    from qkv.run.folder import Run

    if output is not None:
        check_picture(output)
    if len(runs) < 2:
        raise UserError(f"{runs[0]}: only one run; give two or more")
    console, opened = stdout(), [Run(path) for path in runs]
    histories = [_history(run) for run in opened]
    table = plain_table(run="left", steps="right", minutes="right")
    for name in ("tokens/s", "best step", "validation loss", "validation metric"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for run, history in zip(opened, histories, strict=True):
        table.add_row(escape(str(run.path)), *_row(history))
    console.print(table)
    for run in opened[1:]:
        console.print(f"\n{run.path} against {opened[0].path}", style="bold", markup=False, soft_wrap=True)
        for sentence in _differences(opened[0], run):
            console.print(f"  {sentence}", markup=False, soft_wrap=True)
    if output is not None:
        save_curves(output, histories)
        say(f"learning curves: {output}")


def _history(run: Run) -> History:
    from qkv.training.trainer import history_of

    if not run.begun or run.recipe is None:
        raise UserError(f"{run.path}: is not a run; a run is a folder that `qkv train` wrote")
    run.check()
    return history_of(run, run.recipe)


def _row(history: History) -> list[str]:
    """Steps, minutes, tokens/s; the step with the lowest validation loss, that loss, the metric there; all losses."""
    from qkv.terminal import sparkline

    lines, first = history.lines, history.metrics[0]
    if not lines:
        return ["0", *[""] * 6]
    last, validated = lines[-1], [line for line in lines if "validation_loss" in line]
    rates = sorted(line["tokens_per_second"] for line in lines)
    speed = [f"{last['step']:,}", f"{last['seconds'] / 60:.1f}", f"{rates[len(rates) // 2]:,.0f}"]
    if not validated:
        return [*speed, "", "", "", ""]
    best = min(validated, key=lambda line: line["validation_loss"])
    metric = f"{first.title} {best[f'validation_{first.name}']:.4f}"
    found = [f"{best['step']:,}", f"{best['validation_loss']:.4f}", metric]
    return [*speed, *found, sparkline([line["validation_loss"] for line in validated])]


def _differences(first: Run, other: Run) -> list[str]:
    """Everything that makes two runs differ: recipe, data, machine; or that nothing does."""
    from qkv.run.folder import changes
    from qkv.runtime import differences

    then, now = first.recipe, other.recipe
    found = changes(then, now) if then is not None and now is not None else []
    checkpoints = [run.checkpoints.newest()[0] for run in (first, other)]
    if checkpoints[0] is not None and checkpoints[1] is not None:
        found += differences(checkpoints[0].fingerprint, checkpoints[1].fingerprint)
    else:
        found.append("one of them has no checkpoint, so data and machine are not compared")
    return found or ["the same recipe, data and machine: the results must be equal to the bit"]
