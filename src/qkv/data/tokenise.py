"""Rows of text to rows of a store: what a row must have, what it is counted under, and its tokens.

A thousand rows at a time, on all cores. A row of the store is a text or a pair with its label, a whole document, or,
for `fill`, a sentence, whose label is then the number of its document.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any, Literal

from qkv.data.source import Source, hashed
from qkv.data.store import Store, Writer, open_store
from qkv.schema import UserError, listed
from qkv.text.corpus import Row
from qkv.text.sentences import SPLITTERS, english
from qkv.text.tokenizer import Tokenizer

CHUNK = 1000  # rows tokenised at a time
Holds = Literal["labels", "grades", "sentences", "documents", "translations"]


@dataclass(frozen=True)
class Form:
    """What a store is to hold: rows with labels or grades (numbers), sentences of documents, whole documents, or pairs
    of a source and its translation."""

    holds: Holds = "labels"
    splitter: str = "english"  # of sentences
    around: str = "both"  # what a tokenizer that is trained for it puts around a text

    @property
    def grades(self) -> bool:
        return self.holds == "grades"

    def identity(self) -> dict[str, str]:
        """All that decides what is written."""
        return {**vars(self), "splitter": _identity(self.splitter)}

    def label_of(self, source: Source, row: Row) -> str | None:
        """What a row is counted under; None: it has no label, and is left out."""
        if self.holds in ("sentences", "documents", "translations"):
            return "pairs" if self.holds == "translations" else "documents"
        label = source.label_of(row)
        if label is not None and self.holds == "grades":
            grade_of(label, row.place)
            return "grades"
        return label

    def has_text(self, row: Row) -> bool:
        """Whether there is something to learn from: of a translation both sides, else either."""
        parts = (row.text, row.pair or "")
        return all(part.strip() for part in parts) if self.holds == "translations" else any(p.strip() for p in parts)


def splitter_of(name: str) -> Callable[[str], list[str]]:
    if name not in SPLITTERS:
        raise UserError(f"data.sentences = {name!r}: must be one of {listed(SPLITTERS)}")
    return SPLITTERS[name]


def _identity(splitter: str) -> str:
    """What a splitter is known by: one of your own also by its code, so that a changed one makes stores anew."""
    function = splitter_of(splitter)
    ours = getattr(function, "__module__", None) == english.__module__
    code = getattr(function, "__code__", None)
    return splitter if ours or code is None else f"{splitter} {hashed(_content(code))}"


def _content(code: CodeType) -> list[Any]:
    consts = [_content(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), consts]


def grade_of(label: str, place: str) -> float:
    """A label that is a number."""
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e9:
        raise UserError(f"{place}: {label[:80]!r} is no grade; accepted: numbers, such as 3.5 (model.head = 'grade')")
    return value


@dataclass(frozen=True)
class Tokeniser:
    """Everything that turns rows into rows of a store. `target` reads second texts where they have their own."""

    form: Form
    tokenizer: Tokenizer
    target: Tokenizer | None = None
    labels: tuple[str, ...] = ()

    def write(self, source: Source, rows: Iterable[Row], writer: Writer) -> None:
        """Rows that have text and label, in their order."""
        whole = (row for row in rows if self.form.has_text(row) and self.form.label_of(source, row) is not None)
        if self.form.holds == "sentences":
            write_sentences(whole, self.tokenizer, self.form.splitter, writer)
            return
        number_of = {label: number for number, label in enumerate(self.labels)}
        while chunk := list(itertools.islice(whole, CHUNK)):
            texts = self.tokenizer.ids([row.text for row in chunk])
            second = self.target or self.tokenizer
            seconds = second.ids([row.pair or "" for row in chunk]) if source.columns.pair else []
            named = [(source.label_of(row) or "", row.place) for row in chunk]
            if self.form.holds == "grades":
                writer.add(texts, seconds, [grade_of(label, place) for label, place in named])
            else:
                writer.add(texts, seconds, [number_of.get(label, -1) for label, _ in named])


def write_sentences(rows: Iterable[Row], tokenizer: Tokenizer, splitter: str, writer: Writer) -> None:
    """A row for each sentence, numbered by its document. A blank stays before all but the first: to some tokenizers a
    word after a blank is another."""
    split = splitter_of(splitter)
    whole = (row for row in rows if row.text.strip())
    numbered = (
        (number, sentence if first == 0 else f" {sentence}")
        for number, row in enumerate(whole)
        for first, sentence in enumerate(split(row.text))
        if sentence.strip()
    )
    while chunk := list(itertools.islice(numbered, 10 * CHUNK)):
        writer.add(tokenizer.ids([sentence for _, sentence in chunk]), [], [number for number, _ in chunk])


def sentences_of(rows: Iterable[Row], tokenizer: Tokenizer, splitter: str) -> Store:
    """A store of the sentences of these documents that is gone when nobody looks at it any more."""
    return _held(lambda writer: write_sentences(rows, tokenizer, splitter, writer), pairs=False)


def documents_of(rows: Iterable[Row], tokenizer: Tokenizer) -> Store:
    """The same of whole documents."""

    def write(writer: Writer) -> None:
        whole = (row for row in rows if row.text.strip())
        while chunk := list(itertools.islice(whole, CHUNK)):
            writer.add(tokenizer.ids([row.text for row in chunk]), [], [-1] * len(chunk))

    return _held(write, pairs=False)


def _held(write: Callable[[Writer], None], *, pairs: bool) -> Store:
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        with Writer(Path(folder), "rows", pairs=pairs) as writer:
            write(writer)
        store = open_store(Path(folder), "rows", pairs=pairs)
        copies = {name: getattr(store, name).copy() for name in ("tokens", "starts_R", "middles_R", "labels_R")}
        return replace(store, **copies)
