"""One file -> rows, for each known format. `files.py` opens the files, `documents.py` takes the lines of plain text,
`tables.py` all columns; nobody else imports this.

A reader gets an `InputFile` and yields rows as it goes: it never holds more than a buffer, one record or one batch.
Text is UTF-8, strictly. What a reader cannot make sense of it refuses, with file and line; it never guesses.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, NoReturn

from qkv.corpus import records
from qkv.corpus.records import (
    SEPARATORS,
    InputFile,
    Records,
    csv_records,
    lines_of,
    tsv_records,
    without_end,
    xlsx_records,
)
from qkv.corpus.workbook import ErrorCell
from qkv.schema import UserError, nearest

BATCH = 1024  # rows of Parquet read at once


@dataclass(frozen=True)
class Columns:
    """Which columns are read; None where the task has none."""

    text: str = "text"
    pair: str | None = None
    label: str | None = "label"
    group: str | None = None

    def wanted(self) -> dict[str, str]:
        """What we call a column -> what the file calls it, for those that are read."""
        pairs = ((one.name, getattr(self, one.name)) for one in fields(self))
        return {ours: theirs for ours, theirs in pairs if theirs is not None}


@dataclass(frozen=True, slots=True)
class Row:
    """One example as it stands in a file. Text is as it is; a label without surrounding blanks, None if empty."""

    text: str
    pair: str | None
    label: str | None
    group: str | None
    place: str  # "reviews.csv, line 12"; inside a zip "x.zip:member.csv, line 12"


class MissingColumn(UserError):
    """A column that a file does not have. The advice at its end is for a recipe; a command with other options gives its
    own by `advise`."""

    def __init__(self, found: str, column: str) -> None:
        self.found, self.column = found, column  # which of Columns: text, pair, label or group
        super().__init__(f"{found}; choose one with --set data.{column}=NAME")

    def advise(self, option: str) -> UserError:
        return UserError(f"{self.found}; choose one with {option} NAME")


def read_csv(source: InputFile, columns: Columns) -> Iterator[Row]:
    """The wanted columns of a CSV file."""
    yield from _picked(source, csv_records(source, columns.wanted().values()), columns)


def read_tsv(source: InputFile, columns: Columns) -> Iterator[Row]:
    """The wanted columns of a TSV file."""
    yield from _picked(source, tsv_records(source, columns.text), columns)


def read_xlsx(source: InputFile, columns: Columns) -> Iterator[Row]:
    """The wanted columns of the first sheet of an Excel workbook. Needs openpyxl."""
    yield from _picked(source, xlsx_records(source), columns)


def _picked(source: InputFile, table: Records, columns: Columns) -> Iterator[Row]:
    places = places_of(source, table.names, columns, table.separator)
    pick = _picker(places)
    for place, record in table.rows:
        if not table.separator:
            refuse_errors(record, columns.wanted().values(), table.names, place)
        yield pick(record, place)


def refuse_errors(record: Sequence[object], wanted: Iterable[str], names: Sequence[str], place: str) -> None:
    """A cell that is to be read must not be #N/A or another error of a spreadsheet."""
    for name in wanted:
        cell = record[names.index(name)]
        if isinstance(cell, ErrorCell):
            raise UserError(f"{place}: column {name!r} holds the error {cell}; correct its formula, or empty the cell")


def read_jsonl(source: InputFile, columns: Columns) -> Iterator[Row]:
    """One JSON object a line. A text is a string, or null for an empty one; a label may be missing."""
    label_seen, place = columns.label is None, ""
    table: dict[str, Any] = {}
    for number, line in enumerate(lines_of(source), 1):
        if not line.strip():
            continue
        place = f"{source.name}, line {number}"
        table = json_object(line, place)
        label_seen = label_seen or columns.label in table
        text = _text(table, "text", columns.text, place)
        pair = None if columns.pair is None else _text(table, "pair", columns.pair, place)
        label = None if columns.label is None else _word(table.get(columns.label), columns.label, place)
        group = None if columns.group is None else _word(table.get(columns.group), columns.group, place)
        if "\\u" in line:
            _no_half_characters([text, pair, label, group], place)
        yield Row(text, pair, label, group, place)
    if place and not label_seen:
        raise MissingColumn(f"{source.name}: no line has {_missing(str(columns.label), list(table))}", "label")


def read_text(source: InputFile, columns: Columns) -> Iterator[Row]:
    """Plain text: one text a line; or, with a label from its folder, one text a file."""
    if columns.pair is not None or columns.group is not None:
        extra = "pair" if columns.pair is not None else "group"
        raise UserError(f"{source.name}: plain text has no columns, but data.{extra} = {getattr(columns, extra)!r}")
    if columns.label is None:
        for number, line in enumerate(lines_of(source), 1):
            yield Row(without_end(line), None, None, None, f"{source.name}, line {number}")
        return
    if source.label is None:
        raise UserError(
            f"{source.name}: plain text has no column {columns.label!r}; accepted with labels: CSV, TSV, JSON lines, "
            "Parquet, or text files in one folder for each label, such as train/neg/1.txt and train/pos/1.txt"
        )
    pieces, size = [], 0
    for line in lines_of(source):
        pieces.append(line)
        size += len(line)
        if size > records.LARGEST:
            raise UserError(f"{source.name}: one text of over {records.MOST}")
    yield Row(without_end("".join(pieces)), None, source.label.strip() or None, None, f"{source.name}, line 1")


def read_parquet(source: InputFile, columns: Columns) -> Iterator[Row]:
    """Parquet, batch by batch, only the columns that are wanted. Needs pyarrow. Null is an empty text, or no label."""
    with parquet_file(source) as table:
        places_of(source, table.schema_arrow.names, columns, "")
        _check_kinds(source, table.schema_arrow, columns)
        theirs, number = (columns.text, columns.pair, columns.label, columns.group), 0
        for batch in table.iter_batches(batch_size=BATCH, columns=sorted({name for name in theirs if name})):
            found = (repeat(None) if name is None else batch.column(name).to_pylist() for name in theirs)
            for text, pair, label, group in zip(*found, strict=False):  # the text column is never endless
                number += 1
                place = f"{source.name}, row {number}"
                label, group = _word(label, columns.label, place), _word(group, columns.group, place)
                yield Row(text or "", None if columns.pair is None else pair or "", label, group, place)


@contextmanager
def parquet_file(source: InputFile) -> Iterator[Any]:
    """A Parquet file, open."""
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{source.name}: reading Parquet needs pyarrow: pip install 'qkv[parquet]'") from None
    with source.open() as stream:
        try:
            with parquet.ParquetFile(stream, buffer_size=records.BUFFER, pre_buffer=False) as table:
                yield table
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{source.name}: not a Parquet file that can be read: {_brief(error)}") from None


def names_in(source: InputFile, kind: str) -> list[str]:
    """The columns a file has, by its header, its first object or its schema; plain text has none."""
    if kind == ".csv":
        return csv_records(source, Columns().wanted().values()).names
    if kind == ".tsv":
        return tsv_records(source, Columns().text).names
    if kind == ".xlsx":
        return xlsx_records(source).names
    if kind in (".jsonl", ".ndjson", ".json"):
        lines = ((number, line) for number, line in enumerate(lines_of(source), 1) if line.strip())
        return next((list(json_object(line, f"{source.name}, line {number}")) for number, line in lines), [])
    if kind == ".parquet":
        with parquet_file(source) as table:
            return list(table.schema_arrow.names)
    return []


# --- columns


def places_of(source: InputFile, names: Sequence[str], columns: Columns, separator: str) -> dict[str, int]:
    """Where each wanted column stands: "text" -> 0. Or a sentence on why there is none."""
    where = f"{source.name}, line 1" if separator else source.name
    for ours, theirs in columns.wanted().items():
        if names.count(theirs) > 1:
            raise UserError(f"{where}: column {theirs!r} is there twice; give each column a name of its own")
        if theirs not in names:
            other = _other_separator(names[0]) if separator == "\t" and len(names) == 1 else ""
            raise MissingColumn(f"{where}: no column {_missing(theirs, names)}{other}", ours)
    return {ours: names.index(theirs) for ours, theirs in columns.wanted().items()}


def _missing(theirs: str, names: Sequence[str]) -> str:
    return f"{theirs!r}; {nearest(theirs, [_short(name) for name in names[:50]])}"


def _other_separator(header: str) -> str:
    other = max(SEPARATORS, key=header.count)
    return f"; it has {SEPARATORS[other]}, not tabs: if it is CSV, name it .csv" if other in header else ""


def _picker(places: dict[str, int]) -> Callable[[Sequence[str], str], Row]:
    text, pair, label, group = places["text"], places.get("pair"), places.get("label"), places.get("group")

    def pick(record: Sequence[str], place: str) -> Row:
        return Row(
            record[text],
            None if pair is None else record[pair],
            None if label is None else record[label].strip() or None,
            None if group is None else record[group].strip() or None,
            place,
        )

    return pick


# --- values


def json_object(line: str, place: str) -> dict[str, Any]:
    """The object in a line."""
    try:
        table = json.loads(line, parse_constant=_no_constant)
    except RecursionError:
        raise UserError(f"{place}: nested too deeply; accepted: one flat JSON object a line") from None
    except ValueError as error:
        raise UserError(f"{place}: not JSON: {_brief(error)}; {_JSON_LINES}") from None
    if not isinstance(table, dict):
        raise UserError(f"{place}: {_kind(table)}, not an object; {_JSON_LINES}")
    return table


_JSON_LINES = "accepted: one object a line; an array becomes that with jq -c '.[]' FILE.json > FILE.jsonl"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _text(table: dict[str, Any], ours: str, name: str, place: str) -> str:
    if name not in table:
        raise MissingColumn(f"{place}: no key {_missing(name, list(table))}", ours)
    value = table[name]
    if value is not None and not isinstance(value, str):
        raise UserError(f"{place}: {name} is {_kind(value)}, not text")
    return value or ""


def _word(value: object, name: str | None, place: str) -> str | None:
    """A label as its owner would write it: 1 and 1.0 are "1", true is "true"; null and blanks are none."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return None
        return str(int(value)) if value.is_integer() else repr(value)
    if value is None or isinstance(value, str | int):
        return (str(value).strip() or None) if value is not None else None
    raise UserError(f"{place}: {name} is {_kind(value)}; accepted: text, a number, true or false")


def _no_half_characters(texts: Sequence[str | None], place: str) -> None:
    for text in texts:
        try:
            (text or "").encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"{error.object[error.start]!r} is half of a character (a lone surrogate), not text"
            raise UserError(f"{place}: {found}") from None


def check_parquet(source: InputFile, columns: Columns) -> None:
    """The texts of a Parquet file must be strings."""
    with parquet_file(source) as table:
        _check_kinds(source, table.schema_arrow, columns)


def _check_kinds(source: InputFile, schema: Any, columns: Columns) -> None:
    """A text column must hold strings, plain or as a dictionary."""
    from pyarrow import types

    for name in (columns.text, columns.pair):
        if name is None:
            continue
        kind = schema.field(name).type
        inner = kind.value_type if types.is_dictionary(kind) else kind
        if not any(test(inner) for test in (types.is_string, types.is_large_string, types.is_string_view)):
            raise UserError(f"{source.name}: column {name!r} holds {kind}, not strings")


def _kind(value: object) -> str:
    kinds = {
        dict: "an object",
        list: "an array",
        str: "a string",
        int: "a number",
        float: "a number",
        bool: "a boolean",
    }
    return "null" if value is None else kinds.get(type(value), f"a {type(value).__name__}")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _brief(error: BaseException) -> str:
    return str(error).partition("\n")[0][:200]
