"""From a recipe's data to stores on the disk: rows are split by hash, a tokenizer is trained on the training rows, and
every row is tokenised once.

Several passes over the files, none of which keeps them in memory: one counts labels and trains the tokenizer, then each
part is tokenised, a thousand rows at a time on all cores. A row of the store is a text or a pair with its label; for
`fill` it is a sentence, and its label is the number of its document.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType
from typing import Any

import filelock

from qkv import disk
from qkv.config import TokenizerConfig
from qkv.data.source import Say, Source, hashed
from qkv.data.split import PARTS, Part
from qkv.data.store import Store, Writer, open_store, read_facts
from qkv.schema import UserError, fits_a_line, listed
from qkv.text.corpus import Row
from qkv.text.sentences import SPLITTERS, english
from qkv.text.tokenizer import Tokenizer
from qkv.text.vocabulary import train_tokenizer

EXAMPLES = 1  # version of how stores become examples and batches: a run goes on only with the one it was begun with
VERSION = 3  # of all that decides what a store holds beside its inputs
CHUNK = 1000  # rows tokenised at a time
TRAINING_CHARACTERS = 100_000_000  # a tokenizer learns nothing more from more text
DOCUMENTS = "documents"  # what is counted where there are no labels
GRADES = "grades"


@dataclass(frozen=True)
class Form:
    """What a store is to hold: labels are classes, grades (numbers), or there are none but sentences of documents."""

    grades: bool = False
    sentences: str | None = None  # name of the splitter


@dataclass(frozen=True)
class Prepared:
    """Data that is ready to learn from. There is no test store: a model is tested on texts as users give them."""

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
    holds = {**vars(form), "sentences": _identity(form.sentences)}
    parts = [VERSION, source.data_hash, list(source.label_names), by, holds]
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
    given = isinstance(wanted, Tokenizer)
    say("reading" if given else "reading, and training the tokenizer")
    texts = _training_texts(source, form, tally)
    first = next(texts, None)
    if isinstance(wanted, Tokenizer):
        tokenizer = wanted
    elif first is not None:
        tokenizer = train_tokenizer(itertools.chain([first], texts), **wanted.model_dump())
    for _ in texts:
        pass  # what the tokenizer had no need of is still counted
    labels = _labels(source, form, tally)
    say(f"tokenising {sum(sum(c.values()) for c in tally.counts.values()):,} rows")
    with disk.new_folder(folder) as made:
        (made / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        for part in ("train", "validation"):
            with Writer(made, part, pairs=source.columns.pair is not None, grades=form.grades) as writer:
                if form.sentences is not None:
                    rows = (row for _, row in source.rows([part]))
                    _tokenise_documents(rows, tokenizer, form.sentences, writer)
                else:
                    _tokenise(source, part, tokenizer, None if form.grades else labels, writer)
        facts = {"labels": labels, "counts": tally.counts, "notes": tally.notes()}
        (made / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        source.must_be_unchanged()


def _training_texts(source: Source, form: Form, tally: _Tally) -> Iterator[str]:
    """The training rows' texts for the tokenizer, as many as it needs; all rows are counted on the way."""
    given = 0
    for part, row in source.rows(left_out=tally.note_elsewhere):
        label = _label(source, form, row)
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


def _label(source: Source, form: Form, row: Row) -> str | None:
    """What a row is counted under."""
    if form.sentences is not None:
        return DOCUMENTS
    label = source.label_of(row)
    if label is not None and form.grades:
        grade_of(label, row.place)
        return GRADES
    return label


def splitter_of(name: str) -> Callable[[str], list[str]]:
    if name not in SPLITTERS:
        raise UserError(f"data.sentences = {name!r}: must be one of {listed(SPLITTERS)}")
    return SPLITTERS[name]


def _identity(splitter: str | None) -> str | None:
    """What a splitter is known by: one of your own also by its code, so that a changed one makes stores anew."""
    if splitter is None:
        return None
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


def _tokenise(source: Source, part: Part, tokenizer: Tokenizer, labels: list[str] | None, writer: Writer) -> None:
    """Texts or pairs; without `labels`, what they have are grades."""
    number_of = {label: number for number, label in enumerate(labels or ())}
    rows = (row for _, row in source.rows([part]) if _is_whole(source, row))
    while chunk := list(itertools.islice(rows, CHUNK)):
        texts = tokenizer.ids([row.text for row in chunk])
        seconds = tokenizer.ids([row.pair or "" for row in chunk]) if source.columns.pair else []
        named = [(source.label_of(row) or "", row.place) for row in chunk]
        if labels is None:
            writer.add(texts, seconds, [grade_of(label, place) for label, place in named])
        else:
            writer.add(texts, seconds, [number_of.get(label, -1) for label, _ in named])


def sentences_of(rows: Iterable[Row], tokenizer: Tokenizer, splitter: str) -> Store:
    """A store of these documents that is gone when nobody looks at it any more."""
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        with Writer(Path(folder), "documents", pairs=False) as writer:
            _tokenise_documents(rows, tokenizer, splitter, writer)
        store = open_store(Path(folder), "documents", pairs=False)
        return replace(
            store, tokens=store.tokens.copy(), starts_R=store.starts_R.copy(), labels_R=store.labels_R.copy()
        )


def _tokenise_documents(rows: Iterable[Row], tokenizer: Tokenizer, splitter: str, writer: Writer) -> None:
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


def _is_whole(source: Source, row: Row) -> bool:
    return bool(row.text.strip() or (row.pair or "").strip()) and source.label_of(row) is not None


def _labels(source: Source, form: Form, tally: _Tally) -> list[str]:
    """The labels of the training rows, in order: by number where all are whole numbers, else by name."""
    counted = tally.counts["train"]
    everything = sum(sum(counts.values()) for counts in tally.counts.values())
    if not everything:
        left_out = "; ".join(tally.notes())
        raise UserError(f"{source.where}: no rows to learn from" + (f": {left_out}" if left_out else ""))
    if not counted:
        raise UserError(
            f"{source.where}: all {everything:,} rows are held out (their texts are alike), none is left to learn from"
        )
    if form.grades or form.sentences is not None:
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
        labels=tuple(facts["labels"]),
        train=train,
        validation=validation,
        counts=facts["counts"],
        notes=facts["notes"],
        data_hash=source.data_hash,
    )
