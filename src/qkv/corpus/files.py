"""Files -> rows, streaming; every error carries file and line. No torch.

A corpus is a file, a folder or a glob. What a file holds is told by its name: `reviews.csv`, `reviews.tsv.gz`, or a
`.zip` of such files, which is never unpacked. Memory stays the same however large the files are.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import zip_longest
from pathlib import Path, PurePath
from typing import BinaryIO, cast

from qkv.corpus.formats import (
    Columns,
    Row,
    names_in,
    read_csv,
    read_jsonl,
    read_parquet,
    read_text,
    read_tsv,
    read_xlsx,
)
from qkv.corpus.records import InputFile, plain_lines
from qkv.schema import UserError

__all__ = ["Columns", "Row", "aligned", "column_names", "find", "fingerprint", "rows", "sha256"]

Reader = Callable[[InputFile, Columns], Iterator[Row]]

READERS: dict[str, Reader] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".json": read_jsonl,
    ".txt": read_text,
    ".text": read_text,
    ".raw": read_text,
    ".parquet": read_parquet,
    ".xlsx": read_xlsx,
}
PACKED = (".parquet", ".xlsx")  # compressed themselves, and read from any place in the file
ACCEPTED = f"accepted: {', '.join(READERS)}, each but {' and '.join(PACKED)} also with .gz, and .zip"
CHUNK = 2**20  # bytes


def find(source: str, *, plain: bool = False) -> list[Path]:
    """A file, a folder or a glob: the files, sorted. A folder gives its files of known formats, hidden ones not. If
    `plain`, one file will be read as plain text, whatever its name."""
    if not source or "\0" in source:
        raise UserError(f"{source!r}: no file has such a name")
    with in_words(source):
        path = Path(source).expanduser()
        if os.path.isdir(path):  # noqa: PTH112  (Path raises where a name is too long)
            files = _files_below(path)
            if not files:
                raise UserError(f"{source}: a folder without a file of a known format; {ACCEPTED}")
            return files
        if os.path.lexists(path):
            if not plain:
                _known(path)
            return [path]
        if not glob.has_magic(source):
            raise UserError(f"{source[:200]}: no such file or folder")
        matches = (Path(one) for one in glob.iglob(str(path), recursive=True))  # noqa: PTH207  (may be absolute)
        files = sorted(one for one in matches if one.is_file() and kind_of(one) is not None)
        if not files:
            raise UserError(f"{source}: no file of a known format matches; {ACCEPTED}")
        return files


def rows(files: Sequence[Path], columns: Columns, plain: Reader = read_text) -> Iterator[Row]:
    """Every row of the files, one after the other, in constant memory; `plain` says how plain text is read."""
    for source, kind in sources(files, labelled=columns.label is not None):
        reader = READERS[kind]
        with in_words(source.name):
            yield from (plain if reader is read_text else reader)(source, columns)


def aligned(files: Sequence[Path], beside: Sequence[Path]) -> Iterator[Row]:
    """Line by line two files of the same number of lines, as `train.en` and `train.de`; several are read one after the
    other. Blank lines are lines."""
    if len(files) != len(beside):
        raise UserError(f"{files[0]} and {beside[0]}: {len(files)} and {len(beside)} files cannot lie side by side")
    for one, other in zip(files, beside, strict=True):
        left, right = (InputFile(str(file), _opener(file), None) for file in (one, other))
        with in_words(f"{one} -> {other}"):
            yield from _side_by_side(left, right)


def _side_by_side(left: InputFile, right: InputFile) -> Iterator[Row]:
    for source, target in zip_longest(plain_lines(left), plain_lines(right)):
        if source is None or target is None:
            (shorter, longer), number = ((left, right) if source is None else (right, left)), (source or target)[0]
            found = f"{shorter.name} has {number - 1:,} lines, {longer.name} has more"
            raise UserError(f"{found}; lines that belong together must have the same number in both")
        yield Row(source[1], target[1], None, None, f"{left.name}, line {source[0]}")


def column_names(files: Sequence[Path]) -> list[str]:
    """The columns of the first file; plain text has none."""
    with closing(sources(files[:1], labelled=False)) as found:
        for source, kind in found:
            with in_words(source.name):
                return names_in(source, kind)
    return []


def open_buffered(file: Path) -> io.BufferedReader:
    """The bytes of a file, unpacked if it is gzip."""
    with in_words(str(file)):
        return io.BufferedReader(cast(io.RawIOBase, _opener(file)()))


def fingerprint(files: Sequence[Path]) -> str:
    """sha256 over names and contents; names from the folder that holds all, so that a copy elsewhere has the same.

    It is the sha256 of what `sha256sum` prints for the files."""
    listing = (f"{sha256(file)}  {name}\n" for file, name in zip(files, _names(files), strict=True))
    return hashlib.sha256("".join(listing).encode("utf-8", "surrogateescape")).hexdigest()


def sha256(file: Path) -> str:
    """sha256 of one file, read in pieces."""
    whole = hashlib.sha256()
    with in_words(str(file)), _open_plain(file) as stream:
        while chunk := stream.read(CHUNK):
            whole.update(chunk)
    return whole.hexdigest()


def _names(files: Sequence[Path]) -> list[str]:
    """What each file is called: its path below the folder that holds them all; of one file, its name."""
    if not files:
        return []
    top = Path(os.path.commonpath([file.absolute().parent for file in files]))
    return [file.absolute().relative_to(top).as_posix() for file in files]


def kind_of(path: PurePath) -> str | None:
    """The extension that decides how a file is read: ".csv" for x.CSV.gz; None where it is not a known one."""
    name = path.name.lower()
    if name.endswith(".zip"):
        return ".zip"
    kind = PurePath(name.removesuffix(".gz")).suffix
    return kind if kind in READERS and not (kind in PACKED and name.endswith(".gz")) else None


def _known(path: PurePath) -> str:
    kind = kind_of(path)
    if kind is None:
        raise UserError(f"{path}: not a known kind of file; {ACCEPTED}")
    return kind


def _files_below(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    found = []
    for here, inner, names in os.walk(folder, onerror=refuse):
        inner[:] = [name for name in inner if not name.startswith(".")]
        found += [Path(here, name) for name in names if not name.startswith(".")]
    return sorted(file for file in found if kind_of(file) is not None)


def in_class_folders(files: Sequence[Path]) -> bool:
    """Whether these are text files in one folder for each label, where a whole file is one text."""
    try:
        return bool(_class_folders(files))
    except UserError:
        return False


def _class_folders(files: Sequence[PurePath]) -> dict[PurePath, str]:
    """Plain text files that lie in sibling folders, and nowhere else: each file's label is its folder's name."""
    texts = [file for file in files if READERS.get(kind_of(file) or "") is read_text]
    folders = {file.parent for file in texts}
    beside = {folder.parent for folder in folders}
    if len(folders) < 2:
        return {}
    if len(beside) > 1:
        stray = min(texts, key=lambda file: (len(file.parts), file))
        raise UserError(
            f"{stray}: not beside the other text files; labels are the names of folders that lie side by side: "
            "give the files in those with a glob, such as 'train/*/*.txt'"
        )
    return {file: file.parent.name for file in texts}


def sources(files: Sequence[Path], labelled: bool) -> Generator[tuple[InputFile, str], None, None]:
    """What there is to read, and of which kind."""
    labels = _class_folders(files) if labelled else {}
    for file, name in zip(files, _names(files), strict=True):
        kind = _known(file)
        if kind == ".zip":
            yield from _members(file, name, labelled)
        else:
            yield InputFile(name, _opener(file), labels.get(file)), kind


def _members(file: Path, shown: str, labelled: bool) -> Iterator[tuple[InputFile, str]]:
    """The members of known formats in the order of their names; nothing is written to disk."""
    with in_words(shown), _open_plain(file) as stream, zipfile.ZipFile(stream) as archive:
        members = {PurePath(one.filename): one for one in archive.infolist() if not one.is_dir()}
        hidden = {path for path in members if any(part.startswith((".", "__MACOSX")) for part in path.parts)}
        known = {path: kind for path in sorted(members.keys() - hidden) if (kind := kind_of(path)) in READERS}
        if not known:
            some = ", ".join(sorted(str(path) for path in members)[:5]) or "nothing"
            raise UserError(f"{shown}: no member of a known format; it holds {some}; {ACCEPTED}")
        labels = _class_folders(list(known)) if labelled else {}
        for path, kind in known.items():
            name = f"{shown}:{members[path].filename}"
            if members[path].flag_bits & 1:
                raise UserError(f"{name}: encrypted; unpack it with its password and give the file")
            if kind in PACKED:
                raise UserError(f"{name}: {kind} cannot be read inside a zip; unpack it and give the file")
            yield InputFile(name, _member_opener(archive, members[path]), labels.get(path)), kind


def _opener(file: Path) -> Callable[[], BinaryIO]:
    def unpacked() -> BinaryIO:
        _check_regular(file)
        return cast(BinaryIO, gzip.GzipFile(file, "rb"))

    return unpacked if file.name.lower().endswith(".gz") else lambda: _open_plain(file)


def _member_opener(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Callable[[], BinaryIO]:
    if member.filename.lower().endswith(".gz"):
        return lambda: cast(BinaryIO, gzip.GzipFile(fileobj=archive.open(member)))
    return lambda: cast(BinaryIO, archive.open(member))


def _open_plain(file: Path) -> BinaryIO:
    _check_regular(file)
    return cast(BinaryIO, file.open("rb", buffering=0))


def _check_regular(file: Path) -> None:
    """A pipe would be waited for, perhaps for ever."""
    mode = file.stat().st_mode
    if stat.S_ISDIR(mode):
        raise UserError(f"{file}: a folder, not a file; a folder alone, or a glob, gives the files in it")
    if not stat.S_ISREG(mode):
        raise UserError(f"{file}: neither a file nor a folder (a pipe, a socket or a device); write it to a file first")


@contextmanager
def in_words(name: str) -> Iterator[None]:
    """What the system, gzip and zip say about a broken file, as a sentence."""
    try:
        yield
    except UserError:
        raise
    except (zipfile.BadZipFile, gzip.BadGzipFile, EOFError, zlib.error, NotImplementedError) as error:
        kind = "zip" if ".zip" in name.lower() else "gzip"
        raise UserError(f"{name}: a broken {kind} file: {str(error)[:200]}; fetch or pack it again") from None
    except OSError as error:
        raise UserError(f"{name[:200]}: cannot be read: {error.strerror or error}") from None
