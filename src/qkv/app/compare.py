"""`qkv compare`, `verify` and `crash-test`: runs side by side, and runs against their own promises."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qkv.app.training import save_curves, say
from qkv.run import Run, changes
from qkv.runtime import differences
from qkv.schema import UserError
from qkv.verify import Finding, Kill, Verdict, crash_test, this_command

QUALITIES = ("validation_accuracy", "validation_word_accuracy", "validation_pearson")  # whichever a run has


def show_comparison(console: Console, paths: Sequence[Path], picture: Path | None) -> None:
    """Figures of some runs side by side, and why the others differ from the first."""
    runs = [Run(path) for path in paths]
    for run in runs:
        if not run.begun:
            raise UserError(f"{run.path}: is no run; a run is what `qkv train` writes")
        run.check()
    table = Table(box=None, padding=(0, 1))
    for name in ("run", "steps", "minutes", "tokens/s", "best step", "validation loss", "validation accuracy", ""):
        table.add_column(name, justify="left" if name in ("run", "") else "right", no_wrap=True)
    for run in runs:
        table.add_row(*(escape(cell) for cell in _row(run)))
    console.print(table)
    for run in runs[1:]:
        console.print(f"\n{run.path} against {runs[0].path}", style="bold", markup=False, soft_wrap=True)
        for sentence in _why(runs[0], run):
            console.print(f"  {sentence}", markup=False, soft_wrap=True)
    if picture is not None:
        save_curves(runs, picture)
        say(f"curves: {picture}")


def _row(run: Run) -> list[str]:
    lines = run.metrics()
    if not lines:
        return [str(run.path), "0", *[""] * 6]
    last, judged = lines[-1], [line for line in lines if "validation_loss" in line]
    rates = sorted(line["tokens_per_second"] for line in lines)
    figures = [f"{last['step']:,}", f"{last['seconds'] / 60:.1f}", f"{rates[len(rates) // 2]:,.0f}"]
    if not judged:
        return [str(run.path), *figures, "", "", "", ""]
    best = min(judged, key=lambda line: line["validation_loss"])
    quality = next((best[name] for name in QUALITIES if name in best), None)
    shown = "" if quality is None else f"{quality:.4f}"
    found = [f"{best['step']:,}", f"{best['validation_loss']:.4f}", shown]
    return [str(run.path), *figures, *found, _sparks([line["validation_loss"] for line in judged])]


def _sparks(values: Sequence[float]) -> str:
    """A curve in one line of text, of at most 24 points."""
    chosen = [values[round(i * (len(values) - 1) / 23)] for i in range(24)] if len(values) > 24 else list(values)
    low, high = min(chosen), max(chosen)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / (high - low))] if high > low else "▄" for value in chosen)


def _why(first: Run, other: Run) -> list[str]:
    """Everything that makes two runs differ: recipe, data, machine; or that nothing does."""
    then, now = first.recipe, other.recipe
    found = changes(then, now) if then is not None and now is not None else []
    checkpoints = [run.newest()[0] for run in (first, other)]
    if checkpoints[0] is not None and checkpoints[1] is not None:
        found += differences(checkpoints[0].fingerprint, checkpoints[1].fingerprint)
    else:
        found.append("one of them has no checkpoint, so data and machine are not compared")
    return found or ["the same recipe, data and machine: they must agree to the bit"]


def show_findings(console: Console, findings: Sequence[Finding], future: str) -> bool:
    """What `qkv verify` found. True where all is well."""
    for finding in findings:
        state = "[green]as written[/green]" if not finding.problems else "[red]damaged[/red]"
        console.print(f"{finding.part:<12} {state}")
        for problem in finding.problems:
            console.print(f"  {problem}", markup=False, soft_wrap=True)
    console.print(future, markup=False, soft_wrap=True)
    return not any(finding.problems for finding in findings)


def show_crash_test(console: Console, recipe: str, settings: Sequence[str], folder: Path, kills: int) -> bool:
    """Kill a training again and again, a line for each death, and the verdict."""
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; a crash test begins anew, so give it a new place with -o")
    say(f"training {recipe} once in peace, then with {kills} deaths, in {folder}")
    console.print(f"{'death':>5}  {'by':<8} {'step reported':>14} {'goes on from':>13}", highlight=False)
    deaths = 0
    for found in crash_test(this_command(recipe, settings), folder, kills, seed=0):
        if isinstance(found, Kill):
            deaths += 1
            console.print(
                f"{found.number:>5}  {found.signal:<8} {found.reached:>14,} {found.resumed_at:>13,}", highlight=False
            )
        else:
            console.print(f"{deaths} of {kills} deaths; the last life came to the end", highlight=False)
            return _show_verdict(console, found) and deaths > 0
    return False


def _show_verdict(console: Console, verdict: Verdict) -> bool:
    for name, equal in verdict.equal.items():
        console.print(f"{name:<30} {'equal to the bit' if equal else 'DIFFERENT'}", highlight=False)
    console.print(f"sha256 of the model, uninterrupted: {verdict.sha256[0]}", highlight=False, soft_wrap=True)
    console.print(f"sha256 of the model, killed:        {verdict.sha256[1]}", highlight=False, soft_wrap=True)
    return verdict.holds
