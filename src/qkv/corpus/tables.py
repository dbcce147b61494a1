"""Whole tables, all columns, record by record. No torch.

Which format a table has is told by its name. Text stays text; cells of JSON and Parquet keep their types.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv.corpus import files, formats
from qkv.corpus.formats import BATCH, Columns, refuse_errors
from qkv.corpus.records import InputFile, Records, csv_records, lines_of, plain_lines, tsv_records, xlsx_records
from qkv.schema import UserError

JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".csv", ".tsv", *JSON_LINES, ".parquet", ".xlsx")  # what is read as a table by its name
Cell = Any  # str; from JSON and Parquet also None, a number, true or false, a list, a dict


class _Missing:
    """The cell of a JSON object that lacks the key: left out again in JSON, empty elsewhere."""


MISSING = _Missing()


@dataclass(frozen=True)
class Table:
    """A table on disk that can be read again and again. Its columns are `names`, in their order."""

    path: Path
    source: InputFile
    kind: str
    names: list[str]
    columns: Columns
    separator: str = ""

    def records(self) -> Iterator[tuple[str, list[Cell]]]:
        """Every record with its place, "in.csv, line 12"."""
        with files.in_words(self.source.name):
            if self.kind in JSON_LINES:
                yield from _json_rows(self.source, self.names)
            elif self.kind == ".parquet":
                yield from _parquet_rows(self.source)
            else:
                for place, record in _text_records(self.source, self.kind, self.columns).rows:
                    if self.kind == ".xlsx":
                        refuse_errors(record, self.columns.wanted().values(), self.names, place)
                    yield place, record


def is_table(path: Path) -> bool:
    """Whether a file's name says that it is a table; the members of a zip decide for it."""
    kind = files.kind_of(path)
    return kind in TABLES or kind == ".zip"


def open_table(path: Path, columns: Columns) -> Table:
    """A table, with the columns that are wanted of it found in its header. A file of plain text is a table with the one
    column `text`."""
    with closing(files.sources([path], labelled=False)) as found:
        some = list(found) if files.kind_of(path) != ".zip" else []
        if not some:
            raise UserError(f"{path}: a table cannot be read inside a zip; unpack it and give the file")
        source, kind = some[0]
    with files.in_words(source.name):
        separator = ""
        if kind in JSON_LINES:
            names = _json_names(source)
        elif kind == ".parquet":
            names = formats.names_in(source, kind)
        else:
            records = _text_records(source, kind, columns)
            names, separator = records.names, records.separator
        formats.places_of(source, names, columns, separator)
        if kind == ".parquet":
            formats.check_parquet(source, columns)
    return Table(path, source, kind, names, columns, separator)


def _text_records(source: InputFile, kind: str, columns: Columns) -> Records:
    if kind == ".csv":
        return csv_records(source, columns.wanted().values())
    if kind == ".tsv":
        return tsv_records(source, columns.text)
    if kind == ".xlsx":
        return xlsx_records(source)
    lines = ((f"{source.name}, line {number}", [line]) for number, line in plain_lines(source))
    return Records(["text"], lines, "")


# --- JSON lines


def _json_names(source: InputFile) -> list[str]:
    """All keys, in the order in which they first occur. It must be possible to write every line again."""
    names: dict[str, None] = {}
    for place, table in _json_objects(source):
        names.update(dict.fromkeys(table))
        try:
            json.dumps(table, ensure_ascii=False, allow_nan=False).encode()
        except ValueError as error:  # half a character, or a number that is too large
            raise UserError(f"{place}: {str(error)[:100]}") from None
    return list(names)


def _json_rows(source: InputFile, names: Sequence[str]) -> Iterator[tuple[str, list[Cell]]]:
    for place, table in _json_objects(source):
        yield place, [table.get(name, MISSING) for name in names]


def _json_objects(source: InputFile) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in enumerate(lines_of(source), 1):
        if line.strip():
            place = f"{source.name}, line {number}"
            yield place, formats.json_object(line, place)


# --- Parquet


def _parquet_rows(source: InputFile) -> Iterator[tuple[str, list[Cell]]]:
    number = 0
    for batch in parquet_batches(source):
        for record in zip(*(_values(column) for column in batch.columns), strict=True):
            number += 1
            yield f"{source.name}, row {number}", list(record)


def parquet_batches(source: InputFile) -> Iterator[Any]:
    """A Parquet file as it is, batch by batch."""
    with formats.parquet_file(source) as table:
        yield from table.iter_batches(batch_size=BATCH)


def _values(column: Any) -> list[Cell]:
    """A column as JSON could hold it: times, decimals and the like as text."""
    from pyarrow import types

    kind = column.type.value_type if types.is_dictionary(column.type) else column.type
    plain = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_floating,
             types.is_boolean, types.is_nested, types.is_null)  # fmt: skip
    return list((column if any(test(kind) for test in plain) else column.cast("string")).to_pylist())
