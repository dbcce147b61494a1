"""What the commands share: consoles, messages, tables, progress, options. Results go to stdout, all else to stderr."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from qkv.terminal import printable

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_BETWEEN_LINES = 10.0  # of progress, where stderr is not a terminal
SECONDS_BEFORE_BAR = 1.0  # most commands are done before

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe key: model.layers=8.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def stdout() -> Console:
    """120 columns where stdout is not a terminal, so that tables do not wrap in files and pipes."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def say(sentence: str) -> None:
    """A message for the user, on stderr."""
    print(printable(sentence), file=sys.stderr, flush=True)


def plain_table(**columns: Literal["left", "right"]) -> Table:
    """A table without borders; each column by its alignment."""
    table = Table(box=None, padding=(0, 1))
    for name, justify in columns.items():
        table.add_column(name.replace("_", " "), justify=justify, no_wrap=True)
    return table


class RowProgress:
    """Rows done, rate and time left on stderr: a bar if it is a terminal, else a line now and then. `total` is None
    where nobody knows it."""

    def __init__(self, total: int | None = None, *, shown: bool = True) -> None:
        self.total, self.first, self.rows = total, 0, 0
        self.began = self.last = time.monotonic()
        self.shown = shown
        self.bar: Progress | None = None

    def start(self, rows: int, total: int | None) -> None:
        """Begin to measure: so many rows were done before."""
        self.first = self.rows = rows
        self.total, self.began = total, time.monotonic()

    def update(self, rows: int) -> None:
        self.rows = rows
        pause = SECONDS_BEFORE_BAR if sys.stderr.isatty() else SECONDS_BETWEEN_LINES
        if self.bar is None and (not self.shown or time.monotonic() - self.last < pause):
            return
        if sys.stderr.isatty():
            self.bar = self.bar or self._bar()
            self.bar.update(self.bar.task_ids[0], completed=rows, total=self.total, rate=self._rate())
        else:
            self.last = time.monotonic()
            total = "" if self.total is None else f" of {self.total:,}"
            left = "" if self.total is None else f", {readable_seconds(self._left())} left"
            say(f"{rows:,}{total} rows, {self._rate()}{left}")

    def stop(self) -> str:
        """Remove the bar; the rate, in words."""
        if self.bar is not None:
            self.bar.stop()
        return f"{self._rate()}, {readable_seconds(time.monotonic() - self.began)}"

    def _per_second(self) -> float:
        return (self.rows - self.first) / max(1e-9, time.monotonic() - self.began)

    def _rate(self) -> str:
        rate = self._per_second()
        return f"{rate:,.0f} rows/s" if rate >= 10 else f"{rate:.2g} rows/s"

    def _left(self) -> float:
        return ((self.total or 0) - self.rows) / max(1e-9, self._per_second())

    def _bar(self) -> Progress:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        bar.add_task("rows", total=self.total, rate="")
        bar.start()
        return bar


def readable_seconds(seconds: float) -> str:
    """A duration: 4.2 s, 3 min 20 s, 2 h 5 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
