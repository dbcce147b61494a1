"""From the files of a recipe to stores on the disk: rows are split by hash, a tokenizer is trained on the training
rows, and every row is tokenised once.

Several passes over the files, none of which keeps them in memory: one counts labels and trains the tokenizer, then each
split is tokenised. A folder of stores is named by a hash of all that went into it (texts, columns, tokenizer), so a
stale one is never used. It appears complete or not at all, and its manifest is checked whenever it is opened.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import filelock

from qkv import disk
from qkv.config.recipe import TokenizerConfig
from qkv.corpus.corpus import Corpus, hashed, parse_number
from qkv.corpus.files import Row
from qkv.corpus.sentences import identity
from qkv.corpus.split import SPLITS, Split
from qkv.data.store import Store, Writer, open_store, read_facts, write_rows, write_sentences
from qkv.schema import Say, UserError, fits_a_line, listed, silent
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.tokenizer.train import train_tokenizer

TARGET = "target_tokenizer.json"
VERSION = 7  # of all that decides what a store holds beside its inputs
TRAINING_CHARACTERS = 100_000_000  # a tokenizer learns nothing more from more text


@dataclass(frozen=True)
class Prepared:
    """Tokenised data. There is no test store: a model is tested on raw text, as users give it."""

    tokenizer: Tokenizer
    target: Tokenizer | None  # the target tokenizer of translations, where it is another
    labels: tuple[str, ...]
    train: Store
    validation: Store
    counts: dict[str, dict[str, int]]  # split -> label -> rows
    text_bytes: dict[str, int]  # split -> bytes of its texts, as UTF-8
    notes: list[str]
    data_hash: str

    def rows(self, split: Split) -> int:
        return sum(self.counts[split].values())


@dataclass(frozen=True)
class GivenTokenizers:
    """Tokenizers that are not trained here: those of a pre-trained model."""

    source: Tokenizer
    target: Tokenizer | None = None  # of translations, where it is another

    def identity(self) -> str:
        whole = self.source.to_json()
        return hashed(whole if self.target is None else [whole, self.target.to_json()])


@dataclass
class _Tally:
    """What the first pass counts."""

    counts: dict[Split, Counter[str]] = field(default_factory=lambda: {split: Counter() for split in SPLITS})
    text_bytes: Counter[Split] = field(default_factory=Counter)
    empty: int = 0
    unlabelled: int = 0
    first_empty: str = ""
    first_unlabelled: str = ""
    elsewhere: int = 0  # rows that are also in a file that is held out
    first_elsewhere: str = ""
    untrained: Counter[str] = field(default_factory=Counter)  # rows split off with a label that no training row has
    first_of: dict[str, str] = field(default_factory=dict)  # label -> place of its first row

    def notes(self) -> list[str]:
        said = []
        if self.empty:
            said.append(f"{self.empty:,} rows have no text and are left out, first {self.first_empty}")
        if self.unlabelled:
            said.append(f"{self.unlabelled:,} rows have no label and are left out, first {self.first_unlabelled}")
        if self.untrained:
            found = f"{self.untrained.total():,} validation and test rows have a label that no training row has"
            said.append(f"{found} and are left out: {listed(list(self.untrained)[:5])}")
        if self.elsewhere:
            found = f"{self.elsewhere:,} rows are also in a validation or test file"
            said.append(f"{found} and are left out, first {self.first_elsewhere}")
        return said

    def count_held_out(self, row: Row) -> None:
        self.elsewhere += 1
        self.first_elsewhere = self.first_elsewhere or row.place


def prepare(corpus: Corpus, wanted: TokenizerConfig | GivenTokenizers, cache: Path, say: Say = silent) -> Prepared:
    """Stores and tokenizer of a corpus: from the cache, or made now. Only one process makes them, others wait. A
    tokenizer is trained as configured, unless one is given."""
    # The order of label names is the order of the labels, and not part of the data's hash.
    by = wanted.identity() if isinstance(wanted, GivenTokenizers) else wanted.model_dump()
    format = {**asdict(corpus.format), "sentences": corpus.format.sentences and identity(corpus.format.sentences)}
    inputs = [VERSION, corpus.data_hash, sorted(corpus.split_off), list(corpus.label_names), by, format]
    folder = cache / "stores" / hashed(inputs)[:32]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(folder.with_suffix(".lock")):
            for left in folder.parent.glob(f"{folder.name}.tmp-*"):
                shutil.rmtree(left, ignore_errors=True)  # of a killed process: a live one holds the lock
            wrong = disk.problems(folder) if folder.exists() else []
            if wrong:
                say(f"{wrong[0]}; rebuilding it")
                disk.remove_folder(folder)
            if not folder.exists():
                _make(corpus, wanted, folder, say)
    except OSError as error:
        raise UserError(f"{folder}: cannot be written: {error.strerror}; set QKV_CACHE to another folder") from None
    return _open(corpus, folder)


def _make(corpus: Corpus, wanted: TokenizerConfig | GivenTokenizers, folder: Path, say: Say) -> None:
    tally, format = _Tally(), corpus.format
    say(
        "reading the corpus" if isinstance(wanted, GivenTokenizers) else "reading the corpus and training the tokenizer"
    )
    tokenizer, target = _tokenizers(corpus, wanted, tally)
    labels = _labels(corpus, tally)
    facts = {"labels": list(labels), "counts": tally.counts, "bytes": tally.text_bytes, "notes": tally.notes()}
    say(f"tokenising {sum(sum(c.values()) for c in tally.counts.values()):,} {format.unit}")
    with disk.new_folder(folder) as made:
        (made / "tokenizer.json").write_text(tokenizer.to_json(), encoding="utf-8")
        if target is not None:
            (made / TARGET).write_text(target.to_json(), encoding="utf-8")
        for split in ("train", "validation"):
            whole = (row for _, row in corpus.rows([split]) if is_whole(corpus, row))
            rows = (row for row in whole if not labels or corpus.label_of(row) in labels)
            with Writer(made, split, pairs=_has_pairs(corpus), numbers=format.labels == "numbers") as writer:
                if format.sentences is not None:
                    write_sentences(rows, tokenizer, format.sentences, writer)
                else:
                    write_rows(rows, tokenizer, target, lambda row: _number(corpus, labels, row), writer)
        (made / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
        corpus.check_unchanged()


def is_whole(corpus: Corpus, row: Row) -> bool:
    """Whether a row has text and label."""
    return _has_text(corpus, row) and _counted_as(corpus, row) is not None


def _has_text(corpus: Corpus, row: Row) -> bool:
    parts = (row.text, row.pair or "")
    return all(part.strip() for part in parts) if corpus.format.aligned else any(part.strip() for part in parts)


def _counted_as(corpus: Corpus, row: Row) -> str | None:
    """What a row is counted as: its label; None where it has none and is left out."""
    if corpus.format.labels == "none":
        return corpus.format.unit
    label = corpus.label_of(row)
    if label is None or corpus.format.labels == "classes":
        return label
    parse_number(label, row.place)
    return corpus.format.unit


def _has_pairs(corpus: Corpus) -> bool:
    return corpus.columns.pair is not None


def _number(corpus: Corpus, labels: dict[str, int], row: Row) -> float:
    """What a store holds of a row's label."""
    label = corpus.label_of(row) or ""
    return parse_number(label, row.place) if corpus.format.labels == "numbers" else labels.get(label, -1)


def _tokenizers(
    corpus: Corpus, wanted: TokenizerConfig | GivenTokenizers, tally: _Tally
) -> tuple[Tokenizer, Tokenizer | None]:
    """The tokenizer, and the target tokenizer where it is another. All rows are counted on the way."""
    rows = _training_rows(corpus, tally)
    first = next(rows, None)
    made, target = (wanted.source, wanted.target) if isinstance(wanted, GivenTokenizers) else (None, None)
    if isinstance(wanted, TokenizerConfig) and first is not None:
        keys = wanted.model_dump(exclude={"shared"}) | {"around": corpus.format.special_tokens}
        every = itertools.chain([first], rows)
        if corpus.format.aligned and not wanted.shared:
            sources, targets = itertools.tee(every)
            made = train_tokenizer((row.text for row in sources), **keys)
            target = train_tokenizer((row.pair or "" for row in targets), **keys)
        else:
            made = train_tokenizer((text for row in every for text in (row.text, row.pair) if text), **keys)
    for _ in rows:
        pass  # rows that the tokenizer did not need are still counted
    _labels(corpus, tally)  # raises where there is nothing to train on
    assert made is not None, "there are training rows"
    return made, target


def _training_rows(corpus: Corpus, tally: _Tally) -> Iterator[Row]:
    """The training rows for the tokenizer, as many as it needs; all rows are counted on the way."""
    given = 0
    for split, row in corpus.rows(left_out=tally.count_held_out):
        label = _counted_as(corpus, row)
        if not _has_text(corpus, row):
            tally.empty += 1
            tally.first_empty = tally.first_empty or row.place
        elif label is None:
            tally.unlabelled += 1
            tally.first_unlabelled = tally.first_unlabelled or row.place
        else:
            tally.counts[split][label] += 1
            tally.text_bytes[split] += len(row.text.encode("utf-8", "surrogatepass"))
            tally.first_of.setdefault(label, row.place)
            if split == "train" and given < TRAINING_CHARACTERS:
                given += len(row.text) + len(row.pair or "")
                yield row


def _labels(corpus: Corpus, tally: _Tally) -> dict[str, int]:
    """The labels of the training rows and their ids: in numeric order where all are whole numbers, else by name."""
    counted = tally.counts["train"]
    everything = sum(sum(counts.values()) for counts in tally.counts.values())
    if not everything or (not counted and tally.notes()):
        left_out = "; ".join(tally.notes())
        raise UserError(f"{corpus.where}: no rows to train on" + (f": {left_out}" if left_out else ""))
    if not counted:
        raise UserError(
            f"{corpus.where}: all {everything:,} rows are in the validation and test splits (their texts are equal); "
            "none is left to train on"
        )
    if corpus.format.labels != "classes":
        return {}
    _check_labels(corpus, counted, tally.first_of)
    rank = {name: number for number, name in enumerate(corpus.label_names.values())}
    whole = all(re.fullmatch(r"-?[0-9]{1,1000}", label) for label in counted)
    labels = sorted(counted, key=lambda label: (rank.get(label, len(rank)), int(label) if whole else 0, label))
    for split in ("validation", "test"):
        for label in [label for label in tally.counts[split] if label not in counted]:
            if split not in corpus.split_off:
                raise UserError(
                    f"{tally.first_of[label]}: label {label!r} is in no training row; known: {listed(labels[:100])}"
                )
            tally.untrained[label] += tally.counts[split].pop(label)
    return {label: number for number, label in enumerate(labels)}


def _check_labels(corpus: Corpus, counted: Counter[str], first_of: dict[str, str]) -> None:
    """Are these the names of classes?"""
    rows = sum(counted.values())
    column = corpus.columns.label
    if len(counted) > 100 and 2 * len(counted) > rows:
        found = f"{len(counted):,} different labels in {rows:,} training rows"
        raise UserError(f"{corpus.where}: {found}; is {column!r} the label column? data.label names another")
    if len(counted) < 2:
        found = f"only one label, {next(iter(counted))!r}, in {rows:,} training rows"
        raise UserError(f"{corpus.where}: {found} of column {column!r}; a classifier needs at least two")
    for label in counted:
        if not fits_a_line(label):
            accepted = "at most 200 printable characters"
            raise UserError(f"{first_of[label]}: label {ascii(label)[:80]}; accepted: {accepted}")


def _open(corpus: Corpus, folder: Path) -> Prepared:
    facts, numbers = read_facts(folder), corpus.format.labels == "numbers"
    train, validation = (
        open_store(folder, split, pairs=_has_pairs(corpus), numbers=numbers) for split in ("train", "validation")
    )
    return Prepared(
        tokenizer=Tokenizer.from_file(folder / "tokenizer.json"),
        target=Tokenizer.from_file(folder / TARGET) if (folder / TARGET).exists() else None,
        labels=tuple(facts["labels"]),
        train=train,
        validation=validation,
        counts=facts["counts"],
        text_bytes=facts["bytes"],
        notes=facts["notes"],
        data_hash=corpus.data_hash,
    )
