"""What is in a table: which columns are text, label or number, which task that makes, what is odd about the rows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from qkv.corpus import files
from qkv.corpus.files import Columns, Row
from qkv.corpus.split import hash_position
from qkv.corpus.tables import open_table
from qkv.schema import UserError, listed, nearest

SAMPLE = 2000  # rows that decide what a column is
TEXT_NAMES = ("text", "message", "review", "sentence", "content", "body", "comment", "description", "document",
              "question", "tweet", "post", "utterance", "query", "title", "abstract", "summary", "sms")  # fmt: skip
LABEL_NAMES = ("label", "labels", "class", "category", "target", "sentiment", "y", "tag", "intent", "topic", "team",
               "type", "score", "rating", "stars", "grade", "similarity", "genre", "language", "spam")  # fmt: skip
PAIR_NAMES = (("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("text_a", "text_b"),
              ("text1", "text2"), ("sentence_a", "sentence_b"), ("query", "passage"), ("question", "answer"),
              ("question", "sentence"), ("#1 string", "#2 string"), ("text", "pair"))  # fmt: skip
TARGET_NAMES = (("source", "target"), ("text", "target"), ("input", "output"), ("src", "tgt"), ("question", "answer"),
                ("english", "french"), ("english", "german"), ("english", "spanish"), ("en", "de"), ("en", "fr"),
                ("en", "es"))  # fmt: skip
ID_NAMES = ("id", "index", "idx", "row", "key", "uuid")
STRAY_LABELS = {"", "na", "n/a", "nan", "none", "null", "-", "?", "unknown", "undefined"}
MANY_VALUES = 20  # different numbers from here on: a quantity, not classes
MOST_CLASSES = 1000
SEPARATORS = re.compile(r"\s*[;|,]\s*")  # of several labels in one cell
FEW_OF_A_LABEL = 5

Task = Literal["classify", "regress", "translate"]


@dataclass(frozen=True)
class ColumnFacts:
    """What the first rows say about a column."""

    name: str
    filled: int
    distinct: int
    words: float  # mean number of them in a filled cell
    numbers: float  # share of the filled cells that are numbers
    fractions: bool  # some are not whole

    @property
    def is_text(self) -> bool:
        """Free text: several words, mostly different from row to row."""
        return self.numbers < 0.5 and self.words >= 1.5 and self.distinct > 0.3 * self.filled

    @property
    def is_number(self) -> bool:
        """A quantity: numbers, and too many different ones for classes."""
        return self.numbers > 0.95 and (self.distinct > MANY_VALUES or (self.fractions and self.distinct > 5))

    @property
    def is_label(self) -> bool:
        """A few values that come again and again."""
        return 1 < self.distinct <= max(2, min(MOST_CLASSES, 0.5 * self.filled)) and self.words < 6

    @property
    def is_id(self) -> bool:
        named = self.name.strip().lower() in ID_NAMES or self.name.lower().endswith("_id")
        return named or (self.numbers == 1.0 and not self.fractions and self.distinct == self.filled > 20)


@dataclass(frozen=True)
class Roles:
    """Which column is what, and the task that this makes."""

    task: Task
    text: str
    pair: str | None = None  # second text of a pair, or the target of a translation
    label: str | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TableFacts:
    """What the rows of a table are."""

    rows: int
    texts: int  # different ones
    labels: Counter[str] = field(default_factory=Counter)
    notes: tuple[str, ...] = ()

    @property
    def rarest_share(self) -> float:
        return min(self.labels.values(), default=0) / max(1, self.rows)


def column_facts(paths: Sequence[Path]) -> list[ColumnFacts]:
    """What each column of a table seems to hold."""
    names = files.column_names(paths)
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise UserError(f"{paths[0]}: column {repeated[0]!r} is there twice; rename one")
    cells = _sample(paths, names)
    return [_facts(name, [cell for cell in cells[name] if cell]) for name in names]


def _sample(paths: Sequence[Path], names: list[str]) -> dict[str, list[str]]:
    """The cells of the first rows, by column. JSON and Parquet also hold numbers and booleans, which are labels."""
    if not names or files.kind_of(paths[0]) == ".zip":
        read = {name: itertools.islice(files.rows(paths, Columns(name, label=None)), SAMPLE) for name in names}
        return {name: [row.text.strip() for row in rows] for name, rows in read.items()}
    table = open_table(paths[0], Columns(names[0], label=None))
    records = [record for _, record in itertools.islice(table.records(), SAMPLE)]
    return {name: [_as_text(record[n]) for record in records] for n, name in enumerate(table.names)}


def _as_text(cell: object) -> str:
    if isinstance(cell, bool):
        return str(cell).lower()
    return str(cell).strip() if isinstance(cell, str | int | float) and cell == cell else ""  # NaN is not itself


def _facts(name: str, cells: list[str]) -> ColumnFacts:
    numbers = [cell for cell in cells if _is_number(cell)]
    words = sum(_words(cell) for cell in cells) / max(1, len(cells))
    fractions = any("." in cell and not cell.rstrip("0").endswith(".") for cell in numbers)
    return ColumnFacts(name, len(cells), len(set(cells)), words, len(numbers) / max(1, len(cells)), fractions)


def _words(cell: str) -> float:
    """Words of a text; scripts that write none between blanks have about one for two characters."""
    blanks = len(cell.split())
    return max(blanks, len(cell) / 2) if any(ord(char) > 0x2E80 for char in cell[:50]) else blanks


def _is_number(cell: str) -> bool:
    return re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", cell) is not None


def find_roles(
    paths: Sequence[Path], *, text: str | None = None, pair: str | None = None, label: str | None = None,
    target: str | None = None,
) -> Roles:  # fmt: skip
    """Which columns are text and label. What the caller names is taken as it is."""
    columns = {one.name: one for one in column_facts(paths)}
    for role, name in (("--text", text), ("--pair", pair), ("--label", label), ("--target", target)):
        if name is not None and name not in columns:
            raise UserError(f"{role} {name}: {paths[0].name} has no such column; {nearest(name, columns)}")
    given = [name for name in (text, pair, label, target) if name is not None]
    if len(set(given)) < len(given):
        raise UserError(f"{paths[0].name}: one column cannot be two of --text, --pair and --label: {listed(given)}")
    left = {name: one for name, one in columns.items() if name not in given}
    named = _by_name(left, LABEL_NAMES)
    if target is not None or (label is None and not _label_candidates(left) and not named):
        return _translation(paths, left, text, target)
    label = label or _choose_label(paths, left)
    left.pop(label, None)
    first, second, notes = _choose_texts(paths, left, text, pair)
    chosen = columns[label]
    if chosen.distinct < 2:
        found = f"{chosen.filled:,} labels in the first rows, {chosen.distinct} of them different"
        raise UserError(
            f"{paths[0].name}: column {label!r} has {found}; a model needs at least two; --label names another"
        )
    if not chosen.is_number and chosen.filled >= 20 and chosen.distinct > 0.9 * chosen.filled:
        found = f"{chosen.distinct:,} different values in {chosen.filled:,} rows"
        others = _label_candidates(left) or list(left)
        raise UserError(
            f"{paths[0].name}: column {label!r} has {found}, so it is probably not a label; --label names another: "
            f"{listed(others)}"
        )
    return Roles("regress" if chosen.is_number else "classify", first, second, label, notes)


def _by_name(names: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Those of the names that are wanted, by case and order of the wanted."""
    spelled = {name.strip().lower(): name for name in names}
    return [spelled[one] for one in wanted if one in spelled]


def _label_candidates(columns: dict[str, ColumnFacts]) -> list[str]:
    return [
        one.name
        for one in columns.values()
        if not one.is_id and (one.is_label or one.is_number) and not (one.is_text and one.words > 3)
    ]


def _is_text_name(name: str) -> bool:
    """Whether a column is called as texts are: `text`, `question1`, `sentence_b`."""
    stem = re.sub(r"[ _]?([0-9]|[ab])$", "", name.strip().lower())
    return stem in TEXT_NAMES or any(name.strip().lower() in pair for pair in PAIR_NAMES)


def _choose_label(paths: Sequence[Path], columns: dict[str, ColumnFacts]) -> str:
    candidates = [name for name in _label_candidates(columns) if not _is_text_name(name)]
    candidates = candidates or _label_candidates(columns)
    named = _by_name(columns, LABEL_NAMES)
    if named and (named[0] in candidates or not candidates):
        return named[0]
    fitting = [name for name in named if name in candidates]
    if fitting:
        return fitting[0]
    classes = [name for name in candidates if not columns[name].is_number]
    if len(classes) == 1:
        return classes[0]
    if len(candidates) == 1:
        return candidates[0]
    raise UserError(
        f"{paths[0].name}: which column is the label? {listed(candidates)} could be; name it: --label {candidates[0]}"
    )


def _choose_texts(
    paths: Sequence[Path], columns: dict[str, ColumnFacts], text: str | None, pair: str | None
) -> tuple[str, str | None, tuple[str, ...]]:
    """The text column, the second one of a pair, and what was left aside."""
    texts = {name: one for name, one in columns.items() if one.is_text}
    if text is None and pair is None:
        for names in PAIR_NAMES:
            both = _by_name(columns, names)
            if len(both) == 2 and all(columns[name].numbers < 0.5 for name in both):
                return both[0], both[1], ()
    if text is None:
        named = [name for name in _by_name(columns, TEXT_NAMES) if columns[name].numbers < 0.5]
        longest = max(texts, key=lambda name: texts[name].words, default=None)
        text = next((name for name in named if name in texts), longest) or next(iter(named), None)
    if text is None:
        raise UserError(
            f"{paths[0].name}: no column holds text; columns: {listed(columns) or 'none'}; name it: --text COLUMN"
        )
    aside = [name for name in texts if name not in (text, pair)]
    notes = (f"text columns that are not read: {listed(aside)} (--text, --pair)",) if aside else ()
    return text, pair, notes


def _translation(paths: Sequence[Path], columns: dict[str, ColumnFacts], text: str | None, target: str | None) -> Roles:
    """Two columns of text and no label: the second is the translation of the first."""
    texts = [name for name, one in columns.items() if one.is_text or (one.numbers < 0.5 and one.distinct > 20)]
    if text is None and target is None:
        for names in TARGET_NAMES:
            both = _by_name(columns, names)
            if len(both) == 2:
                return Roles("translate", both[0], both[1])
    if text is not None and target is not None:
        return Roles("translate", text, target)
    others = [name for name in texts if name not in (text, target)]
    if text is None and target is None and len(others) == 2:
        return Roles("translate", others[0], others[1])
    if len(others) == 1 and (text is not None or target is not None):
        return Roles("translate", text or others[0], target or others[0])
    raise UserError(
        f"{paths[0].name}: no label column found; columns: {listed(columns) or 'none'}. For classification or "
        "regression name it: --label COLUMN; for translation write a recipe (docs/tasks.md)"
    )


def table_facts(rows: Iterable[tuple[str | None, Row]], where: str, *, classes: bool) -> TableFacts:
    """Count rows and labels, and look for what would make a metric lie: duplicates, contradictions, odd labels. Labels
    are `classes`, or numbers."""
    labels, seen = Counter[str](), dict[float, str]()
    counted = duplicates = contradictions = 0
    for label, row in rows:
        if label is None or not (row.text.strip() or (row.pair or "").strip()):
            continue
        counted += 1
        labels[label] += classes
        position = hash_position(row.text, row.pair)
        if position in seen:
            duplicates += 1
            contradictions += classes and seen[position] != label
        else:
            seen[position] = label
    notes = []
    if duplicates > 0.05 * counted:
        notes.append(f"{duplicates:,} of {counted:,} rows repeat the text of another row; they stay in one split")
    if contradictions:
        notes.append(f"{contradictions:,} rows have the text of another row with another label")
    if classes:
        _refuse_several_labels(labels, where)
        notes += _label_notes(labels, counted)
    return TableFacts(counted, len(seen), +labels, tuple(notes))


def _refuse_several_labels(labels: Counter[str], where: str) -> None:
    """Cells such as `red;blue` beside `red` and `blue`: several labels for one text."""
    split = {label: _parts(label) for label in labels}
    joined = {label: parts for label, parts in split.items() if len(parts) > 1 and not "".join(parts).isdigit()}
    alone = {parts[0] for parts in split.values() if len(parts) == 1}
    counted = Counter(part for parts in joined.values() for part in parts)
    known = sum(not alone.isdisjoint(parts) for parts in joined.values())
    shared = sum(count > 1 for count in counted.values())
    if len(joined) >= 2 and (known > 0.5 * len(joined) or shared > 0.5 * len(counted)):
        example = next(iter(joined))
        raise UserError(
            f"{where}: label {example[:80]!r} holds several labels; a text has exactly one here: keep the main one, or "
            "train a classifier for each label (yes or no)"
        )


def _parts(label: str) -> list[str]:
    return [part.strip("'\" ") for part in SEPARATORS.split(label.strip("[](){}"))]


def _label_notes(labels: Counter[str], rows: int) -> list[str]:
    notes = []
    stray = [label for label in labels if label.strip().lower() in STRAY_LABELS]
    if stray:
        found = listed(f"{label!r} ({labels[label]:,} rows)" for label in stray)
        notes.append(f"label {found} looks like a missing value; it is trained as a class")
    common, count = labels.most_common(1)[0] if labels else ("", 0)
    if len(labels) > 1 and count > 0.8 * rows:
        notes.append(
            f"{count / rows:.0%} of the rows have the label {common!r}; accuracy says little, look at macro F1"
        )
    folded = Counter(label.casefold() for label in labels)
    alike = [label for label in labels if folded[label.casefold()] > 1]
    if alike:
        notes.append(
            f"labels that differ only in case are different classes: {listed(sorted(alike, key=str.casefold)[:6])}"
        )
    rare = [label for label, count in labels.items() if count < FEW_OF_A_LABEL]
    if rare:
        notes.append(f"{len(rare)} labels have fewer than {FEW_OF_A_LABEL} rows, too few to learn: {listed(rare[:5])}")
    return notes
