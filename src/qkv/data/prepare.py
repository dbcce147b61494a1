"""From a recipe's data to stores on the disk: rows are split by hash, a tokenizer is trained on the training rows, and
every row is tokenised once.

Several passes over the files, none of which keeps them in memory: one counts labels and trains the tokenizer, then each
part is tokenised, a thousand rows at a time on all cores.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import filelock

from qkv import disk
from qkv.config import DataConfig, TokenizerConfig
from qkv.data.split import PARTS, Part, part_of, place_of
from qkv.data.store import Store, Writer, open_store, read_facts
from qkv.schema import UserError, fits_a_line, listed
from qkv.text import catalog, corpus
from qkv.text.corpus import Columns, Row
from qkv.text.tokenizer import Tokenizer
from qkv.text.vocabulary import train_tokenizer

VERSION = 2  # of all that decides what a store holds beside its inputs
HELD_BACK_BY = {"corpus": ("validation", "test"), "validation": ("test",), "test": ()}
CHUNK = 1000  # rows tokenised at a time
TRAINING_CHARACTERS = 100_000_000  # a tokenizer learns nothing more from more text
Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """The files of a recipe and how to read them. `data_hash` stands for every byte of them."""

    files: dict[str, list[Path]]  # corpus, and validation or test where they are files of their own
    columns: Columns
    label_names: dict[str, str]
    data_hash: str
    held: dict[str, frozenset[float]] = field(default_factory=dict, repr=False)  # places of rows in files of their own

    def rows(
        self, wanted: Iterable[Part] = PARTS, left_out: Callable[[Row], None] | None = None
    ) -> Iterator[tuple[Part, Row]]:
        """Every row, and the part it belongs to. A text that is in the test file is nowhere else, and one in the
        validation file is not learnt from: `left_out` is told of each such row."""
        own = {name: name in self.files for name in ("validation", "test")}
        for name, files in self.files.items():
            elsewhere = [self.held[other] for other in HELD_BACK_BY[name] if other in self.held]
            for row in corpus.rows(files, self.columns):
                if elsewhere and any(place_of(row.text, row.pair) in places for places in elsewhere):
                    if left_out is not None:
                        left_out(row)
                    continue
                if name == "corpus":
                    part = part_of(row.text, row.pair, validation=not own["validation"], test=not own["test"])
                else:
                    part = "validation" if name == "validation" else "test"
                if part in wanted:
                    yield part, row

    def must_be_unchanged(self) -> None:
        """Data is hashed, then read, perhaps hours later: what was read must be what was hashed."""
        if _data_hash(self.files, self.columns, self.label_names) != self.data_hash:
            raise UserError(f"{listed(self.files['corpus'][:3])}: changed while it was being used; begin again")

    def label_of(self, row: Row) -> str | None:
        return None if row.label is None else self.label_names.get(row.label, row.label)


@dataclass(frozen=True)
class Prepared:
    """Data that is ready to learn from."""

    tokenizer: Tokenizer
    labels: tuple[str, ...]
    train: Store
    validation: Store
    counts: dict[str, dict[str, int]]  # part -> label -> rows
    notes: list[str]
    data_hash: str


@dataclass
class _Tally:
    """What the first pass finds."""

    counts: dict[Part, Counter[str]] = field(default_factory=lambda: {part: Counter() for part in PARTS})
    empty: int = 0
    unlabelled: int = 0
    first_empty: str = ""
    first_unlabelled: str = ""
    elsewhere: int = 0  # rows that are also in a file that is held out
    first_elsewhere: str = ""
    first_of: dict[str, str] = field(default_factory=dict)  # label -> place of its first row

    def notes(self) -> list[str]:
        said = []
        if self.empty:
            said.append(f"{self.empty:,} rows have no text and are left out, first {self.first_empty}")
        if self.unlabelled:
            said.append(f"{self.unlabelled:,} rows have no label and are left out, first {self.first_unlabelled}")
        if self.elsewhere:
            found = f"{self.elsewhere:,} rows are also in a held-out file"
            said.append(f"{found} and are left out, first {self.first_elsewhere}")
        return said

    def note_elsewhere(self, row: Row) -> None:
        self.elsewhere += 1
        self.first_elsewhere = self.first_elsewhere or row.place


def open_source(data: DataConfig, say: Say = lambda sentence: None) -> Source:
    """Find the files of a recipe. Columns and label names of a catalogue entry hold unless the recipe has its own."""
    files, entry = catalog.locate(data.corpus, say)
    names = _label_names(data.label_names)
    columns = Columns(data.text, _column(data.pair), data.label, _column(data.group))
    if entry is not None:
        default = DataConfig()
        own = (data.text, data.pair, data.label) != (default.text, default.pair, default.label)
        columns = columns if own else replace(entry.columns, group=columns.group or entry.columns.group)
        names = names or dict(entry.label_names)
    found = {"corpus": files}
    for name in ("validation", "test"):
        if getattr(data, name) != "split":
            found[name] = catalog.locate(getattr(data, name), say)[0]
    for one, other in (("corpus", "validation"), ("corpus", "test"), ("validation", "test")):
        for path in found.get(other, ()):
            if any(path.samefile(taken) for taken in found.get(one, ())):
                raise UserError(f"data.{other}: {path} is also in data.{one}; a row must be in one of them only")
    held = {
        name: frozenset(place_of(row.text, row.pair) for row in corpus.rows(paths, columns))
        for name, paths in found.items()
        if name != "corpus"
    }
    return Source(found, columns, names, _data_hash(found, columns, names), held)


def _data_hash(files: dict[str, list[Path]], columns: Columns, names: dict[str, str]) -> str:
    hashes = {name: corpus.fingerprint(paths) for name, paths in files.items()}
    return _hash([hashes, asdict(columns), names])


def prepare(source: Source, wanted: TokenizerConfig, cache: Path, say: Say = lambda sentence: None) -> Prepared:
    """Stores and tokenizer for a source: from the cache, or made now. Only one process makes them, others wait."""
    # The order in which label names are given is the order of the labels, and no part of the data's hash.
    parts = [VERSION, source.data_hash, list(source.label_names), wanted.model_dump()]
    folder = cache / "stores" / _hash(parts)[:32]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_suffix(".lock")):
            for left in folder.parent.glob(f"{folder.name}.tmp-*"):
                shutil.rmtree(left, ignore_errors=True)  # of a process that was killed: whoever lives waits for us
            wrong = disk.problems(folder) if folder.exists() else []
            if wrong:
                say(f"{wrong[0]}; made anew")
                disk.remove_folder(folder)
            if not folder.exists():
                _make(source, wanted, folder, say)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; QKV_CACHE names another place") from None
    return _open(source, folder)


def _make(source: Source, wanted: TokenizerConfig, folder: Path, say: Say) -> None:
    tally = _Tally()
    say("reading, and training the tokenizer")
    texts = _training_texts(source, tally)
    seen = next(texts, None)
    if seen is not None:
        tokenizer = train_tokenizer(itertools.chain([seen], texts), **wanted.model_dump())
    for _ in texts:
        pass  # what the tokenizer had no need of is still counted
    labels = _labels(source, tally)
    say(f"tokenising {sum(sum(c.values()) for c in tally.counts.values()):,} rows")
    pairs = source.columns.pair is not None
    with disk.new_folder(folder) as made:
        (made / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        for part in ("train", "validation"):
            with Writer(made, part, pairs=pairs) as writer:
                _tokenise(source, part, tokenizer, labels, writer)
        facts = {"labels": labels, "counts": tally.counts, "notes": tally.notes()}
        (made / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        source.must_be_unchanged()


def _training_texts(source: Source, tally: _Tally) -> Iterator[str]:
    """The training rows' texts for the tokenizer, as many as it needs; all rows are counted on the way."""
    given = 0
    for part, row in source.rows(left_out=tally.note_elsewhere):
        label = source.label_of(row)
        if not row.text.strip() and not (row.pair or "").strip():
            tally.empty += 1
            tally.first_empty = tally.first_empty or row.place
        elif label is None:
            tally.unlabelled += 1
            tally.first_unlabelled = tally.first_unlabelled or row.place
        else:
            tally.counts[part][label] += 1
            tally.first_of.setdefault(label, row.place)
            if part == "train" and given < TRAINING_CHARACTERS:
                given += len(row.text) + len(row.pair or "")
                yield row.text
                if row.pair:
                    yield row.pair


def _tokenise(source: Source, part: Part, tokenizer: Tokenizer, labels: list[str], writer: Writer) -> None:
    number_of = {label: number for number, label in enumerate(labels)}
    rows = (row for _, row in source.rows([part]) if _is_whole(source, row))
    while chunk := list(itertools.islice(rows, CHUNK)):
        texts = tokenizer.ids([row.text for row in chunk])
        seconds = tokenizer.ids([row.pair or "" for row in chunk]) if source.columns.pair else []
        writer.add(texts, seconds, [number_of.get(source.label_of(row) or "", -1) for row in chunk])


def _is_whole(source: Source, row: Row) -> bool:
    return bool(row.text.strip() or (row.pair or "").strip()) and source.label_of(row) is not None


def _labels(source: Source, tally: _Tally) -> list[str]:
    """The labels of the training rows, in order: by number where all are whole numbers, else by name."""
    where = listed(source.files["corpus"][:3])
    counted = tally.counts["train"]
    everything = sum(sum(counts.values()) for counts in tally.counts.values())
    if not everything:
        left_out = "; ".join(tally.notes())
        raise UserError(f"{where}: no rows to learn from" + (f": {left_out}" if left_out else ""))
    if not counted:
        raise UserError(
            f"{where}: all {everything:,} rows are held out (their texts are alike), none is left to learn from"
        )
    if len(counted) > 100 and 2 * len(counted) > sum(counted.values()):
        found = f"{len(counted):,} different labels in {sum(counted.values()):,} training rows"
        raise UserError(f"{where}: {found}; is {source.columns.label!r} the column of labels?")
    if len(counted) < 2:
        only = next(iter(counted))
        found = f"only one label, {only!r}, in {sum(counted.values()):,} training rows"
        raise UserError(f"{where}: {found} of column {source.columns.label!r}; a classifier needs two at least")
    for label in counted:
        if not fits_a_line(label):
            accepted = "at most 200 printable characters"
            raise UserError(f"{tally.first_of[label]}: label {ascii(label)[:80]} is no name; accepted: {accepted}")
    rank = {name: number for number, name in enumerate(source.label_names.values())}
    whole = all(re.fullmatch(r"-?[0-9]{1,1000}", label) for label in counted)
    labels = sorted(counted, key=lambda label: (rank.get(label, len(rank)), int(label) if whole else 0, label))
    for label in itertools.chain(tally.counts["validation"], tally.counts["test"]):
        if label not in counted:
            raise UserError(
                f"{tally.first_of[label]}: label {label!r} is in no training row; known: {listed(labels[:100])}"
            )
    return labels


def _open(source: Source, folder: Path) -> Prepared:
    facts, pairs = read_facts(folder), source.columns.pair is not None
    train, validation = (open_store(folder, part, pairs=pairs) for part in ("train", "validation"))
    tokenizer = Tokenizer.from_file(folder / "tokenizer.json")
    return Prepared(
        tokenizer, tuple(facts["labels"]), train, validation, facts["counts"], facts["notes"], source.data_hash
    )


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


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def part_counts(source: Source) -> dict[Part, Counter[str]]:
    """How many rows of each label every part has, for a look into a data set."""
    counts: dict[Part, Counter[str]] = {part: Counter() for part in PARTS}
    for part, row in source.rows():
        counts[part][source.label_of(row) or "(none)"] += 1
    return counts
