"""The files of a recipe, and every row in them with the part it belongs to."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from qkv.config import DataConfig, Task
from qkv.data.split import PARTS, Part, part_of, parts_by_place, place_of
from qkv.schema import UserError, listed
from qkv.text import catalog, corpus
from qkv.text.corpus import Columns, Row
from qkv.text.documents import documents

OF_DOCUMENTS: tuple[Task, ...] = ("fill", "complete")  # tasks that learn from text alone
HELD_BACK_BY = {"corpus": ("validation", "test"), "validation": ("test",), "test": ()}
BOTH, BESIDE = " + ", " -> "  # between two corpora, and between the two files of aligned lines
LONG = 100_000  # characters of a document that is parted by place
Say = Callable[[str], None]


@dataclass(frozen=True)
class Files:
    """Files that are read alike. `documents` says what one document is in plain text; None: rows are read. Where there
    are files `beside` them, a row is a line of the one and the same line of the other."""

    paths: list[Path]
    columns: Columns
    documents: str | None = None
    beside: list[Path] = field(default_factory=list)

    def rows(self) -> Iterator[Row]:
        if self.beside:
            return corpus.aligned(self.paths, self.beside)
        if self.documents is None:
            return corpus.rows(self.paths, self.columns)
        return documents(self.paths, self.columns, self.documents)


@dataclass(frozen=True)
class Source:
    """The files of a recipe and how to read them. `data_hash` stands for every byte of them."""

    files: dict[str, list[Files]]  # corpus, and validation or test where they are files of their own
    label_names: dict[str, str]
    data_hash: str
    held: dict[str, frozenset[float]] = field(default_factory=dict, repr=False)  # places of rows in files of their own
    task: Task = "classify"

    @property
    def columns(self) -> Columns:
        return self.files["corpus"][0].columns

    @property
    def where(self) -> str:
        """The corpus, to be named in errors."""
        return listed([path for files in self.files["corpus"] for path in files.paths][:3])

    def rows(
        self, wanted: Iterable[Part] = PARTS, left_out: Callable[[Row], None] | None = None
    ) -> Iterator[tuple[Part, Row]]:
        """Every row, and the part it belongs to. A text that is in the test file is nowhere else, and one in the
        validation file is not learnt from: `left_out` is told of each such row."""
        own = {name: name in self.files for name in ("validation", "test")}
        for name in self.files:
            elsewhere = [self.held[other] for other in HELD_BACK_BY[name] if other in self.held]
            for row in self._read(name):
                if elsewhere and any(place_of(row.text, keyed_by(self.task, row)) in places for places in elsewhere):
                    if left_out is not None:
                        left_out(row)
                    continue
                for part, piece in self._parted(row, name, own):
                    if part in wanted:
                        yield part, piece

    def _parted(self, row: Row, name: str, own: dict[str, bool]) -> list[tuple[Part, Row]]:
        """A row with its part; to complete, a long document with its parts."""
        if name != "corpus":
            return [("validation" if name == "validation" else "test", row)]
        split = {"validation": not own["validation"], "test": not own["test"]}
        if self.task == "complete" and len(row.text) >= LONG:
            return [(part, replace(row, text=piece)) for part, piece in parts_by_place(row.text, **split)]
        return [(part_of(row.text, keyed_by(self.task, row), **split), row)]

    def _read(self, name: str) -> Iterator[Row]:
        for files in self.files[name]:
            yield from files.rows()

    def must_be_unchanged(self) -> None:
        """Data is hashed, then read, perhaps hours later: what was read must be what was hashed."""
        if _data_hash(self.files, self.label_names) != self.data_hash:
            raise UserError(f"{self.where}: changed while it was being used; begin again")

    def label_of(self, row: Row) -> str | None:
        return None if row.label is None else self.label_names.get(row.label, row.label)


def open_source(data: DataConfig, say: Say = lambda sentence: None, task: Task = "classify") -> Source:
    """Find the files of a recipe. Columns and label names of a catalogue entry hold unless the recipe has its own."""
    names = _label_names(data.label_names)
    found: dict[str, list[Files]] = {}
    for name in ("corpus", "validation", "test"):
        chosen = str(getattr(data, name))
        if name != "corpus" and chosen == "split":
            continue
        located = _located(chosen, say, task)
        found[name] = [_files(data, task, *one) for one in located]
        if name == "corpus":
            names = names or _entry_names(chosen, [entry for _, entry, _ in located], task)
        if task not in OF_DOCUMENTS and any(files.columns != found[name][0].columns for files in found[name]):
            raise UserError(f"data.{name} = {chosen!r}: corpora that are read together need the same columns")
    _only_once(found)
    held = {
        name: frozenset(place_of(row.text, keyed_by(task, row)) for files in parts for row in files.rows())
        for name, parts in found.items()
        if name != "corpus"
    }
    return Source(found, names, _data_hash(found, names), held, task)


def keyed_by(task: Task, row: Row) -> str | None:
    """The second text, where it takes part in where a row belongs. Of a translation the source alone decides: its other
    translations stay on the same side."""
    return None if task == "translate" else row.pair


def _files(data: DataConfig, task: Task, paths: list[Path], entry: catalog.Entry | None, beside: list[Path]) -> Files:
    second = data.target if task == "translate" else _column(data.pair)
    columns = Columns(data.text, second, None if task == "translate" else data.label, _column(data.group))
    if entry is not None:
        default = DataConfig()
        keys = ("text", "pair", "target", "label")
        own = any(getattr(data, key) != getattr(default, key) for key in keys)
        columns = columns if own else replace(entry.columns, group=columns.group or entry.columns.group)
        if task == "translate" and columns.pair is None:
            raise UserError(f"{entry.name}: has no translations; `qkv data list` says what each corpus is for")
    if task not in OF_DOCUMENTS:
        return Files(paths, columns, beside=beside)
    kind = entry.documents if entry is not None and data.documents == "auto" else data.documents
    if kind == "auto" and task == "complete":
        kind = "files"
    return Files(paths, replace(columns, pair=None, label=None, group=None), kind)


Located = tuple[list[Path], catalog.Entry | None, list[Path]]  # files, their entry, files of aligned lines beside them


def _located(chosen: str, say: Say, task: Task) -> list[Located]:
    """The files of one corpus, or of several: `A + B`. What one must bring oneself is looked for first: that it is not
    there is better said before anything is fetched."""
    parts = [chosen] if os.path.lexists(chosen) else [part.strip() for part in chosen.split(BOTH)]
    known = catalog.entries()
    found: dict[str, Located] = {}
    for part in sorted(parts, key=lambda part: part in known and known[part].kind != "own"):
        source, arrow, target = part.partition(BESIDE)
        if not arrow or os.path.lexists(part):
            found[part] = (*catalog.locate(part, say), [])
            continue
        if task != "translate":
            raise UserError(f"{part[:200]}: lines of two files side by side are for task = 'translate'")
        found[part] = (corpus.find(source.strip(), plain=True), None, corpus.find(target.strip(), plain=True))
    return [found[part] for part in parts]


def _entry_names(chosen: str, entries: list[catalog.Entry | None], task: Task) -> dict[str, str]:
    """The label names that the catalogue has for a corpus. Several must agree: a 0 means one thing only."""
    names = [dict(entry.label_names) if entry is not None else {} for entry in entries]
    if task == "classify" and any(one != names[0] for one in names):
        raise UserError(f"data.corpus = {chosen!r}: these have different label names; say data.label_names for both")
    return names[0]


def _only_once(found: dict[str, list[Files]]) -> None:
    """A row must be in one of the parts only."""
    owner: dict[tuple[int, int], str] = {}
    for part, files in found.items():
        for path in (path for one in files for path in (*one.paths, *one.beside)):
            entry = path.stat()
            other = owner.get((entry.st_dev, entry.st_ino))
            if other is not None:
                where = f"also in data.{other}" if other != part else "there twice"
                raise UserError(f"data.{part}: {path} is {where}; a row must be in one of them only")
            owner[entry.st_dev, entry.st_ino] = part


def _data_hash(found: dict[str, list[Files]], names: dict[str, str]) -> str:
    parts = {
        name: [
            [
                corpus.fingerprint(one.paths),
                asdict(one.columns),
                one.documents,
                *([corpus.fingerprint(one.beside)] if one.beside else []),
            ]
            for one in files
        ]
        for name, files in found.items()
    }
    return hashed([parts, names])


def hashed(value: Any) -> str:
    """A name for plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


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


def part_counts(source: Source) -> dict[Part, Counter[str]]:
    """How many rows of each label every part has, for a look into a data set."""
    counts: dict[Part, Counter[str]] = {part: Counter() for part in PARTS}
    for part, row in source.rows():
        counts[part][source.label_of(row) or "(none)"] += 1
    return counts
