"""`qkv crash-test`: kill a training again and again, and compare with an uninterrupted one."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.cli.console import Settings, say, stdout
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.crash_test import Comparison


def crash_test(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name or a TOML file.")],
    kills: Annotated[int, typer.Option(min=1, max=1000, help="How often the training is killed.")] = 5,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Keep both runs in this folder.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Kill a training at random moments, resume it each time, and compare the result with an uninterrupted run."""
    from qkv.config.recipes import resolve

    resolve(recipe, settings or ())  # an error in it should come before the first process
    with tempfile.TemporaryDirectory() as temporary:
        equal = _run(stdout(), recipe, settings or (), output or Path(temporary), kills)
    raise typer.Exit(0 if equal else 1)


def _run(console: Console, recipe: str, settings: Sequence[str], folder: Path, kills: int) -> bool:
    """A line for each kill, then the comparison. Whether both runs are equal."""
    from qkv import crash_test as test

    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; a crash test needs a new folder with -o")
    say(f"training {recipe} uninterrupted, then with {kills} kills, in {folder}")
    console.print(f"{'kill':>5}  {'signal':<8} {'step reported':>14} {'resumes from':>13}")
    done = 0
    for found in test.crash_test(test.train_command(recipe, settings), folder, kills, seed=0):
        if isinstance(found, test.Kill):
            done += 1
            console.print(f"{found.number:>5}  {found.signal:<8} {found.reached:>14,} {found.resumed_at:>13,}")
        else:
            console.print(f"{done} of {kills} kills; the last resume ran to the end")
            return _show(console, found) and done > 0
    return False


def _show(console: Console, comparison: Comparison) -> bool:
    for name, equal in comparison.equal.items():
        console.print(f"{name:<30} {'equal to the bit' if equal else 'DIFFERENT'}")
    console.print(f"sha256 of the model, uninterrupted: {comparison.sha256[0]}", soft_wrap=True)
    console.print(f"sha256 of the model, killed:        {comparison.sha256[1]}", soft_wrap=True)
    return comparison.holds
