"""Excel workbooks (.xlsx): the first sheet as records of text. Needs openpyxl.

A workbook is a zip of XML files: its unpacked size is checked before anything is unpacked, and openpyxl streams the
rows. A formula has the value that the spreadsheet last computed; where none has ever computed it, the cell is empty.
"""

from __future__ import annotations

import datetime
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from qkv.schema import UserError

LARGEST_UNPACKED = 512 * 2**20  # bytes of all XML files together
MOST_ROWS, MOST_COLUMNS = 1_048_576, 16_384  # of a sheet, by Excel itself
HEADER_WITHIN = 100  # rows


class ErrorCell(str):
    """What a spreadsheet shows where it cannot compute a value: #N/A, #DIV/0!, ..."""

    __slots__ = ()


def header(name: str, stream: BinaryIO) -> list[str]:
    """The names in the first row that is not empty; a column without a name has its letter."""
    with _sheet(name, stream) as sheet:
        return _header(name, sheet)[1]


def rows(name: str, stream: BinaryIO) -> Iterator[tuple[int, list[str]]]:
    """Every row after the header that is not empty, with its number in the sheet."""
    with _sheet(name, stream) as sheet:
        head, names = _header(name, sheet)
        width = len(names)
        for number, cells in enumerate(sheet.iter_rows(max_col=width + 1), 1):
            if number > MOST_ROWS:
                raise UserError(f"{name}: over {MOST_ROWS:,} rows, the most that a sheet has")
            record = [_text(cell) for cell in cells] if number > head else []
            if not any(record):
                continue
            if any(record[width:]):
                found = f"{name}, row {number}: a cell of column {_letter(width + 1)}, which the header does not name"
                raise UserError(f"{found}; give the column a name in row {head}, or empty the cell")
            yield number, [*record[:width], *[""] * (width - len(record))]


@contextmanager
def _sheet(name: str, stream: BinaryIO) -> Iterator[Any]:
    """The first sheet, open. What openpyxl raises about a file that is no workbook is many things."""
    try:
        import openpyxl
    except ImportError:
        raise UserError(f"{name}: reading .xlsx needs openpyxl: pip install 'qkv[xlsx]'") from None
    _check_size(name, stream)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about styles and other things that are not read
        try:
            book = openpyxl.load_workbook(stream, read_only=True, data_only=True, keep_links=False)
            try:
                sheet = book.worksheets[0]
                sheet.reset_dimensions()  # the size that a file claims may be wrong
                yield sheet
            finally:
                book.close()
        except (UserError, OSError, MemoryError):
            raise
        except Exception as error:
            said = f"{type(error).__name__}: {error}".partition("\n")[0][:200]
            raise UserError(f"{name}: not an Excel workbook that can be read: {said}") from None


def _check_size(name: str, stream: BinaryIO) -> None:
    try:
        with zipfile.ZipFile(stream) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except zipfile.BadZipFile as error:
        raise UserError(f"{name}: not an Excel workbook (.xlsx): {error}; save it again as .xlsx or .csv") from None
    if size > LARGEST_UNPACKED:
        most = f"{LARGEST_UNPACKED // 2**20} MiB, the most that is read"
        raise UserError(f"{name}: unpacks to {size // 2**20:,} MiB, over {most}; save it as .csv")
    stream.seek(0)


def _header(name: str, sheet: Any) -> tuple[int, list[str]]:
    """The number of the header row, and its names."""
    for number, cells in enumerate(sheet.iter_rows(max_row=HEADER_WITHIN, max_col=MOST_COLUMNS), 1):
        names = [_text(cell).strip() for cell in cells]
        while names and not names[-1]:
            names.pop()
        if names:
            return number, [one or _letter(place) for place, one in enumerate(names, 1)]
    raise UserError(f"{name}: empty; the first row of its first sheet must name the columns")


def _letter(column: int) -> str:
    from openpyxl.utils import get_column_letter

    return str(get_column_letter(column))


def _text(cell: Any) -> str:
    """A cell as a person would write it: 3, not 3.0; a date without a time that is midnight."""
    value = cell.value
    if value is None:
        return ""
    if cell.data_type == "e":
        return ErrorCell(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, datetime.datetime) and value.time() == datetime.time():
        value = value.date()
    return str(value)
