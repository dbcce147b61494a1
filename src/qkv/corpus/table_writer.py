"""Tables written with more columns than they had: CSV, TSV, JSON lines, Parquet. No torch.

Cells keep their values, and their types where the format has types. CSV keeps the separator of a CSV input and the byte
order mark that Excel writes. Nothing is changed to keep a spreadsheet from reading a cell as a formula: labels such as
-1 must stay what they are.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

from qkv.corpus import formats
from qkv.corpus.formats import BATCH
from qkv.corpus.records import InputFile
from qkv.corpus.tables import JSON_LINES, MISSING, Cell, Table, parquet_batches
from qkv.schema import UserError

WRITTEN = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")


class Writer(Protocol):
    """Writes records below a header that it has written."""

    def write(self, records: Iterable[Sequence[Cell]]) -> None: ...


@dataclass(frozen=True)
class Added:
    """Columns that are added to a table; `numbers` are those that hold numbers."""

    names: list[str]
    numbers: frozenset[str] = frozenset()


def check_written(path: Path) -> None:
    """Whether tables can be written under such a name."""
    if path.suffix.lower() not in WRITTEN:
        raise UserError(f"{path}: the name of a table that is written must end in one of {', '.join(WRITTEN)}")


def fresh_names(names: Iterable[str], taken: Iterable[str]) -> list[str]:
    """Names for new columns that a table does not have: `label`, else `predicted_label`, `predicted_label_2`, ..."""
    used, chosen = set(taken), list[str]()
    for name in names:
        one, number = name, 1
        while one in used:
            one = f"predicted_{name}" if number == 1 else f"predicted_{name}_{number}"
            number += 1
        used.add(one)
        chosen.append(one)
    return chosen


def text_writer(stream: TextIO, kind: str, names: Sequence[str], like: Table | None = None) -> Writer:
    """Writes CSV, TSV or JSON lines to a stream. CSV is written `like` a CSV table: with its separator."""
    if kind in JSON_LINES:
        return _JsonWriter(stream, names)
    separator = "\t" if kind == ".tsv" else ","
    if like is not None and like.kind == kind == ".csv":
        separator = like.separator
        stream.write("\ufeff" if _has_mark(like.source) else "")
    writer = _TextWriter(stream, separator)
    writer.write([names])
    return writer


def write_table(path: Path, kind: str, table: Table, added: Added, answers: Iterable[Sequence[Cell]]) -> None:
    """A table with columns added: one list of answers for each record."""
    names = [*table.names, *added.names]
    if kind == ".parquet" or kind in JSON_LINES:
        check_distinct(table, kind)
    if kind == ".parquet":
        _write_parquet(path, table, added, iter(answers))
        return
    with path.open("w", encoding="utf-8", newline="") as stream:
        joined = zip(table.records(), answers, strict=True)
        text_writer(stream, kind, names, table).write([*record, *answer] for (_, record), answer in joined)


def write_rows(path: Path, kind: str, columns: Added, rows: Sequence[Sequence[Cell]]) -> None:
    """A new table."""
    if kind == ".parquet":
        _write_batches(path, [], columns, [([], rows)])
        return
    with path.open("w", encoding="utf-8", newline="") as stream:
        text_writer(stream, kind, columns.names).write(rows)


def check_distinct(table: Table, kind: str) -> None:
    """JSON and Parquet need a name of its own for each column."""
    twice = sorted({name for name in table.names if table.names.count(name) > 1})
    if twice:
        raise UserError(
            f"{table.source.name}: column {twice[0]!r} is there twice, which {kind} cannot hold; write .csv"
        )


def as_text(cell: Cell) -> str:
    """A cell of CSV: text as it is, nothing for null, anything else as JSON writes it."""
    if isinstance(cell, str):
        return cell
    return "" if cell is None or cell is MISSING else json.dumps(cell, ensure_ascii=False, default=str)


@dataclass(frozen=True)
class _TextWriter:
    stream: TextIO
    separator: str

    def write(self, records: Iterable[Sequence[Cell]]) -> None:
        minimal, full = (
            csv.writer(self.stream, delimiter=self.separator, lineterminator="\n", quoting=quoting)
            for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
        )
        for record in records:
            cells = [as_text(cell) for cell in record]
            (full if any("\r" in cell for cell in cells) else minimal).writerow(cells)  # csv quotes \n, but no \r


@dataclass(frozen=True)
class _JsonWriter:
    stream: TextIO
    names: Sequence[str]

    def write(self, records: Iterable[Sequence[Cell]]) -> None:
        for record in records:
            pairs = zip(self.names, record, strict=True)
            table = {name: None if _is_no_number(cell) else cell for name, cell in pairs if cell is not MISSING}
            self.stream.write(json.dumps(table, ensure_ascii=False, default=str) + "\n")


def _is_no_number(cell: Cell) -> bool:
    """NaN and the infinities of Parquet, which JSON does not have."""
    return isinstance(cell, float) and not math.isfinite(cell)


def _has_mark(source: InputFile) -> bool:
    with source.open() as stream:
        return stream.read(3) == codecs.BOM_UTF8


def _write_parquet(path: Path, table: Table, added: Added, answers: Iterator[Sequence[Cell]]) -> None:
    """Parquet keeps the columns of Parquet as they are; cells of other formats are strings, as CSV would have them."""
    arrow, _ = _arrow(path)
    if table.kind == ".parquet":
        with formats.parquet_file(table.source) as opened:
            fields = list(opened.schema_arrow)
        batches = ((batch.columns, batch.num_rows) for batch in parquet_batches(table.source))
    else:
        fields = [arrow.field(name, arrow.string()) for name in table.names]
        batches = ((_transposed(some, len(fields)), len(some)) for some in _batches(table.records()))
    joined = ((columns, [next(answers) for _ in range(rows)]) for columns, rows in batches)
    _write_batches(path, fields, added, joined)


def _write_batches(
    path: Path, fields: list[Any], added: Added, batches: Iterable[tuple[list[Any], Sequence[Sequence[Cell]]]]
) -> None:
    """Batches of columns that are there, and of rows that are added."""
    arrow, parquet = _arrow(path)
    new = [arrow.field(name, arrow.float64() if name in added.numbers else arrow.string()) for name in added.names]
    schema = arrow.schema([*fields, *new])
    with parquet.ParquetWriter(path, schema) as writer:
        for columns, rows in batches:
            pairs = zip(_transposed(rows, len(new)), new, strict=True)
            arrays = [arrow.array(cells, field.type) for cells, field in pairs]
            writer.write_batch(arrow.record_batch([*columns, *arrays], schema=schema))


def _arrow(path: Path) -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{path}: writing Parquet needs pyarrow: pip install 'qkv[parquet]'") from None
    return pyarrow, parquet


def _transposed(rows: Sequence[Sequence[Cell]], width: int) -> list[list[Cell]]:
    """Columns from rows."""
    return [[row[place] for row in rows] for place in range(width)]


def _batches(records: Iterable[tuple[str, Sequence[Cell]]]) -> Iterator[list[list[str | None]]]:
    """Records as strings, some at a time."""
    some: list[list[str | None]] = []
    for _, record in records:
        some.append([None if cell is None or cell is MISSING else as_text(cell) for cell in record])
        if len(some) == BATCH:
            yield some
            some = []
    if some:
        yield some
