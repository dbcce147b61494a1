"""Numbers to pictures, for a terminal. A shade is always beside its number or its words: colour alone says nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from qkv.learn.metrics import Bin

_EIGHTHS = " ▏▎▍▌▋▊▉"
_BLUE, _ORANGE = (0, 114, 178), (230, 159, 0)  # of Okabe and Ito (2008), which the colour-blind tell apart
_STRONGEST = 3  # words that are marked, not only coloured
_FAINT = 0.05  # share of the strongest score below which a word is left as it is


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


def coloured_words(words: Sequence[tuple[str, float]]) -> Text:
    """A text with each word on a shade of its score: blue above 0 (for the label), orange below (against it).

    The three strongest are bold, underlined and followed by (+) or (-), so that it reads the same without colour.
    Put together, the words are the text: blanks around a word stay uncoloured.
    """
    most = max((abs(score) for _, score in words), default=0.0)
    by_strength = sorted(range(len(words)), key=lambda number: -abs(words[number][1]))
    strongest = {number for number in by_strength[:_STRONGEST] if abs(words[number][1]) > _FAINT * most}
    text = Text()
    for number, (word, score) in enumerate(words):
        core = word.strip()
        before, _, after = word.partition(core) if core else (word, "", "")
        marked = number in strongest
        style = _shade(score / most, marked) if abs(score) > _FAINT * most else ""
        text.append(before)
        text.append(core + ("(+)" if score > 0 else "(-)") * marked, style)
        text.append(after)
    return text


def _shade(share: float, marked: bool) -> str:
    """A style for a score between -1 and 1: the colour thinned with white."""
    red, green, blue = (round(255 - abs(share) * (255 - part)) for part in (_BLUE if share > 0 else _ORANGE))
    ink = "white" if share > 0.7 else "black"
    return f"{'bold underline ' if marked else ''}{ink} on rgb({red},{green},{blue})"


def reliability_table(bins: Sequence[Bin]) -> Table:
    """Whether probabilities may be trusted: how sure the answers of a bin were, and how many were right."""
    table = Table(box=None, padding=(0, 1))
    for name in ("confidence", "answers", "sure", "right", "gap"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for one in bins:
        if one.count:
            gap = one.accuracy - one.confidence
            said = "too sure" if gap <= -0.05 else "too careful" if gap >= 0.05 else ""
            span = f"{one.low:.2f} to {one.high:.2f}"
            table.add_row(span, f"{one.count:,}", f"{one.confidence:.3f}", f"{one.accuracy:.3f}", f"{gap:+.3f}", said)
    return table


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
