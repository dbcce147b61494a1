"""Run labs: every seed of every lab once, one process a core.

The models are so small that a second thread does not speed them up; a second process with another seed does.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from qkv import labs, runtime
from qkv.disk import replace_file
from qkv.labs.lab import Lab, Measured, Result, Setting, silently

SECONDS_TO_LISTEN = 0.2


@dataclass(frozen=True)
class Step:
    """Progress: the lab, what it does, and how many of its measurements are done."""

    lab: str
    what: str
    done: int
    total: int


def run_lab(
    lab: Lab,
    *,
    full: bool = False,
    run: Path | None = None,
    folder: Path | None = None,
    tick: Callable[[str], None] = silently,
) -> Result:
    """Measure with every seed, one after the other, in this process. With a `folder`, what was measured there before,
    by the same code, is not measured again: a long run that was stopped goes on."""
    settings = [replace(setting, tick=tick) for setting in lab.settings(full, run)]
    return Result(lab, tuple(_measured(lab, setting, folder) for setting in settings), full)


def run_labs(
    names: Sequence[str],
    *,
    full: bool = False,
    run: Path | None = None,
    folder: Path | None = None,
    report: Callable[[Step], None] = lambda step: None,
) -> Iterator[Result]:
    """Measure labs, those that take the time of something alone, the others side by side."""
    every = [labs.load(name) for name in names]
    jobs = {lab.name: lab.settings(full, run) for lab in every}
    total, done = sum(len(settings) for settings in jobs.values()), 0
    report(Step(names[0], "starting", 0, total))
    for lab in every:
        if lab.timed or total == 1:
            tick = partial(_report, report, lab.name, done, total)
            yield run_lab(lab, full=full, run=run, folder=folder, tick=tick)
            done += len(jobs.pop(lab.name))
    if not jobs:
        return
    with _workers(min(runtime.usable_cores(), total - done)) as (submit, heard):
        waiting = {name: [submit(name, setting, folder) for setting in settings] for name, settings in jobs.items()}
        for name, own in waiting.items():
            while not all(future.done() for future in own):
                with suppress(queue.Empty):
                    who, what = heard.get(timeout=SECONDS_TO_LISTEN)
                    ready = sum(future.done() for futures in waiting.values() for future in futures)
                    _report(report, who, done + ready, total, what)
            yield Result(labs.load(name), tuple(future.result() for future in own), full)


def _report(report: Callable[[Step], None], lab: str, done: int, total: int, what: str) -> None:
    report(Step(lab, what, done, total))


@contextmanager
def _workers(count: int) -> Iterator[tuple[Callable[..., Future[Measured]], Any]]:
    """Worker processes and their queue of messages; they end when this process ends, however that happens."""
    spawn, before = multiprocessing.get_context("spawn"), multiprocessing.active_children()
    os.environ["PYTHONSAFEPATH"] = "1"  # a worker must not import from the current folder
    messages = spawn.Queue()
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin, initargs=(messages,))
    try:
        yield lambda *job: pool.submit(_job, *job), messages
    finally:
        for child in multiprocessing.active_children():
            if child not in before:
                child.terminate()
        pool.shutdown(cancel_futures=True)


_messages: Any = None  # in a worker: the queue to its parent


def _begin(messages: Any) -> None:
    """The start of a worker."""
    global _messages
    _messages = messages
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it too, and ends its workers
    threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
    runtime.start(1)


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _job(name: str, setting: Setting, folder: Path | None) -> Measured:
    return _measured(labs.load(name), replace(setting, tick=lambda what: _messages.put((name, what))), folder)


def _measured(lab: Lab, setting: Setting, folder: Path | None) -> Measured:
    if folder is None or setting.run is not None:
        return lab.measure(setting)
    file = folder / f"{lab.name}-{'full' if setting.full else 'quick'}-{setting.seed}-{code_hash()[:16]}.json"
    try:
        return Measured(**json.loads(file.read_bytes()))
    except (OSError, ValueError, TypeError):
        measured = lab.measure(setting)
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(file, json.dumps(asdict(measured)).encode())
    return measured


@cache
def code_hash() -> str:
    """A hash of all code that measures: what was measured by other code is not taken for what this would measure."""
    root = Path(str(files("qkv")))
    sources = sorted(path for path in root.rglob("*.py") if "cli" not in path.relative_to(root).parts)
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
