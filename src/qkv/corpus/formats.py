"""One file -> rows, for each known format. `files.py` opens the files, `documents.py` takes the lines of plain text;
nobody else imports this.

A reader gets an `InputFile` and yields rows as it goes: it never holds more than a buffer, one record or one batch.
Text is UTF-8, strictly. What a reader cannot make sense of it refuses, with file and line; it never guesses.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import repeat
from typing import Any, BinaryIO, NoReturn, cast

from qkv.schema import UserError, nearest

LARGEST = 16 * 2**20  # bytes of a line, characters of a field; a long novel has 3 million
_MOST = f"{LARGEST // 2**20} MiB, the most that is read"
BUFFER = 2**18  # bytes
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
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


@dataclass(frozen=True)
class InputFile:
    """Something to read: what errors call it, how its bytes are had (anew each time), and its folder's label."""

    name: str
    open: Callable[[], BinaryIO]
    label: str | None = None  # plain text in class folders: the whole file is one text with this label


def read_csv(source: InputFile, columns: Columns) -> Iterator[Row]:
    """RFC 4180: a quoted field may hold separators, line ends and doubled quotes. The header decides the separator."""
    csv.field_size_limit(LARGEST)  # one value for the whole process; Python's own 131,072 is less than a long review
    lines = _lines(source)
    head, names, separator = _csv_header(source, lines, columns)
    places = _places(source, names, columns, separator)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    pick, width, last = _picker(places), len(names), head
    while True:
        first = last + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            _refuse_record(source, first, head + reader.line_num, separator, str(error))
        last = head + reader.line_num
        if record is None:
            return
        if len(record) != width:
            if not record:  # a blank line
                continue
            _refuse_width(f"{source.name}, line {first}", len(record), names, separator)
        yield pick(record, f"{source.name}, line {first}")


def read_tsv(source: InputFile, columns: Columns) -> Iterator[Row]:
    """Tabs and nothing else: no quoting. If the text is the last column it takes the rest of the line, tabs too."""
    lines = _lines(source)
    names = _tsv_header(source, lines)
    places = _places(source, names, columns, "\t")
    pick, width = _picker(places), len(names)
    most = width - 1 if places["text"] == width - 1 else -1
    for number, line in enumerate(lines, 2):
        record = _line(line).split("\t", most)
        if len(record) != width:
            if record == [""]:
                continue
            _refuse_width(f"{source.name}, line {number}", len(record), names, "\t")
        yield pick(record, f"{source.name}, line {number}")


def read_jsonl(source: InputFile, columns: Columns) -> Iterator[Row]:
    """One JSON object a line. A text is a string, or null for an empty one; a label may be missing."""
    label_seen, place = columns.label is None, ""
    table: dict[str, Any] = {}
    for number, line in enumerate(_lines(source), 1):
        if not line.strip():
            continue
        place = f"{source.name}, line {number}"
        table = _json_object(line, place)
        label_seen = label_seen or columns.label in table
        text = _text(table, "text", columns.text, place)
        pair = None if columns.pair is None else _text(table, "pair", columns.pair, place)
        label = None if columns.label is None else _word(table.get(columns.label), columns.label, place)
        group = None if columns.group is None else _word(table.get(columns.group), columns.group, place)
        if "\\u" in line:
            _no_half_characters([text, pair, label, group], place)
        yield Row(text, pair, label, group, place)
    if place and not label_seen:
        raise UserError(f"{source.name}: no line has {_missing('label', str(columns.label), list(table))}")


def read_text(source: InputFile, columns: Columns) -> Iterator[Row]:
    """Plain text: one text a line; or, with a label from its folder, one text a file."""
    if columns.pair is not None or columns.group is not None:
        extra = "pair" if columns.pair is not None else "group"
        raise UserError(f"{source.name}: plain text has no columns, but data.{extra} = {getattr(columns, extra)!r}")
    if columns.label is None:
        for number, line in enumerate(_lines(source), 1):
            yield Row(_line(line), None, None, None, f"{source.name}, line {number}")
        return
    if source.label is None:
        raise UserError(
            f"{source.name}: plain text has no column {columns.label!r}; accepted with labels: CSV, TSV, JSON lines, "
            "Parquet, or text files in one folder for each label, such as train/neg/1.txt and train/pos/1.txt"
        )
    pieces, size = [], 0
    for line in _lines(source):
        pieces.append(line)
        size += len(line)
        if size > LARGEST:
            raise UserError(f"{source.name}: one text of over {_MOST}")
    yield Row(_line("".join(pieces)), None, source.label.strip() or None, None, f"{source.name}, line 1")


def read_parquet(source: InputFile, columns: Columns) -> Iterator[Row]:
    """Parquet, batch by batch, only the columns that are wanted. Needs pyarrow. Null is an empty text, or no label."""
    with _parquet(source) as table:
        _places(source, table.schema_arrow.names, columns, "")
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
def _parquet(source: InputFile) -> Iterator[Any]:
    try:
        import pyarrow as arrow
        from pyarrow import parquet
    except ImportError:
        raise UserError(f"{source.name}: reading Parquet needs pyarrow: pip install 'qkv[parquet]'") from None
    with source.open() as stream:
        try:
            with parquet.ParquetFile(stream, buffer_size=BUFFER, pre_buffer=False) as table:
                yield table
        except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
            raise UserError(f"{source.name}: not a Parquet file that can be read: {_brief(error)}") from None


def names_in(source: InputFile, kind: str) -> list[str]:
    """The columns a file has, by its header, its first object or its schema; plain text has none."""
    if kind == ".csv":
        return _csv_header(source, _lines(source), Columns())[1]
    if kind == ".tsv":
        return _tsv_header(source, _lines(source))
    if kind in (".jsonl", ".ndjson", ".json"):
        lines = ((number, line) for number, line in enumerate(_lines(source), 1) if line.strip())
        return next((list(_json_object(line, f"{source.name}, line {number}")) for number, line in lines), [])
    if kind == ".parquet":
        with _parquet(source) as table:
            return list(table.schema_arrow.names)
    return []


# --- bytes -> lines


def _lines(source: InputFile) -> Iterator[str]:
    """Lines with their ends, split at \\n only (no other byte of UTF-8 looks like it), each of bounded length."""
    with source.open() as raw:
        buffered = io.BufferedReader(cast(io.RawIOBase, raw), BUFFER)  # what gzip and zip give does as well
        start = buffered.peek(3)[:3]
        if start[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            raise UserError(f"{source.name}, line 1, byte 1: UTF-16, not UTF-8; {_iconv(source, 'utf-16')}")
        number, done = 0, len(buffered.read(3)) if start == codecs.BOM_UTF8 else 0
        while line := buffered.readline(LARGEST + 1):
            number += 1
            if len(line) > LARGEST:
                advice = "one text or one record must stand in each line"
                raise UserError(f"{source.name}, line {number}: a line of over {_MOST}; {advice}")
            if b"\0" in line:
                found = "a NUL byte, which is no text; if the file is UTF-16: "
                raise UserError(f"{source.name}, line {number}: {found}{_iconv(source, 'utf-16')}")
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                where = f"{source.name}, line {number}, byte {done + error.start + 1}"
                found = f"{line[error.start]:#04x} is not UTF-8"
                raise UserError(f"{where}: {found}; {_iconv(source, 'latin1')}") from None
            done += len(line)


def plain_lines(source: InputFile) -> Iterator[tuple[int, str]]:
    """Each line of plain text with its number and without its end: \\n, \\r\\n or a lone \\r."""
    number = 0
    for some in _lines(source):
        for line in _line(some).split("\r"):
            number += 1
            yield number, line


def _iconv(source: InputFile, encoding: str) -> str:
    name = source.name.rpartition(":")[2].removesuffix(".gz")
    return f"convert it, if that is what it is: iconv -f {encoding} -t utf-8 {name} > new-{name}"


def _line(line: str) -> str:
    """A line without its end: \\n or \\r\\n. U+0085 and U+2028 are text."""
    return line.removesuffix("\n").removesuffix("\r")


# --- columns


def _csv_header(source: InputFile, lines: Iterator[str], columns: Columns) -> tuple[int, list[str], str]:
    """Lines the header takes (a quoted name may hold a line end), its names, and the separator that gives them.

    The separator is the one by which all wanted columns are found. Where none does, the one that finds most names is
    used for the error."""
    taken: list[str] = []

    def tee() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    wanted, best, problem = set(columns.wanted().values()), (-1, 0, [""], ","), ""
    try:
        if not any(csv.reader(tee())):
            raise UserError(f"{source.name}: empty; the first line must name the columns")
    except csv.Error as error:
        _refuse_record(source, 1, len(taken), ",", str(error))
    for separator in SEPARATORS:
        try:
            names = [name.strip() for name in next(filter(None, csv.reader(taken, delimiter=separator, strict=True)))]
        except csv.Error as error:
            problem = problem or str(error)
            continue
        if wanted <= set(names):
            return len(taken), names, separator
        best = max(best, (len(wanted & set(names)), len(names), names, separator))
    if best[0] < 0:
        _refuse_record(source, 1, len(taken), ",", problem)
    return len(taken), best[2], best[3]


def _tsv_header(source: InputFile, lines: Iterator[str]) -> list[str]:
    header = next(lines, "").strip("\r\n")
    if not header.strip():
        raise UserError(f"{source.name}: empty; the first line must name the columns")
    return [name.strip() for name in header.split("\t")]


def _places(source: InputFile, names: Sequence[str], columns: Columns, separator: str) -> dict[str, int]:
    """Where each wanted column stands: "text" -> 0. Or a sentence on why there is none."""
    where = f"{source.name}, line 1" if separator else source.name
    for ours, theirs in columns.wanted().items():
        if names.count(theirs) > 1:
            raise UserError(f"{where}: column {theirs!r} is there twice; give each column a name of its own")
        if theirs not in names:
            known = f"{where}: no column {_missing(ours, theirs, names)}"
            if separator == "\t" and len(names) == 1:
                known += _other_separator(names[0])
            raise UserError(known)
    return {ours: names.index(theirs) for ours, theirs in columns.wanted().items()}


def _missing(ours: str, theirs: str, names: Sequence[str]) -> str:
    few = [_short(name) for name in names[:50]]
    return f"{theirs!r}; {nearest(theirs, few)}; choose one with --set data.{ours}=NAME"


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


def _refuse_record(source: InputFile, first: int, now: int, separator: str, error: str) -> NoReturn:
    """What the csv module says about a record, for people."""
    where = f"{source.name}, line {first}"
    if "unexpected end of data" in error:
        raise UserError(f"{where}: a quote opens in this record and is not closed before the end of the file")
    if "field limit" in error:
        raise UserError(f"{where}: a field of over {_MOST}; is a quote in this record not closed?")
    if "new-line character" in error:
        raise UserError(f"{where}: a line ends with \\r alone; convert it: tr '\\r' '\\n' < OLD.csv > NEW.csv")
    if "expected after" in error:
        raise UserError(
            f"{where}: in this record, in line {now}, something else than {separator!r} follows a closing quote; "
            "a quote inside a quoted field is written twice"
        )
    raise UserError(f"{where}: not CSV: {error}")


def _refuse_width(place: str, found: int, names: Sequence[str], separator: str) -> NoReturn:
    cause = "a line end" if found < len(names) else f"a {separator!r}" if separator != "\t" else "a tab"
    advice = " A field that holds one needs quotes" if separator != "\t" else ""
    count = "1 field" if found == 1 else f"{found} fields"
    raise UserError(f"{place}: {count}, but the header names {len(names)}; is {cause} inside a text?{advice}")


# --- values


def _json_object(line: str, place: str) -> dict[str, Any]:
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
        raise UserError(f"{place}: no key {_missing(ours, name, list(table))}")
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
