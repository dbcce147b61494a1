"""Numbers to pictures, for a terminal. A shade is always beside its number or its words: colour alone says nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉"


def bar(share: float, width: int = 20) -> str:
    """A bar of text, `share` (0 to 1) of `width` characters long, exact to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def heat_map(
    rows: Sequence[str], columns: Sequence[str], shares: Sequence[Sequence[float]], title: str, hidden: str = "·"
) -> Table:
    """A table of shares (0 to 1), darker where larger; exact zeros, as a mask makes them, are shown as `hidden`."""
    table = Table(title=title, title_justify="left", box=None, padding=(0, 0))
    table.add_column("", justify="right")
    for column in columns:
        table.add_column(f" {column}", justify="center")
    for name, values in zip(rows, shares, strict=True):
        table.add_row(f"{name} ", *(_cell(value, hidden) for value in values))
    return table


def _cell(share: float, hidden: str) -> Text:
    if share == 0.0:
        return Text(f"  {hidden}  ", style="dim")
    level = round(255 - 175 * share)
    ink = "white" if share > 0.55 else "black"
    return Text(f" {share:.2f}".replace("0.", ".") + " ", style=f"{ink} on rgb({level},{min(255, level + 15)},255)")


def readable(number: float) -> str:
    """A count as people say it: 1.2 k, 63.1 M, 6.7 G."""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.1f} {letter}"
    return f"{number:.0f}"


def readable_bytes(count: int) -> str:
    """A size in memory: 1.2 MiB, 25.1 GiB."""
    for size, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count} bytes"
