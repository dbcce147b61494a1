"""Bars, heat maps and coloured words for a terminal. Colour is never alone: a number or a sign is beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

_EIGHTHS = " ▏▎▍▌▋▊▉"
_BLUE, _ORANGE = (0, 114, 178), (230, 159, 0)  # of Okabe and Ito (2008), which the colour-blind tell apart
_STRONGEST = 3  # words that are marked, not only coloured
_FAINT = 0.05  # share of the strongest score below which a word is left as it is


def bar(share: float, width: int = 20) -> str:
    """A bar of text, `share` (0 to 1) of `width` characters long, exact to an eighth of a character."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def printable(text: str) -> str:
    """Text from outside as a terminal may show it: control characters and the like are spelt out, lines are kept."""
    plain = (
        char if char in "\n\t" or char.isprintable() or (char.isspace() and ord(char) > 127) else ascii(char)[1:-1]
        for char in text
    )
    return "".join(plain)


def shortened(text: str, longest: int) -> str:
    """A long text loses its middle: names differ at their ends."""
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def distinguishable(names: Sequence[str], longest: int) -> list[str]:
    """Names of at most this length, no two alike: those that would be begin with their number, from 1."""
    short = [shortened(name, longest) for name in names]
    found = Counter(short)
    room = longest - len(str(len(names))) - 1
    alike = [name if found[name] == 1 else f"{n} {shortened(name, room)}" for n, name in enumerate(short, 1)]
    if len(set(alike)) == len(names):
        return alike
    return [f"{n} {shortened(name, room)}" for n, name in enumerate(short, 1)]


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


def sparkline(values: Sequence[float]) -> str:
    """A curve in one line of text, of at most 24 points; empty without values."""
    if not values:
        return ""
    chosen = [values[round(i * (len(values) - 1) / 23)] for i in range(24)] if len(values) > 24 else list(values)
    low, high = min(chosen), max(chosen)
    return "".join("▁▂▃▄▅▆▇█"[round(7 * (value - low) / (high - low))] if high > low else "▄" for value in chosen)


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
