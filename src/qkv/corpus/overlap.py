"""Which rows of a file a run was trained on: equal by the hash of the normalised text, as everywhere."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from qkv.config.recipe import DataConfig
from qkv.corpus import catalog
from qkv.corpus.corpus import BOTH, Corpus, RowFormat, open_corpus
from qkv.corpus.files import Row
from qkv.corpus.split import hash_position
from qkv.schema import UserError


@dataclass(frozen=True)
class Overlap:
    """How many of `rows` rows are in the training and in the validation split of a run."""

    rows: int
    train: int
    validation: int
    unit: str = "rows"  # or documents, or pairs

    def __str__(self) -> str:
        one = self.unit.removesuffix("s")
        if not self.train and not self.validation:
            return f"note: none of the {self.rows:,} {self.unit} is a training or validation {one} of this run"
        also = f", and {self.validation:,} are validation {self.unit}" if self.validation else ""
        return (
            f"warning: {self.train:,} of {self.rows:,} {self.unit} are training {self.unit} of this run{also}: "
            "the metrics are too good"
        )


def own_corpus(data: DataConfig, format: RowFormat) -> Corpus | None:
    """The corpus of a run, if it is still here. Nothing is downloaded."""
    known = catalog.entries()
    for chosen in (data.corpus, data.validation, data.test):
        parts = [chosen] if os.path.lexists(chosen) else [part.strip() for part in chosen.split(BOTH)]
        if any(part in known and not catalog.present(known[part]) for part in parts):
            return None
    try:
        return open_corpus(data, format)
    except UserError:
        return None


def overlap(rows: Iterable[Row], own: Corpus) -> Overlap:
    """Count the rows that a run has seen. Memory grows with `rows`, not with the corpus of the run."""
    aligned = own.format.aligned

    def position(row: Row) -> float:
        return hash_position(row.text, None if aligned else row.pair)

    counts = Counter(position(row) for row in rows)
    seen: dict[str, set[float]] = {"train": set(), "validation": set()}
    for split, row in own.rows(["train", "validation"]):
        where = position(row)
        if where in counts:
            seen[split].add(where)
    train = sum(counts[where] for where in seen["train"])
    validation = sum(counts[where] for where in seen["validation"] - seen["train"])
    return Overlap(counts.total(), train, validation, own.format.unit)
