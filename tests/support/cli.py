"""The `qkv` command as tests use it: write small corpora, run a command in a process of its own, check how it ended.

A command is run in a folder that holds its corpora and a recipe, `my.toml`; its cache is below that folder.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tests.support.fork_server import PATIENCE, Ended, assert_same_end, fork_server

RECIPE = "my.toml"

# --- corpora


def write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    """A CSV file; the first row names the columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def write_documents(path: Path, documents: Iterable[str]) -> None:
    """Documents with blank lines between them."""
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def write_aligned(folder: Path, name: str, pairs: Iterable[tuple[str, str]]) -> None:
    """Two files of aligned lines: NAME.a and NAME.b."""
    sources, targets = zip(*pairs, strict=True)
    for suffix, lines in (("a", sources), ("b", targets)):
        (folder / f"{name}.{suffix}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


# --- commands


def run_qkv(folder: Path, *arguments: str | Path, stdin: str | None = None, **fault: Any) -> Ended:
    """A `qkv` command, run to its end in a child of the fork server; in a fresh process if it reads `stdin`. `fault`
    says what goes wrong in it, see `fork_server.inject_fault`."""
    if stdin is None:
        return fork_server().run(folder, *arguments, **fault)
    assert not fault, "faults are for the fork server"
    command = [sys.executable, "-P", "-m", "qkv.cli.main", *map(str, arguments)]
    environment = {**os.environ, "QKV_CACHE": str(folder / "cache")}
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=folder, env=environment, input=stdin, timeout=PATIENCE
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def train(folder: Path, run: str, *settings: str, **fault: Any) -> Ended:
    """`qkv train my.toml -o RUN --set SETTING ...`."""
    return run_qkv(folder, "train", RECIPE, "-o", run, *(word for one in settings for word in ("--set", one)), **fault)


def trained(folder: Path, run: str, *settings: str) -> Ended:
    """The same, and it must succeed."""
    ended = train(folder, run, *settings)
    assert ended.code == 0, ended.err
    return ended


def run_json(folder: Path, *arguments: str | Path) -> dict[str, Any]:
    """A command that prints one JSON object, and must succeed."""
    ended = run_qkv(folder, *arguments, "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    assert isinstance(found, dict)
    return found


# --- checks


def check_ended(ended: Ended, code: int, sentence: str) -> None:
    """A command ended with this code and sentence, and never with a traceback."""
    assert ended.code == code, ended.err
    assert sentence in ended.err
    assert "Traceback" not in ended.err


def check_kill_and_resume(folder: Path, run: str, *, kill_after: int, resume_from: int) -> None:
    """A training that is killed after a step resumes from its last checkpoint, to the same bits as a finished `run`."""
    killed = train(folder, "killed", after_step=kill_after, signal=signal.SIGKILL)
    assert killed.code == -signal.SIGKILL
    assert f"resuming from step {resume_from}\n" in trained(folder, "killed").err
    assert_same_end(folder / run, folder / "killed")
