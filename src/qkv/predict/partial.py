"""Answers of a job that has not ended, in a file beside its output: a killed process loses one chunk at most."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from qkv import disk
from qkv.schema import UserError

FORMAT = 1
DIFFERENT = {
    "format": "another version of qkv", "input": "another table", "bytes": "another table", "model": "another model",
    "columns": "other columns", "options": "other options",
}  # fmt: skip
Answer = list[Any] | None  # the cells of one row; None where it has no text


@contextmanager
def locked(output: Path) -> Iterator[None]:
    """Only one process writes an output. The errors of a full or read-only disk become one sentence."""
    lock = filelock.FileLock(output.with_name(f".{output.name}.lock"), blocking=False)
    try:
        lock.acquire()
        try:
            yield
        finally:
            Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()
    except filelock.Timeout:
        raise UserError(f"{output}: another process is writing it; wait for it, or stop it") from None
    except OSError as error:
        raise UserError(
            f"{output}: cannot be written: {error.strerror or error}; what was predicted is kept, so run the same "
            "command again when there is room"
        ) from None


class Partial:
    """Answers of a job that has not ended: a line that says what they are of, then a line for each chunk."""

    def __init__(self, path: Path, heading: dict[str, Any]) -> None:
        self.path, self.heading = path, json.loads(json.dumps({"format": FORMAT, **heading}))

    def open(self) -> int:
        """The number of rows that are answered. A file that is not there is begun; half a line is cut off."""
        end, rows = 0, 0
        if self.path.exists():
            for number, (line, table) in enumerate(self._lines()):
                if number == 0:
                    self._check(table)
                else:
                    rows += len(table["answers"])
                end += len(line)
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.truncate(end)
            file.seek(end)
            if end == 0:
                file.write(_line(self.heading))
            file.flush()
            os.fsync(file.fileno())
        disk.sync(self.path.parent)
        return rows

    def append(self, answers: Sequence[Answer], truncated: int) -> None:
        """Keep the answers of a chunk. They are on the disk when this returns."""
        with self.path.open("ab") as file:
            file.write(_line({"answers": answers, "truncated": truncated}))
            file.flush()
            os.fsync(file.fileno())

    def chunks(self) -> Iterator[tuple[list[Answer], int]]:
        """The answers of each chunk, and how many of its texts were truncated."""
        for number, (_, table) in enumerate(self._lines()):
            if number:
                yield table["answers"], table["truncated"]

    def _lines(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """Whole lines, up to the first that is not JSON: what a crash left is no answer."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                try:
                    table = json.loads(line) if line.endswith(b"\n") else None
                except ValueError:
                    return
                if not isinstance(table, dict) or (number and not isinstance(table.get("answers"), list)):
                    return
                yield line, table

    def _check(self, found: dict[str, Any]) -> None:
        for key, what in DIFFERENT.items():
            if found.get(key) != self.heading.get(key):
                raise UserError(
                    f"{self.path}: holds answers of {what}; finish that command, or begin anew: rm {self.path}"
                )


def _line(table: dict[str, Any]) -> bytes:
    return json.dumps(table).encode() + b"\n"
