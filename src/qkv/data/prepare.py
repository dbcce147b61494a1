"""From a recipe's data to stores on the disk: rows are split by hash, a tokenizer is trained on the training rows, and
every row is tokenised once.

Several passes over the files, none of which keeps them in memory: one counts labels and trains the tokenizer, then each
part is tokenised.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import filelock

from qkv import disk
from qkv.config import TokenizerConfig
from qkv.data.source import Say, Source, hashed
from qkv.data.split import PARTS, Part
from qkv.data.store import Store, Writer, open_store, read_facts
from qkv.data.tokenise import Form, Tokeniser
from qkv.schema import UserError, fits_a_line, listed
from qkv.text.corpus import Row
from qkv.text.tokenizer import Tokenizer
from qkv.text.vocabulary import train_tokenizer

TARGET = "target_tokenizer.json"
EXAMPLES = 1  # version of how stores become examples and batches: a run goes on only with the one it was begun with
VERSION = 5  # of all that decides what a store holds beside its inputs
TRAINING_CHARACTERS = 100_000_000  # a tokenizer learns nothing more from more text


@dataclass(frozen=True)
class Prepared:
    """Data that is ready to learn from. There is no test store: a model is tested on texts as users give them."""

    tokenizer: Tokenizer
    target: Tokenizer | None  # of translations, where it is another
    labels: tuple[str, ...]
    train: Store
    validation: Store
    counts: dict[str, dict[str, int]]  # part -> label -> rows
    text_bytes: dict[str, int]  # part -> bytes of its texts, as UTF-8
    notes: list[str]
    data_hash: str


@dataclass
class _Tally:
    """What the first pass finds."""

    counts: dict[Part, Counter[str]] = field(default_factory=lambda: {part: Counter() for part in PARTS})
    text_bytes: Counter[Part] = field(default_factory=Counter)
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


def prepare(
    source: Source,
    wanted: TokenizerConfig | Tokenizer,
    cache: Path,
    say: Say = lambda sentence: None,
    form: Form = Form(),  # noqa: B008  (frozen)
) -> Prepared:
    """Stores and tokenizer for a source: from the cache, or made now. Only one process makes them, others wait. A
    tokenizer is trained as wanted, or it is given."""
    # The order in which label names are given is the order of the labels, and no part of the data's hash.
    by = hashed(wanted.to_json()) if isinstance(wanted, Tokenizer) else wanted.model_dump()
    parts = [VERSION, source.data_hash, list(source.label_names), by, form.identity()]
    folder = cache / "stores" / hashed(parts)[:32]
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
                _make(source, wanted, form, folder, say)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; QKV_CACHE names another place") from None
    return _open(source, form, folder)


def _make(source: Source, wanted: TokenizerConfig | Tokenizer, form: Form, folder: Path, say: Say) -> None:
    tally = _Tally()
    say("reading" if isinstance(wanted, Tokenizer) else "reading, and training the tokenizer")
    tokenizer, target = _tokenizers(source, wanted, form, tally)
    labels = _labels(source, form, tally)
    say(f"tokenising {sum(sum(c.values()) for c in tally.counts.values()):,} rows")
    made_by = Tokeniser(form, tokenizer, target, tuple(labels))
    with disk.new_folder(folder) as made:
        (made / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        if target is not None:
            (made / TARGET).write_text(target.to_json(), encoding="utf-8")
        for part in ("train", "validation"):
            with Writer(made, part, pairs=source.columns.pair is not None, grades=form.grades) as writer:
                made_by.write(source, (row for _, row in source.rows([part])), writer)
        facts = {"labels": labels, "counts": tally.counts, "bytes": tally.text_bytes, "notes": tally.notes()}
        (made / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        source.must_be_unchanged()


def _tokenizers(
    source: Source, wanted: TokenizerConfig | Tokenizer, form: Form, tally: _Tally
) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer, and that of the translations where it is another. All rows are counted on the way."""
    rows = _training_rows(source, form, tally)
    first = next(rows, None)
    made: Tokenizer | None = wanted if isinstance(wanted, Tokenizer) else None
    target = None
    if not isinstance(wanted, Tokenizer) and first is not None:
        keys = wanted.model_dump(exclude={"shared"})
        texts, seconds = _sides(
            itertools.chain([first], rows), apart=form.holds == "translations" and not wanted.shared
        )
        made = train_tokenizer(texts, **keys, around=form.around)
        target = train_tokenizer(seconds, **keys, around=form.around) if seconds is not None else None
    for _ in rows:
        pass  # what the tokenizer had no need of is still counted
    _labels(source, form, tally)  # says what is wrong where there is nothing to learn from
    assert made is not None, "there are training rows"
    return made, target


def _sides(rows: Iterator[Row], *, apart: bool) -> tuple[Iterator[str], Iterator[str] | None]:
    """The texts of these rows, first and second; `apart`: the second ones by themselves."""
    if apart:
        one, other = itertools.tee(rows)
        return (row.text for row in one), (row.pair or "" for row in other)
    return (text for row in rows for text in (row.text, row.pair) if text), None


def _training_rows(source: Source, form: Form, tally: _Tally) -> Iterator[Row]:
    """The training rows for the tokenizer, as many as it needs; all rows are counted on the way."""
    given = 0
    for part, row in source.rows(left_out=tally.note_elsewhere):
        label = form.label_of(source, row)
        if not form.has_text(row):
            tally.empty += 1
            tally.first_empty = tally.first_empty or row.place
        elif label is None:
            tally.unlabelled += 1
            tally.first_unlabelled = tally.first_unlabelled or row.place
        else:
            tally.counts[part][label] += 1
            tally.text_bytes[part] += len(row.text.encode("utf-8", "surrogatepass"))
            tally.first_of.setdefault(label, row.place)
            if part == "train" and given < TRAINING_CHARACTERS:
                given += len(row.text) + len(row.pair or "")
                yield row


def _labels(source: Source, form: Form, tally: _Tally) -> list[str]:
    """The labels of the training rows, in order: by number where all are whole numbers, else by name."""
    counted = tally.counts["train"]
    everything = sum(sum(counts.values()) for counts in tally.counts.values())
    if not everything or (not counted and tally.notes()):
        left_out = "; ".join(tally.notes())
        raise UserError(f"{source.where}: no rows to learn from" + (f": {left_out}" if left_out else ""))
    if not counted:
        raise UserError(
            f"{source.where}: all {everything:,} rows are held out (their texts are alike), none is left to learn from"
        )
    if form.holds != "labels":
        return []
    _check_labels(source, counted, tally.first_of)
    rank = {name: number for number, name in enumerate(source.label_names.values())}
    whole = all(re.fullmatch(r"-?[0-9]{1,1000}", label) for label in counted)
    labels = sorted(counted, key=lambda label: (rank.get(label, len(rank)), int(label) if whole else 0, label))
    for label in itertools.chain(tally.counts["validation"], tally.counts["test"]):
        if label not in counted:
            raise UserError(
                f"{tally.first_of[label]}: label {label!r} is in no training row; known: {listed(labels[:100])}"
            )
    return labels


def _check_labels(source: Source, counted: Counter[str], first_of: dict[str, str]) -> None:
    """Are these the names of classes?"""
    rows = sum(counted.values())
    if len(counted) > 100 and 2 * len(counted) > rows:
        found = f"{len(counted):,} different labels in {rows:,} training rows"
        raise UserError(f"{source.where}: {found}; is {source.columns.label!r} the column of labels?")
    if len(counted) < 2:
        found = f"only one label, {next(iter(counted))!r}, in {rows:,} training rows"
        raise UserError(f"{source.where}: {found} of column {source.columns.label!r}; a classifier needs two at least")
    for label in counted:
        if not fits_a_line(label):
            accepted = "at most 200 printable characters"
            raise UserError(f"{first_of[label]}: label {ascii(label)[:80]} is no name; accepted: {accepted}")


def _open(source: Source, form: Form, folder: Path) -> Prepared:
    facts, pairs = read_facts(folder), source.columns.pair is not None
    train, validation = (open_store(folder, part, pairs=pairs, grades=form.grades) for part in ("train", "validation"))
    return Prepared(
        tokenizer=Tokenizer.from_file(folder / "tokenizer.json"),
        target=Tokenizer.from_file(folder / TARGET) if (folder / TARGET).exists() else None,
        labels=tuple(facts["labels"]),
        train=train,
        validation=validation,
        counts=facts["counts"],
        text_bytes=facts["bytes"],
        notes=facts["notes"],
        data_hash=source.data_hash,
    )
