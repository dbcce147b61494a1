"""Files -> whole documents, streaming, in the memory of one. No torch.

A row of a table is a document. How plain text falls into documents its files do not say, so the user does: by `KINDS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from qkv.corpus import records
from qkv.corpus.files import Columns, Reader, Row, in_class_folders, rows
from qkv.corpus.records import InputFile, plain_lines
from qkv.schema import UserError


def documents(files: Sequence[Path], columns: Columns, kind: str) -> Iterator[Row]:
    """Every document of the files that is not blank: the text whole, its lines joined by \\n, and where it begins.

    Of the columns only the text is read. `kind` is for plain text: "lines" (each line is a document), "blank-lines"
    (what stands between blank lines), "headings" (as WikiText has it: a line ` = Title = ` between blank lines begins a
    document; headings are left out of the text), "files" (each file, or member of a zip), or "auto": files where they
    lie in one folder for each label, else blank-lines."""
    if kind not in KINDS:
        raise UserError(f"documents = {kind!r}: no such kind; accepted: {', '.join(KINDS)}")
    if kind == "auto" and in_class_folders(files):
        kind = "files"  # as a classifier reads them, so that what is held out there is held out here
    return _not_blank(rows(files, replace(columns, pair=None, label=None, group=None), _READERS[kind]))


def _not_blank(found: Iterator[Row]) -> Iterator[Row]:
    for row in found:
        if len(row.text) > records.LARGEST:  # Parquet has no bound of its own
            raise _too_long(row.place)
        if row.text.strip():
            yield row


@dataclass
class _Gathered:
    """The document that is being read. Blank lines count only once another line follows, and become empty ones."""

    place: str = ""
    lines: list[str] = field(default_factory=list)
    blank: int = 0  # lines since the last that was not
    size: int = -1  # characters, with an end for each line but the last

    def add(self, line: str, place: str) -> None:
        if not line.strip():
            self.blank += bool(self.lines)
            return
        self.place = self.place or place
        self.size += self.blank + len(line) + 1
        if self.size > records.LARGEST:
            raise _too_long(self.place)
        self.lines += [""] * self.blank + [line]
        self.blank = 0

    def row(self) -> Row:
        return Row("\n".join(self.lines), None, None, None, self.place)


def _too_long(place: str) -> UserError:
    most = f"accepted: up to {records.LARGEST:,}"
    return UserError(f"{place}: one document of more characters than are read, {most}; split it into smaller ones")


def _each_line(source: InputFile, columns: Columns) -> Iterator[Row]:
    for number, line in plain_lines(source):
        yield Row(line, None, None, None, f"{source.name}, line {number}")


def _whole_file(source: InputFile, columns: Columns) -> Iterator[Row]:
    gathered = _Gathered()
    for number, line in plain_lines(source):
        gathered.add(line, f"{source.name}, line {number}")
    yield gathered.row()


def _between_blank_lines(source: InputFile, columns: Columns) -> Iterator[Row]:
    gathered = _Gathered()
    for number, line in plain_lines(source):
        if line.strip():
            gathered.add(line, f"{source.name}, line {number}")
        elif gathered.lines:
            yield gathered.row()
            gathered = _Gathered()
    yield gathered.row()


def _under_headings(source: InputFile, columns: Columns) -> Iterator[Row]:
    """A heading counts only between blank lines: WikiText also has ` = Wins ; L = ` in the middle of its tables."""
    gathered, any_title, any_text = _Gathered(), False, False
    for number, line, alone in _with_neighbours(plain_lines(source)):
        place, level = f"{source.name}, line {number}", _level(line) if alone else 0
        if level == 1:
            yield gathered.row()
            gathered, any_title = _Gathered(place), True
        elif level == 0:
            gathered.add(line, place)
            any_text = any_text or bool(line.strip())
    if any_text and not any_title:
        wanted = "' = Title = ' with a blank line before and after it"
        raise UserError(f"{source.name}: no heading in it; accepted as documents by headings: lines such as {wanted}")
    yield gathered.row()


def _with_neighbours(numbered: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str, bool]]:
    """Each line with its number, and whether the lines before and after it are blank or missing."""
    blank_before = True
    number, line = next(numbered, (0, ""))
    while number:
        after, following = next(numbered, (0, ""))
        yield number, line, blank_before and not following.strip()
        blank_before, number, line = not line.strip(), after, following


def _level(line: str) -> int:
    """How many = a heading has on each side: 1 for ` = Title = `, 2 for ` = = Section = = `; 0 for any other line."""
    line = line.strip()
    title = line.strip("= \t")
    if not title:
        return 0
    before, _, after = line.partition(title)
    apart = before[-1:].isspace() and after[:1].isspace()
    return before.count("=") if apart and before.count("=") == after.count("=") else 0


_READERS: dict[str, Reader] = {
    "auto": _between_blank_lines,
    "lines": _each_line,
    "blank-lines": _between_blank_lines,
    "headings": _under_headings,
    "files": _whole_file,
}
KINDS = tuple(_READERS)
