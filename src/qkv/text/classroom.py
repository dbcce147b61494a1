"""Small made-up corpora, for lessons: what they ask is plain, and a right answer is certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qkv.streams import stream

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SHORTEST, LONGEST = 3, 12


def reverse(rows: int) -> Iterator[tuple[str, str]]:
    """Letters with blanks between them, and the same backwards: no word of the target is near the same word of the
    source, so attention has to find it."""
    for number in range(rows):
        raw = stream(0, "order", 7, number).random_raw(LONGEST + 1).tolist()
        length = SHORTEST + raw[0] % (LONGEST - SHORTEST + 1)
        letters = [LETTERS[one % len(LETTERS)] for one in raw[1 : length + 1]]
        yield " ".join(letters), " ".join(reversed(letters))


CORPORA: dict[str, Callable[[int], Iterator[tuple[str, str]]]] = {"reverse": reverse}
