"""What the commands share: consoles, messages, tables, progress, options. Results go to stdout, all else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

SECONDS_BETWEEN_LINES = 10.0  # of progress, where stderr is not a terminal
MANY_TEXTS = 200  # from here on a progress bar is worth it

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key: model.layers=8.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def stdout() -> Console:
    """120 columns where stdout is not a terminal, so that tables do not wrap in files and pipes."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def say(sentence: str) -> None:
    """A message for the user, on stderr."""
    print(sentence, file=sys.stderr, flush=True)


def plain_table(**columns: Literal["left", "right"]) -> Table:
    """A table without borders; each column by its alignment."""
    table = Table(box=None, padding=(0, 1))
    for name, justify in columns.items():
        table.add_column(name.replace("_", " "), justify=justify, no_wrap=True)
    return table


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr for many texts, if stderr is a terminal."""
    if total < MANY_TEXTS or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda count: bar.advance(task, count)
