"""`qkv verify`: the files of a run against their hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.cli.console import stdout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.verify import PartStatus


def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    repair: Annotated[
        bool, typer.Option("--repair", help="Set damaged checkpoints aside and rebuild the model from a sound one.")
    ] = False,
) -> None:
    """Check the model, recipe, tokenizer, card and checkpoints of a run against their hashes, and say what
    resuming would do."""
    from qkv import verify as verification

    parts, outlook = verification.verify(run)
    if repair:
        for sentence in verification.repair(run) or ["nothing to repair"]:
            print(sentence)
        parts, outlook = verification.verify(run)
    raise typer.Exit(0 if _show(stdout(), parts, outlook) else 1)


def _show(console: Console, parts: Sequence[PartStatus], outlook: str) -> bool:
    """Whether all is well."""
    for part in parts:
        state = "[green]ok[/green]" if not part.problems else "[red]damaged[/red]"
        console.print(f"{part.name:<12} {state}")
        for problem in part.problems:
            console.print(f"  {problem}", markup=False, soft_wrap=True)
    console.print(outlook, markup=False, soft_wrap=True)
    return not any(part.problems for part in parts)
