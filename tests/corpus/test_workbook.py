"""Excel workbooks become rows as a person reads them; what is no workbook, or too large, is refused in words."""

from __future__ import annotations

import datetime
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from qkv.corpus import workbook
from qkv.corpus.files import Columns, Row, column_names, rows
from qkv.schema import UserError

openpyxl = pytest.importorskip("openpyxl")


def write(path: Path, table: list[list[Any]]) -> Path:
    book = openpyxl.Workbook()
    for record in table:
        book.active.append(record)
    book.create_sheet("second").append(["not", "read"])
    book.save(path)
    return path


def read(path: Path, columns: Columns | None = None) -> list[Row]:
    return list(rows([path], columns or Columns()))


def refused(path: Path, columns: Columns | None = None) -> str:
    with pytest.raises(UserError) as error:
        read(path, columns)
    return str(error.value)


def change_member(path: Path, name: str, old: str, new: str) -> None:
    """Edit one XML file of a workbook."""
    with zipfile.ZipFile(path) as archive:
        parts = {one: archive.read(one) for one in archive.namelist()}
    assert old.encode() in parts[name]
    parts[name] = parts[name].replace(old.encode(), new.encode())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for one, content in parts.items():
            archive.writestr(one, content)


SHEET = "xl/worksheets/sheet1.xml"


def test_cells_are_what_a_person_would_write(tmp_path: Path) -> None:
    when = datetime.datetime(2026, 3, 4)
    cells = [3, 3.0, 0.1, -2.5, True, when, when.replace(hour=5), None, " a\nb ", 1e300]
    file = write(tmp_path / "r.xlsx", [["text", " label "], *(["row", cell] for cell in cells)])
    assert [row.label for row in read(file)] == [
        "3", "3", "0.1", "-2.5", "true", "2026-03-04", "2026-03-04 05:00:00", None, "a\nb", "1e+300"
    ]  # fmt: skip
    assert read(file)[0] == Row("row", None, "3", None, "r.xlsx, row 2")
    assert column_names([file]) == ["text", "label"]


def test_empty_rows_and_cells_and_a_header_further_down(tmp_path: Path) -> None:
    file = write(tmp_path / "r.xlsx", [[], ["text", None, "label"], ["a", 1, "x"], [], ["b"], [None, None, "y"]])
    assert column_names([file]) == ["text", "B", "label"]
    assert [(row.text, row.label, row.place) for row in read(file)] == [
        ("a", "x", "r.xlsx, row 3"),
        ("b", None, "r.xlsx, row 5"),
        ("", "y", "r.xlsx, row 6"),
    ]
    wide = write(tmp_path / "wide.xlsx", [["text", "label"], ["a", "b", "c"]])
    assert "wide.xlsx, row 2: a cell of column C, which the header does not name" in refused(wide)
    assert refused(write(tmp_path / "e.xlsx", [])) == (
        "e.xlsx: empty; the first row of its first sheet must name the columns"
    )
    assert "no column 'label'; known: text" in refused(write(tmp_path / "no.xlsx", [["text"], ["a"]]))


def test_a_formula_has_its_computed_value_and_an_error_is_named(tmp_path: Path) -> None:
    file = write(tmp_path / "r.xlsx", [["text", "label", "note"], ["a", "=1+2", "#N/A"], ["b", "#DIV/0!", ""]])
    change_member(file, SHEET, "<f>1+2</f><v></v>", "<f>1+2</f><v>3</v>")
    assert next(rows([file], Columns())).label == "3"
    assert refused(file) == (
        "r.xlsx, row 3: column 'label' holds the error #DIV/0!; correct its formula, or empty the cell"
    )
    assert "row 2: column 'note' holds the error #N/A" in refused(file, Columns("note", label=None))
    assert [row.text for row in read(file, Columns(label=None))] == ["a", "b"]  # nobody asked for it


def test_what_is_no_workbook_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "r.xlsx"
    file.write_text("text,label\n")
    assert refused(file).startswith("r.xlsx: not an Excel workbook (.xlsx): File is not a zip file; save it again as")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.csv", "text,label\n")
    assert refused(file).startswith("r.xlsx: not an Excel workbook that can be read: KeyError")
    write(file, [["text", "label"], ["a", "b"]])
    change_member(file, SHEET, "</sheetData>", "")
    assert refused(file).startswith("r.xlsx: not an Excel workbook that can be read: ParseError")
    (tmp_path / "r.zip").write_bytes(b"")
    with zipfile.ZipFile(tmp_path / "r.zip", "w") as archive:
        archive.writestr("a.xlsx", b"")
    assert refused(tmp_path / "r.zip") == "r.zip:a.xlsx: .xlsx cannot be read inside a zip; unpack it and give the file"


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    file = write(tmp_path / "r.xlsx", [["text", "label"]])
    with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive, archive.open("xl/big.xml", "w") as member:
        for _ in range(workbook.LARGEST_UNPACKED // 2**20 + 1):
            member.write(bytes(2**20))
    assert file.stat().st_size < 2**20
    assert refused(file) == "r.xlsx: unpacks to 513 MiB, over 512 MiB, the most that is read; save it as .csv"


def test_entities_that_multiply_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("defusedxml")
    file = write(tmp_path / "r.xlsx", [["text", "label"], ["a", "b"]])
    laughs = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    change_member(file, SHEET, "<worksheet", f"{laughs}<worksheet")
    assert refused(file).startswith("r.xlsx: not an Excel workbook that can be read: ")


def test_sizes_and_places_that_a_file_claims_cost_nothing(tmp_path: Path) -> None:
    file = write(tmp_path / "r.xlsx", [["text", "label"], ["a", "b"]])
    change_member(file, SHEET, 'ref="A1:B2"', 'ref="A1:XFD1048576"')
    assert [row.text for row in read(file)] == ["a"]
    change_member(file, SHEET, '<row r="2">', '<row r="999999999999">')
    assert refused(file) == "r.xlsx: over 1,048,576 rows, the most that a sheet has"


def test_without_openpyxl_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path / "r.xlsx", [["text", "label"], ["a", "b"]])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    assert refused(file) == "r.xlsx: reading .xlsx needs openpyxl: pip install 'qkv[xlsx]'"


def test_a_workbook_is_read_from_any_seekable_stream(tmp_path: Path) -> None:
    raw = io.BytesIO(write(tmp_path / "r.xlsx", [["text"], ["a"], ["b"]]).read_bytes())
    assert [cells for _, cells in workbook.rows("r", raw)] == [["a"], ["b"]]
