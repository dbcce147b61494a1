"""One file -> lines -> records: which bytes are text, and where a record and its fields end.

Text is UTF-8, strictly. What makes no sense is refused, with file and line; nothing is guessed. Memory is bounded by a
buffer and one record.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, NoReturn, cast

from qkv.corpus import workbook
from qkv.schema import UserError

LARGEST = 16 * 2**20  # bytes of a line, characters of a field; a long novel has 3 million
MOST = f"{LARGEST // 2**20} MiB, the most that is read"
BUFFER = 2**18  # bytes
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
QUOTED = re.compile(r'"(?:[^"]|"")*+"')  # a quoted field of TSV
_FIELD = rf'(?:{QUOTED.pattern}|[^"\t\r\n]*+)'
WELL_QUOTED = re.compile(rf"{_FIELD}(?:\t{_FIELD})*+\r?\n?")


@dataclass(frozen=True)
class InputFile:
    """Something to read: what errors call it, how its bytes are had (anew each time), and its folder's label."""

    name: str
    open: Callable[[], BinaryIO]
    label: str | None = None  # plain text in class folders: the whole file is one text with this label


@dataclass(frozen=True)
class Records:
    """A table as it stands in a file: the names of its header, and every record with its place."""

    names: list[str]
    rows: Iterator[tuple[str, list[str]]]
    separator: str


def csv_records(source: InputFile, wanted: Collection[str]) -> Records:
    """RFC 4180: a quoted field may hold separators, line ends and doubled quotes. The separator is the one by which the
    header has all wanted columns."""
    csv.field_size_limit(LARGEST)  # one value for the whole process; Python's own 131,072 is less than a long review
    lines = lines_of(source)
    head, names, separator = _csv_header(source, lines, wanted)
    return Records(names, _quoted(source, lines, head, names, separator), separator)


def tsv_records(source: InputFile, text: str) -> Records:
    """Tabs between fields. Quoted as spreadsheets do it, if the whole file is: every quote stands around a field or is
    doubled inside one, and every record has the fields of the header. In any other file quotes are plain characters,
    and a text in the last column takes the rest of the line, tabs too."""
    plain_because = _why_unquoted(source)
    lines = lines_of(source)
    if plain_because is None:
        csv.field_size_limit(LARGEST)
        head, names = _quoted_header(source, lines)
        return Records(names, _quoted(source, lines, head, names, "\t"), "\t")
    names = _tsv_header(source, lines)
    return Records(names, _unquoted(source, lines, names, text, plain_because), "\t")


def xlsx_records(source: InputFile) -> Records:
    """The first sheet of a workbook; an error cell is an `ErrorCell`."""
    with source.open() as stream:  # the file is opened again for the rows, as every reader's is
        names = workbook.header(source.name, stream)
    return Records(names, _sheet_rows(source), "")


def _sheet_rows(source: InputFile) -> Iterator[tuple[str, list[str]]]:
    with source.open() as stream:
        for number, cells in workbook.rows(source.name, stream):
            yield f"{source.name}, row {number}", cells


def _quoted(
    source: InputFile, lines: Iterator[str], head: int, names: list[str], separator: str
) -> Iterator[tuple[str, list[str]]]:
    """The records after a header of `head` lines."""
    reader = csv.reader(lines, delimiter=separator, strict=True)
    width, last = len(names), head
    while True:
        first = last + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            _refuse_record(source, first, head + reader.line_num, separator, str(error))
        last = head + reader.line_num
        if record is None:
            return
        place = f"{source.name}, line {first}"
        if len(record) != width:
            if not record:  # a blank line
                continue
            _refuse_width(place, len(record), names, separator)
        yield place, record


def _unquoted(
    source: InputFile, lines: Iterator[str], names: list[str], text: str, why: str
) -> Iterator[tuple[str, list[str]]]:
    width = len(names)
    most = width - 1 if names[-1] == text else -1
    for number, line in enumerate(lines, 2):
        record = without_end(line).split("\t", most)
        place = f"{source.name}, line {number}"
        if len(record) != width:
            if record == [""]:
                continue
            _refuse_width(place, len(record), names, "\t", why)
        yield place, record


def _why_unquoted(source: InputFile) -> str | None:
    """Why quotes are plain characters in a TSV file; empty if it has none, None if they do quote."""
    width, quotes = 0, False
    for first, record in _balanced(source):
        if record.count('"') % 2:
            return f"the quote in line {first} is not closed"
        if '"' in record:
            quotes = True
            if not WELL_QUOTED.fullmatch(record):
                return f"the quotes of line {first} are not those of a quoted field"
        fields = QUOTED.sub("", record).count("\t") + 1
        width = width or fields
        if fields != width:
            return f"line {first} has {fields} fields" if quotes else ""
    return None if quotes else ""


def _balanced(source: InputFile) -> Iterator[tuple[int, str]]:
    """Lines, put together until their quotes come in pairs; blank lines not. With the number of the first."""
    first, taken, size, opened = 1, list[str](), 0, False
    for number, line in enumerate(lines_of(source), 1):
        if not taken and line in ("\n", "\r\n"):
            continue
        first = first if taken else number
        taken.append(line)
        size, opened = size + len(line), opened ^ bool(line.count('"') % 2)
        if not opened or size > LARGEST:
            yield first, "".join(taken)
            taken, size, opened = [], 0, False
    if taken:
        yield first, "".join(taken)


def lines_of(source: InputFile) -> Iterator[str]:
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
                raise UserError(f"{source.name}, line {number}: a line of over {MOST}; {advice}")
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
    for some in lines_of(source):
        for line in without_end(some).split("\r"):
            number += 1
            yield number, line


def _iconv(source: InputFile, encoding: str) -> str:
    name = source.name.rpartition(":")[2].removesuffix(".gz")
    return f"convert it, if that is what it is: iconv -f {encoding} -t utf-8 {name} > new-{name}"


def without_end(line: str) -> str:
    """A line without its end: \\n or \\r\\n. U+0085 and U+2028 are text."""
    return line.removesuffix("\n").removesuffix("\r")


def _csv_header(source: InputFile, lines: Iterator[str], wanted: Collection[str]) -> tuple[int, list[str], str]:
    """Lines the header takes (a quoted name may hold a line end), its names, and the separator that gives them.

    The separator is the one by which all wanted columns are found. Where none does, the one that finds most names is
    used for the error."""
    taken: list[str] = []

    def tee() -> Iterator[str]:
        for line in lines:
            taken.append(line)
            yield line

    best, problem = (-1, 0, [""], ","), ""
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
        if set(wanted) <= set(names):
            return len(taken), names, separator
        best = max(best, (len({*wanted} & {*names}), len(names), names, separator))
    if best[0] < 0:
        _refuse_record(source, 1, len(taken), ",", problem)
    return len(taken), best[2], best[3]


def _quoted_header(source: InputFile, lines: Iterator[str]) -> tuple[int, list[str]]:
    """The header of a quoted TSV file, and the lines that it takes."""
    reader = csv.reader(lines, delimiter="\t", strict=True)
    names = next(filter(None, reader))
    return reader.line_num, [name.strip() for name in names]


def _tsv_header(source: InputFile, lines: Iterator[str]) -> list[str]:
    header = next(lines, "").strip("\r\n")
    if not header.strip():
        raise UserError(f"{source.name}: empty; the first line must name the columns")
    return [name.strip() for name in header.split("\t")]


def _refuse_record(source: InputFile, first: int, now: int, separator: str, error: str) -> NoReturn:
    """What the csv module says about a record, for people."""
    where = f"{source.name}, line {first}"
    if "unexpected end of data" in error:
        raise UserError(f"{where}: a quote opens in this record and is not closed before the end of the file")
    if "field limit" in error:
        raise UserError(f"{where}: a field of over {MOST}; is a quote in this record not closed?")
    if "new-line character" in error:
        raise UserError(f"{where}: a line ends with \\r alone; convert it: tr '\\r' '\\n' < OLD.csv > NEW.csv")
    if "expected after" in error:
        raise UserError(
            f"{where}: in this record, in line {now}, something else than {separator!r} follows a closing quote; "
            "a quote inside a quoted field is written twice"
        )
    raise UserError(f"{where}: not CSV: {error}")


def _refuse_width(place: str, found: int, names: Sequence[str], separator: str, plain_because: str = "") -> NoReturn:
    cause = "a line end" if found < len(names) else f"a {separator!r}" if separator != "\t" else "a tab"
    advice = " A field that holds one needs quotes" if separator != "\t" else ""
    count = "1 field" if found == 1 else f"{found} fields"
    if plain_because:
        advice = f" Quotes are plain characters in this file, because {plain_because}"
    raise UserError(f"{place}: {count}, but the header names {len(names)}; is {cause} inside a text?{advice}")
