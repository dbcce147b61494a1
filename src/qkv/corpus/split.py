"""Training, validation and test splits: a hash of the text decides, the same in every recipe.

So duplicates fall into one split, a row stays in its split when others are added or the file is sorted, and held-out
text is held out everywhere, also from pre-training. (The hash of a pair covers both texts: pre-training on the texts of
a table of pairs may see one text of a held-out pair.) A long document is split by position instead.
"""

from __future__ import annotations

import hashlib
import unicodedata
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TEST_SHARE, VALIDATION_SHARE = 0.10, 0.05


def hash_position(text: str, pair: str | None = None) -> float:
    """A number in [0, 1) for a text or a pair. Case, white space and Unicode normal form make no difference."""
    normalised = _normalised(text) if pair is None else f"{_normalised(text)}\x1f{_normalised(pair)}"
    digest = hashlib.blake2b(normalised.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _normalised(text: str) -> str:
    """Caseless as the Unicode Standard defines it (D146: folding can undo a normal form, and the other way round), with
    single spaces. No white space is left that could be taken for the separator of a pair."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFD", text).casefold())
    return " ".join(unicodedata.normalize("NFKC", folded.casefold()).split())


def split_of(position: float, *, validation: bool = True, test: bool = True) -> Split:
    """The split of a row. Where a split has a file of its own, its share of the corpus is trained on."""
    if position < TEST_SHARE:
        return "test" if test else "train"
    if position < TEST_SHARE + VALIDATION_SHARE:
        return "validation" if validation else "train"
    return "train"


def split_document(text: str, *, validation: bool = True, test: bool = True) -> list[tuple[Split, str]]:
    """One long document, split by position: its end is held out. A hash could only take all of it or none."""
    held = (VALIDATION_SHARE if validation else 0.0) + (TEST_SHARE if test else 0.0)
    first, second = round(len(text) * (1 - held)), round(len(text) * (1 - (TEST_SHARE if test else 0.0)))
    found: list[tuple[Split, str]] = [
        ("train", text[:first]), ("validation", text[first:second]), ("test", text[second:])
    ]  # fmt: skip
    return [(split, piece) for split, piece in found if piece]
