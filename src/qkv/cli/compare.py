"""`qkv compare`: runs side by side, and why they differ."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from qkv.cli.console import plain_table, say, stdout
from qkv.schema import UserError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from qkv.plots import History
    from qkv.run.folder import Run

    ByRow = dict[str, NDArray[np.float64]]  # metric -> its value for each validation row


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Two runs or more.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PICTURE", help="Learning curves, .png or .svg.")
    ] = None,
) -> None:
    """Compare runs: metrics and learning curves side by side, and every difference in recipe, data and machine."""
    from qkv.hub import path_of
    from qkv.plots import check_picture, save_curves
    from qkv.run.folder import Run

    if output is not None:
        check_picture(output)
    if len(runs) < 2:
        raise UserError(f"{runs[0]}: only one run; give two or more")
    console, opened = stdout(), [Run(path_of(str(path))) for path in runs]
    histories = [_history(run) for run in opened]
    table = plain_table(run="left", steps="right", minutes="right")
    for name in ("tokens/s", "kept step", "validation loss", "validation metric", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    by_row = [run.validation_by_row() for run in opened]
    for run, history, values in zip(opened, histories, by_row, strict=True):
        table.add_row(escape(str(run.path)), *_row(history, values))
    console.print(table)
    for run, values in zip(opened[1:], by_row[1:], strict=True):
        console.print(f"\n{run.path} against {opened[0].path}", style="bold", markup=False, soft_wrap=True)
        for sentence in [*_verdicts(opened[0], run, by_row[0], values), *_differences(opened[0], run)]:
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


def _row(history: History, by_row: ByRow) -> list[str]:
    """Steps, minutes, tokens/s; the step of the kept model, its validation loss and metric, the 95% interval of an
    accuracy; all losses."""
    from qkv.terminal import sparkline

    lines, first = history.lines, history.metrics[0]
    if not lines:
        return ["0", *[""] * 7]
    last, validated = lines[-1], [line for line in lines if "validation_loss" in line]
    rates = sorted(line["tokens_per_second"] for line in lines)
    speed = [f"{last['step']:,}", f"{last['seconds'] / 60:.1f}", f"{rates[len(rates) // 2]:,.0f}"]
    kept = next((line for line in validated if line["step"] == history.kept_step), None)
    if kept is None:
        return [*speed, "", "", "", "", sparkline([line["validation_loss"] for line in validated])]
    metric = f"{first.title} {kept[f'validation_{first.name}']:.4f}"
    found = [f"{kept['step']:,}", f"{kept['validation_loss']:.4f}", metric, _interval(by_row)]
    return [*speed, *found, sparkline([line["validation_loss"] for line in validated])]


def _interval(by_row: ByRow) -> str:
    if "accuracy" not in by_row:
        return ""
    low, high = _wilson(by_row["accuracy"])
    return f"{low:.4f} to {high:.4f}"


def _wilson(right_N: NDArray[np.float64]) -> tuple[float, float]:
    from qkv.metrics import wilson

    return wilson(int(right_N.sum()), len(right_N))


def _verdicts(first: Run, other: Run, before: ByRow, after: ByRow) -> list[str]:
    """Whether the validation rows show that one model is better than the other."""
    shared = [name for name in before if name in after]
    if not shared:
        return ["no difference shown: there are no validation metrics by row of both, so no interval of the difference"]
    same_rows = first.data_hash() == other.data_hash() and all(len(before[n]) == len(after[n]) for n in shared)
    if same_rows:
        return [_paired(name, before[name], after[name]) for name in shared]
    sentences = ["the validation rows are not the same, so losses are not comparable"]
    if "accuracy" in shared:
        (low, high), (other_low, other_high) = _wilson(before["accuracy"]), _wilson(after["accuracy"])
        apart = "higher" if other_low > high else "lower" if other_high < low else ""
        shown = f"{apart}, and the intervals do not overlap" if apart else "no difference shown, the intervals overlap"
        sentences.append(f"accuracy: {shown}")
    return sentences


def _paired(name: str, before_N: NDArray[np.float64], after_N: NDArray[np.float64]) -> str:
    from qkv.metrics import paired_interval

    mean, low, high = paired_interval(before_N, after_N)
    figures = f"{mean:+.4f}, 95% interval {low:+.4f} to {high:+.4f} on the same {len(before_N):,} validation rows"
    verdict = "higher" if low > 0 else "lower" if high < 0 else "no difference shown"
    return f"{name}: {verdict} ({figures})"


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
