"""The files of a recipe, and every row in them with the split it belongs to."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from qkv.config.recipe import DataConfig
from qkv.corpus import catalog, files
from qkv.corpus.documents import documents
from qkv.corpus.files import Columns, Row
from qkv.corpus.split import SPLITS, Split, hash_position, split_document, split_of
from qkv.schema import Say, UserError, listed, silent

HELD_OUT_FROM = {"corpus": ("validation", "test"), "validation": ("test",), "test": ()}
BOTH, BESIDE = " + ", " -> "  # between two corpora, and between two files of aligned lines
SPLIT, NONE = "split", "none"  # of data.validation and data.test: a share of the corpus, or no rows
LONG = 100_000  # characters of a document that is split by position


@dataclass(frozen=True)
class RowFormat:
    """What a task reads: which columns a row has, and what is stored of it. Each task states its own.

    `aligned`: a row is a source and its target, both needed; two files of aligned lines are accepted; the source alone
    decides the split, so that all its targets are on the same side.
    """

    unit: str = "rows"  # what a row is called in messages: rows, documents, pairs
    labels: Literal["classes", "numbers", "none"] = "classes"
    aligned: bool = False
    documents: str | None = None  # rows are documents; this is how plain text is read where data.documents is auto
    split_long: bool = False  # a long document is split by position instead of by hash
    sentences: str | None = None  # documents are stored by sentence, by this splitter
    special_tokens: str = "both"  # of a tokenizer trained for this task: at both ends of a text, its begin or its end


@dataclass(frozen=True)
class Files:
    """Files that are read alike. `documents` says what one document is in plain text; None: rows are read. With files
    `beside` them, a row is a line of the one and the same line of the other."""

    paths: list[Path]
    columns: Columns
    documents: str | None = None
    beside: list[Path] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        if self.beside:
            return files.aligned(self.paths, self.beside)
        if self.documents is None:
            return files.rows(self.paths, self.columns)
        return documents(self.paths, self.columns, self.documents)


@dataclass(frozen=True)
class Corpus:
    """The files of a recipe and how to read them. `data_hash` covers every byte of them."""

    files: dict[str, list[Files]]  # corpus, and validation or test where they have files of their own
    label_names: dict[str, str]
    data_hash: str
    format: RowFormat
    split_off: frozenset[str] = frozenset({"validation", "test"})  # splits that are a share of the corpus
    held_out: dict[str, frozenset[float]] = field(default_factory=dict, repr=False)  # hash positions, by separate file

    @property
    def columns(self) -> Columns:
        return self.files["corpus"][0].columns

    @property
    def where(self) -> str:
        """The corpus, as named in errors."""
        return listed([path for some in self.files["corpus"] for path in some.paths][:3])

    def rows(
        self, wanted: Iterable[Split] = SPLITS, left_out: Callable[[Row], None] | None = None
    ) -> Iterator[tuple[Split, Row]]:
        """Every row with its split. A text of the test file is in no other split, and one of the validation file is not
        trained on; `left_out` is called with each such row."""
        own = {"validation": "validation" in self.split_off, "test": "test" in self.split_off}
        for name in self.files:
            elsewhere = [self.held_out[other] for other in HELD_OUT_FROM[name] if other in self.held_out]
            for row in (row for some in self.files[name] for row in some.rows()):
                if elsewhere and any(self._position(row) in held for held in elsewhere):
                    if left_out is not None:
                        left_out(row)
                    continue
                pieces: list[tuple[Split, str]] = [("validation" if name == "validation" else "test", row.text)]
                if name == "corpus" and self.format.split_long and len(row.text) >= LONG:
                    pieces = split_document(row.text, **own)
                elif name == "corpus":
                    pieces = [(split_of(self._position(row), **own), row.text)]
                yield from ((split, replace(row, text=text)) for split, text in pieces if split in wanted)

    def _position(self, row: Row) -> float:
        return hash_position(row.text, None if self.format.aligned else row.pair)

    def check_unchanged(self) -> None:
        """Data is hashed, then read, perhaps hours later: what was read must be what was hashed."""
        if _data_hash(self.files, self.label_names) != self.data_hash:
            raise UserError(f"{self.where}: changed while it was being read; run the command again")

    def label_of(self, row: Row) -> str | None:
        return None if row.label is None else self.label_names.get(row.label, row.label)

    def labelled(self, wanted: Iterable[Split], known: Iterable[str] = ()) -> Iterator[tuple[str | None, Row]]:
        """Rows of these splits, each with its label. With `known` labels, rows that were split off with another one are
        left out: no training row has it."""
        labels = frozenset(known)
        for split, row in self.rows(wanted):
            label = self.label_of(row)
            if not labels or label is None or label in labels or split not in self.split_off:
                yield label, row

    def count_labels(self) -> dict[Split, Counter[str]]:
        """Rows of each split and label."""
        counts: dict[Split, Counter[str]] = {split: Counter() for split in SPLITS}
        for split, row in self.rows():
            counts[split][self.label_of(row) or "(none)"] += 1
        return counts


def open_corpus(data: DataConfig, format: RowFormat = RowFormat(), say: Say = silent) -> Corpus:  # noqa: B008 (frozen)
    """Find the files of a recipe. Columns and label names of a catalogue entry hold unless the recipe has its own."""
    names = _label_names(data.label_names)
    found: dict[str, list[Files]] = {}
    for name in ("corpus", "validation", "test"):
        chosen = str(getattr(data, name))
        if name != "corpus" and chosen in (SPLIT, NONE):
            continue
        located = _locate(chosen, format, say)
        found[name] = [_files(data, format, *one) for one in located]
        if name == "corpus":
            names = names or _entry_names(chosen, [entry for _, entry, _ in located], format)
        if format.documents is None and any(some.columns != found[name][0].columns for some in found[name]):
            raise UserError(f"data.{name} = {chosen!r}: corpora that are read together need the same columns")
    _check_overlap(found)
    split_off = frozenset(name for name in ("validation", "test") if getattr(data, name) == SPLIT)
    corpus = Corpus(found, names, _data_hash(found, names), format, split_off)
    held_out = {
        name: frozenset(corpus._position(row) for some in parts for row in some.rows())
        for name, parts in found.items()
        if name != "corpus"
    }
    return replace(corpus, held_out=held_out)


def _files(
    data: DataConfig, format: RowFormat, paths: list[Path], entry: catalog.Entry | None, beside: list[Path]
) -> Files:
    second = data.target if format.aligned else _column(data.pair)
    label = None if format.labels == "none" else data.label
    columns = Columns(data.text, second, label, _column(data.group))
    if entry is not None:
        default = DataConfig()
        keys = ("text", "pair", "target", "label")
        own = any(getattr(data, key) != getattr(default, key) for key in keys)
        columns = columns if own else replace(entry.columns, group=columns.group or entry.columns.group)
        if format.aligned and columns.pair is None:
            raise UserError(f"{entry.name}: has no translations; `qkv data list` shows the task of each corpus")
    if format.documents is None:
        return Files(paths, columns, beside=beside)
    kind = entry.documents if entry is not None and data.documents == "auto" else data.documents
    kind = format.documents if kind == "auto" else kind
    return Files(paths, replace(columns, pair=None, label=None, group=None), kind)


Located = tuple[list[Path], catalog.Entry | None, list[Path]]  # files, their entry, aligned files beside them


def _locate(chosen: str, format: RowFormat, say: Say) -> list[Located]:
    """The files of one corpus, or of several: `A + B`. Data that users supply themselves is looked up first: if it is
    missing, the error comes before any download."""
    parts = [chosen] if os.path.lexists(chosen) else [part.strip() for part in chosen.split(BOTH)]
    known = catalog.entries()
    found: dict[str, Located] = {}
    for part in sorted(parts, key=lambda part: part in known and known[part].kind != "own"):
        source, arrow, target = part.partition(BESIDE)
        if not arrow or os.path.lexists(part):
            found[part] = (*catalog.locate(part, say), [])
            continue
        if not format.aligned:
            raise UserError(f"{part[:200]}: two files of aligned lines are for task = 'translate'")
        found[part] = (files.find(source.strip(), plain=True), None, files.find(target.strip(), plain=True))
    return [found[part] for part in parts]


def _entry_names(chosen: str, entries: list[catalog.Entry | None], format: RowFormat) -> dict[str, str]:
    """The label names that the catalogue has for a corpus. Several corpora must agree on them."""
    names = [dict(entry.label_names) if entry is not None else {} for entry in entries]
    if format.labels != "none" and any(one != names[0] for one in names):
        raise UserError(f"data.corpus = {chosen!r}: these have different label names; set data.label_names for both")
    return names[0]


def _check_overlap(found: dict[str, list[Files]]) -> None:
    """No file may be in two splits."""
    owner: dict[tuple[int, int], str] = {}
    for split, some in found.items():
        for path in (path for one in some for path in (*one.paths, *one.beside)):
            try:
                entry = path.stat()
            except OSError as error:
                raise UserError(f"data.{split}: {path}: cannot be read: {error.strerror}") from None
            other = owner.get((entry.st_dev, entry.st_ino))
            if other is not None:
                where = f"also in data.{other}" if other != split else "listed twice"
                raise UserError(f"data.{split}: {path} is {where}; each row must be in one split only")
            owner[entry.st_dev, entry.st_ino] = split


def _data_hash(found: dict[str, list[Files]], names: dict[str, str]) -> str:
    parts = {
        name: [
            [
                files.fingerprint(one.paths),
                asdict(one.columns),
                one.documents,
                *([files.fingerprint(one.beside)] if one.beside else []),
            ]
            for one in some
        ]
        for name, some in found.items()
    }
    return hashed([parts, names])


def hashed(value: Any) -> str:
    """sha256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def parse_number(label: str, place: str) -> float:
    """A label that is a finite number."""
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e9:
        raise UserError(f"{place}: {label[:80]!r} is not a number such as 3.5; for class labels use task = 'classify'")
    return value


def _column(name: str) -> str | None:
    return None if name == "none" else name


def _label_names(written: str) -> dict[str, str]:
    """`0=negative, 1=positive` as a table."""
    if written == "none":
        return {}
    pairs = [piece.partition("=") for piece in written.split(",")]
    if not all(raw.strip() and equals and name.strip() for raw, equals, name in pairs):
        raise UserError(f"data.label_names = {written!r}: must have the form 0=negative, 1=positive")
    return {raw.strip(): name.strip() for raw, _, name in pairs}
