"""Files that appear whole or not at all, also when the process is killed or the disk is full, and manifests that prove
that they are still what was written.

A manifest is a JSON file with the size and sha256 of every other file beside it, and of its own list. Where a single
file of a folder is replaced, the manifest first admits both versions, then the file changes, then the manifest names
the new one only: at every instant each file is one that the manifest knows. That there is no such file yet is a version
too.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from qkv.schema import UserError

MANIFEST = "MANIFEST.json"
LARGEST_MANIFEST = 10_000_000  # bytes
ABSENT: dict[str, Any] = {"bytes": -1, "sha256": ""}  # the version of a file that is not there yet


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of files is on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def replace_file(path: Path, content: bytes | Callable[[Path], None]) -> None:
    """Put a file in place of another in one step. `content` is bytes, or a function that writes to the path it gets."""
    temporary = path.with_name(f".{path.name}.tmp-{os.getpid()}")
    try:
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content)
        sync(temporary)
        temporary.replace(path)
        sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path, *, manifest: bool = True, locked: bool = True) -> Iterator[Path]:
    """A temporary folder to fill; when the block ends it gets a manifest, if wanted, and is renamed, in one step. The
    target may exist if it is an empty folder. Where the caller holds a lock, a temporary folder of the same name is a
    leftover and is removed; else it may be another writer's (process ids repeat across machines), and is an error."""
    temporary = target.with_name(f"{target.name}.tmp-{os.getpid()}")
    if locked:
        shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            sync(file)
        if manifest:
            write_manifest(temporary, [file.name for file in temporary.iterdir()])
        sync(temporary)
        temporary.rename(target)
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # after the rename there is nothing of that name


def described(file: Path) -> dict[str, Any]:
    """What a manifest says about a file."""
    with file.open("rb") as opened:
        return {"bytes": file.stat().st_size, "sha256": hashlib.file_digest(opened, "sha256").hexdigest()}


def write_manifest(folder: Path, names: Iterable[str], facts: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Describe these files of a folder as they are now; `facts` are to be noted beside the hash of some."""
    said = facts or {}
    _write(folder, {name: [{**said.get(name, {}), **described(folder / name)}] for name in sorted(names)})


def remove_folder(folder: Path) -> None:
    """Let go of a folder in one step: it is never met half empty."""
    gone = folder.with_name(f"{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(gone, ignore_errors=True)
    folder.rename(gone)
    shutil.rmtree(gone)


def remove_leftovers(folder: Path, names: re.Pattern[str]) -> None:
    """Remove what a killed process left half-written under such names. For whoever alone writes there."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if names.fullmatch(entry.name):
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def replace_listed(folder: Path, name: str, content: bytes | Callable[[Path], None], **facts: float | str) -> None:
    """Replace or add one file of a folder with a manifest, so that a reader never meets a file it must not trust.

    `facts` are what to note beside its hash; they are always those of the version that is there.
    """
    listed = _read(folder)
    fresh = folder / f".{name}.new"

    def known(versions: list[dict[str, Any]]) -> None:
        _write(folder, {**listed, name: versions})

    try:
        if callable(content):
            content(fresh)
        else:
            fresh.write_bytes(content)
        sync(fresh)
        new = described(fresh) | facts
        known([*listed.get(name, [ABSENT]), new])
        fresh.replace(folder / name)
        sync(folder)
        known([new])
    finally:
        fresh.unlink(missing_ok=True)


def facts_of(folder: Path, name: str) -> dict[str, Any] | None:
    """What a manifest says about the version of a file that is there; None where it is none that it knows."""
    listed = _read(folder)
    while True:
        there = described(folder / name)
        found = next((version for version in listed.get(name, []) if there.items() <= version.items()), None)
        before, listed = listed, _read(folder)
        if found is not None or listed == before:
            return found


def lists(folder: Path, name: str) -> bool:
    """Whether a folder's manifest knows such a file."""
    return name in _read(folder)


def problems(folder: Path, trusted: Iterable[str] = ()) -> list[str]:
    """What is wrong in a folder by its manifest, a sentence each; empty where every file is what was written.

    `trusted` are files that would be used if they are there, so the manifest must list them.
    """
    names = list(trusted)
    try:
        listed = _read(folder)
        while wrong := list(_all_wrong(folder, listed, names)):
            before, listed = listed, _read(folder)
            if listed == before:
                return wrong  # else a file was replaced while we looked
    except UserError as error:
        return [str(error)]
    return []


def _all_wrong(folder: Path, listed: Mapping[str, list[dict[str, Any]]], trusted: list[str]) -> Iterator[str]:
    for name, versions in listed.items():
        yield from _wrong(folder / name, versions)
    for name in trusted:
        if name not in listed and os.path.lexists(folder / name):
            yield f"{folder / name}: is not listed in {MANIFEST}, so it is not what was written"


def _wrong(file: Path, versions: list[dict[str, Any]]) -> Iterator[str]:
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe or a device may never end
            yield f"{file}: is not a regular file"
        elif found.st_size not in {version["bytes"] for version in versions}:
            sizes = " or ".join(f"{version['bytes']:,}" for version in versions if version != ABSENT)
            yield f"{file}: has {found.st_size:,} bytes, its manifest says {sizes}"
        elif not any(described(file).items() <= version.items() for version in versions):
            yield f"{file}: its content is not what was written (sha256 differs from {MANIFEST})"
    except FileNotFoundError:
        if ABSENT not in versions:
            yield f"{file}: is missing, its manifest lists it"
    except OSError as error:
        yield f"{file}: cannot be read: {error.strerror}"


def _write(folder: Path, listed: Mapping[str, list[dict[str, Any]]]) -> None:
    text = json.dumps({"files": listed, "sha256": _sum(listed)}, indent=1, sort_keys=True) + "\n"
    replace_file(folder / MANIFEST, text.encode())


def _sum(listed: Mapping[str, list[dict[str, Any]]]) -> str:
    """A manifest's hash of its own list: a changed size, hash or fact cannot pass for what was written."""
    return hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The list of files in a manifest. It may be hostile, so its form is checked."""
    file = folder / MANIFEST
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST_MANIFEST:
            raise ValueError(f"must be a regular file of at most {LARGEST_MANIFEST:,} bytes")
        said = json.loads(file.read_bytes())
        listed = said["files"]
        for name, versions in listed.items():
            plain = "/" not in name and "\\" not in name and name not in ("", ".", "..") and name.isprintable()
            whole = type(versions) is list and versions
            if (
                not plain
                or not whole
                or not all(type(v["bytes"]) is int and type(v["sha256"]) is str for v in versions)
            ):
                raise ValueError(f"odd entry {name[:60]!r}")
        if said["sha256"] != _sum(listed):
            raise ValueError("its sha256 is not that of its list")
    except FileNotFoundError:
        raise UserError(f"{file}: is missing, so nothing beside it can be trusted") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{file}: is not a manifest as it was written: {str(error)[:100]}") from None
    return listed
