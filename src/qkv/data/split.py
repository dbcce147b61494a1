"""Which rows are learnt from and which are held out: a hash of the text decides, the same in every recipe.

So duplicates fall on one side, a row stays where it is when others are added or the file is sorted, and text held out
once is held out always, also from pre-training. (Of a pair both texts together decide: pre-training on the texts of a
table of pairs may see one of a held-out pair.) A book that is to be completed is parted by place instead.
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Literal

Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
TEST_SHARE, VALIDATION_SHARE = 0.10, 0.05


def place_of(text: str, pair: str | None = None) -> float:
    """A number in [0, 1) for a text or a pair: alike in all that differs by case, blanks or unicode form only."""
    normalised = _normalised(text) if pair is None else f"{_normalised(text)}\x1f{_normalised(pair)}"
    digest = hashlib.blake2b(normalised.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _normalised(text: str) -> str:
    """Caseless as the Unicode Standard defines it (D146: folding can undo a normal form, and the other way round), and
    one blank for any number of them. No blank is left that could be taken for what stands between a pair."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold())
    return " ".join(unicodedata.normalize("NFKC", folded.casefold()).split())


def part_of(text: str, pair: str | None = None, *, validation: bool = True, test: bool = True) -> Part:
    """The part a row belongs to. Where a part comes from a file of its own, its share of the corpus is learnt from."""
    place = place_of(text, pair)
    if place < TEST_SHARE:
        return "test" if test else "train"
    if place < TEST_SHARE + VALIDATION_SHARE:
        return "validation" if validation else "train"
    return "train"


def parts_by_place(text: str, *, validation: bool = True, test: bool = True) -> list[tuple[Part, str]]:
    """The parts of one long document: it is learnt from, but for its end. A hash could only take all of it or none."""
    held = (VALIDATION_SHARE if validation else 0.0) + (TEST_SHARE if test else 0.0)
    first, second = round(len(text) * (1 - held)), round(len(text) * (1 - (TEST_SHARE if test else 0.0)))
    found: list[tuple[Part, str]] = [
        ("train", text[:first]), ("validation", text[first:second]), ("test", text[second:])
    ]  # fmt: skip
    return [(part, piece) for part, piece in found if piece]
