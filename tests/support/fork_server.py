"""Trainings in processes of their own, made to be killed.

Starting Python and torch takes seconds, dying takes none. So one process imports everything once and then forks a life
for each command: every life is a real process with its own number, and its death is a real one. This file is also what
runs in those processes; `python fork_server.py once DEATH COMMAND ...` is one life in a fresh process.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

PATIENCE = 300  # seconds for one life on a busy machine
GOOD = ("good", "great", "warm", "funny", "bright", "lovely", "clever", "moving")
BAD = ("bad", "poor", "cold", "dull", "grey", "awful", "mad", "boring")
OTHER = (*(f"word{n}" for n in range(40)), "the", "a", "of", "film", "plot", "and", "scene", "with")
EPOCH = 14  # steps, by these rows and this budget
RECIPE = f"""
task = "classify"
seed = 11
[data]
corpus = "rows.csv"
length = 32
[tokenizer]
vocab_size = 200
[model]
context = 64
segments = 2
width = 16
heads = 2
layers = 1
feedforward = 32
positions = "rotary"
embedding_norm = true
pooler = "gelu"
[train]
steps = {4 * EPOCH + 4}
batch_tokens = 340
learning_rate = 5e-3
warmup = 5
dropout = 0.2
token_dropout = 0.1
report_every = 1
save_every = 7
eval_every = 20
[runtime]
threads = 1
"""


def write_recipe(folder: Path) -> Path:
    """Rows of varied length, and a recipe that learns from them in a second: `my.toml`."""
    chance = random.Random(5)
    with (folder / "rows.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        for number in range(300):
            label, length = chance.choice(["neg", "pos"]), chance.choice([3, 5, 8, 13, 21, 34])
            telling = GOOD if label == "pos" else BAD
            words = [chance.choice(telling if chance.random() < 0.25 else OTHER) for _ in range(length)]
            writer.writerow([f"{' '.join(words)} {number}", label])
    (folder / "my.toml").write_text(RECIPE)
    return folder / "my.toml"


@dataclass
class Ended:
    """How a life ended: its exit code as a shell tells it apart (-9: by SIGKILL), and what it said."""

    code: int
    out: str
    err: str


class Process:
    """A process that runs a `qkv` command."""

    def __init__(self, fork_server: ForkServer, pid: int, folder: Path) -> None:
        self._nursery, self.pid, self._folder = fork_server, pid, folder
        self._code: int | None = None

    def code(self) -> int | None:
        """How it ended; None while it fork_server."""
        if self._code is None:
            self._code = self._nursery.ask({"poll": self.pid})
        return self._code

    def err(self) -> str:
        file = self._folder / "err"
        return file.read_text() if file.exists() else ""

    def wait(self) -> Ended:
        deadline = time.monotonic() + PATIENCE
        while (code := self.code()) is None:
            assert time.monotonic() < deadline, self.err()
            time.sleep(0.005)
        out = self._folder / "out"
        return Ended(code, out.read_text() if out.exists() else "", self.err())

    def kill(self, how: signal.Signals) -> Ended:
        os.kill(self.pid, how)
        return self.wait()


class ForkServer:
    """Forks fork_server in a folder that holds a recipe; the cache is below it."""

    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        self._server = subprocess.Popen(
            [sys.executable, __file__, "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )
        self._count = 0

    def ask(self, order: dict[str, Any]) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(order) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, folder: Path, *words: str | Path, **death: Any) -> Process:
        """Begin a command in a folder. `death` says how it is to end, see `doom`."""
        self._count += 1
        said = folder / "said" / str(self._count)
        said.mkdir(parents=True)
        order = {"words": [str(word) for word in words], "folder": str(folder), "said": str(said), "death": death}
        return Process(self, self.ask(order), said)

    def live(self, folder: Path, *words: str | Path, **death: Any) -> Ended:
        return self.start(folder, *words, **death).wait()


@cache
def fork_server() -> ForkServer:
    return ForkServer()


def until(true: Callable[[], object], life: Process | None = None) -> None:
    """Wait for something that a life is about to do."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline, "it never came"
        assert life is None or life.code() is None, f"it ended first: {life.err() if life else ''}"
        time.sleep(0.002)


def steps_reported(run: Path) -> int:
    """Lines of metrics.jsonl so far."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs ended alike: model, last checkpoint, and every report but for its times; and nothing half is left."""
    last = max(int(folder.name.removeprefix("step-")) for folder in (one / "checkpoints").glob("step-*[0-9]"))
    kept = [f"checkpoints/step-{last}/{name}.safetensors" for name in ("model", "optimiser")]
    for name in ("model.safetensors", "config.json", "tokenizer.json", "recipe.toml", *kept):
        assert sha256(one / name) == sha256(other / name), name
    reports = [timeless(run) for run in (one, other)]
    assert reports[0] == reports[1]
    assert len(reports[0]) > 1
    left = [file for file in other.rglob("*") if ".tmp-" in file.name or file.name.endswith(".new")]
    assert not left


def timeless(run: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: v for name, v in line.items() if name not in ("seconds", "tokens_per_second")} for line in lines]


def flip(file: Path, place: int | None = None, bit: int = 0) -> None:
    """Change one bit of a file; of the middle byte, if none is named."""
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2 if place is None else place] ^= 1 << bit
    file.write_bytes(raw)


# --- what runs inside a life


def doom(death: dict[str, Any]) -> None:
    """Arrange for the end of this process.

    after_step, signal: it gets that signal when all of that step is done.
    operation: it is killed just before it touches the disk for that time (counted from 1; 0: counted only).
    largest_file: no file may become larger, as on a disk that is full.
    slow: seconds of rest after each step.
    """
    if "after_step" in death or "slow" in death:
        _doom_at_step(death.get("after_step", 0), death.get("signal", 0), death.get("slow", 0.0))
    if "operation" in death:
        _doom_at_operation(death["operation"])
    if "largest_file" in death:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (death["largest_file"], death["largest_file"]))


def _doom_at_step(step: int, kind: int, rest: float) -> None:
    from qkv.train import session

    real = vars(session)["train"]

    def mortal(*arguments: Any) -> Iterator[Any]:
        for report in real(*arguments):
            yield report
            time.sleep(rest)
            if report.step == step:
                os.kill(os.getpid(), kind)

    vars(session)["train"] = mortal


def _doom_at_operation(last: int) -> None:
    import atexit

    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def touch(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return touch

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    atexit.register(lambda: sys.stderr.write(f"operations {count}\n"))


def run_here(words: list[str], death: dict[str, Any]) -> None:
    """A `qkv` command in this process; or `learn RECIPE RUN`, the same training without pictures."""
    doom(death)
    if words[0] == "learn":
        from qkv.train.finish import finish

        from qkv.api import training
        from qkv.config.recipes import resolve

        with training(resolve(words[1]), Path(words[2])) as session:
            for _ in session.reports():
                pass
            finish(session)
        return
    from qkv.cli.main import main

    sys.argv = ["qkv", *words]
    main()


def _be_born(order: dict[str, Any]) -> NoReturn:
    import atexit

    said = Path(order["said"])
    for number, file in ((0, os.devnull), (1, said / "out"), (2, said / "err")):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
    os.chdir(order["folder"])
    os.environ["QKV_CACHE"] = str(Path(order["folder"]) / "cache")
    code: Any = 1
    try:
        run_here(order["words"], order["death"])
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def serve() -> None:
    """Fork a life for each line of standard input; answer with its number, or with how it ended."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401
    import torch._dynamo  # noqa: F401  (AdamW does so when it is made)

    import qkv.cli.compare
    import qkv.cli.data
    import qkv.cli.main
    import qkv.cli.train
    import qkv.verify  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork() or _be_born(order)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        run_here(sys.argv[3:], json.loads(sys.argv[2]))
