"""A fork server: runs `qkv` commands in processes that tests can kill.

Importing Python and torch takes seconds. So one server process imports everything once and forks a child for each
command. A child is a real process with its own pid, and a kill is a real kill. This file is also what runs in those
processes; `python fork_server.py once FAULT COMMAND ...` runs one command in a fresh process.
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

PATIENCE = 300  # seconds for one command on a busy machine
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
    """Rows of varied length, and a recipe that trains on them in a second: `my.toml`."""
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
    """How a process ended: its exit code (-9: killed by SIGKILL), and what it printed."""

    code: int
    out: str
    err: str


class Process:
    """A child of the fork server that runs a `qkv` command."""

    def __init__(self, server: ForkServer, pid: int, folder: Path) -> None:
        self._server, self.pid, self._folder = server, pid, folder
        self._code: int | None = None

    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        if self._code is None:
            self._code = self._server.ask({"poll": self.pid})
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
    """Runs commands in a folder that holds a recipe; the cache is below it."""

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

    def ask(self, request: dict[str, Any]) -> Any:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())

    def start(self, folder: Path, *words: str | Path, **fault: Any) -> Process:
        """Start a command in a folder. `fault` says what goes wrong in it, see `inject_fault`."""
        self._count += 1
        output = folder / "output" / str(self._count)
        output.mkdir(parents=True)
        command = [str(word) for word in words]
        request = {"command": command, "folder": str(folder), "output": str(output), "fault": fault}
        return Process(self, self.ask(request), output)

    def run(self, folder: Path, *words: str | Path, **fault: Any) -> Ended:
        """Run a command to its end."""
        return self.start(folder, *words, **fault).wait()


@cache
def fork_server() -> ForkServer:
    return ForkServer()


def until(condition: Callable[[], object], process: Process | None = None) -> None:
    """Wait for something that a process is about to do."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        assert process is None or process.code() is None, f"it ended first: {process.err() if process else ''}"
        time.sleep(0.002)


def steps_reported(run: Path) -> int:
    """Lines of metrics.jsonl so far."""
    file = run / "metrics.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs ended alike: model, last checkpoint, and every report but for its times; no temporary file is left."""
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
    """All lines of metrics.jsonl, without their times."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: v for name, v in line.items() if name not in ("seconds", "tokens_per_second")} for line in lines]


def flip(file: Path, place: int | None = None, bit: int = 0) -> None:
    """Change one bit of a file: of the middle byte by default."""
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2 if place is None else place] ^= 1 << bit
    file.write_bytes(raw)


# --- what runs inside a child


def inject_fault(fault: dict[str, Any]) -> None:
    """Let something go wrong in this process.

    after_step, signal: it gets that signal when all of that step is done.
    operation: it is killed just before its n-th operation on the disk (from 1; 0: they are only counted).
    largest_file: no file may become larger, as on a full disk.
    slow: seconds of rest after each step.
    """
    if "after_step" in fault or "slow" in fault:
        _signal_at_step(fault.get("after_step", 0), fault.get("signal", 0), fault.get("slow", 0.0))
    if "operation" in fault:
        _kill_at_operation(fault["operation"])
    if "largest_file" in fault:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (fault["largest_file"], fault["largest_file"]))


def _signal_at_step(step: int, kind: int, rest: float) -> None:
    from qkv.training import trainer

    real = vars(trainer)["train"]

    def interrupted(*arguments: Any) -> Iterator[Any]:
        for report in real(*arguments):
            yield report
            time.sleep(rest)
            if report.step == step:
                os.kill(os.getpid(), kind)

    vars(trainer)["train"] = interrupted


def _kill_at_operation(last: int) -> None:
    import atexit

    count = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return operation

    for name in ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir"):
        setattr(os, name, counted(getattr(os, name)))
    atexit.register(lambda: sys.stderr.write(f"operations {count}\n"))


def run_here(command: list[str], fault: dict[str, Any]) -> None:
    """A `qkv` command in this process; or `train-only RECIPE RUN`, the same training without pictures."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores Ctrl-C, and so do its children
    inject_fault(fault)
    if command[0] == "train-only":
        from qkv.config.recipes import resolve
        from qkv.training.trainer import open_trainer

        with open_trainer(resolve(command[1]), Path(command[2])) as trainer:
            for _ in trainer.reports():
                pass
            trainer.finish()
        return
    from qkv.cli.main import main

    sys.argv = ["qkv", *command]
    main()


def _serve_child(request: dict[str, Any]) -> NoReturn:
    import atexit

    output = Path(request["output"])
    for number, file in ((0, os.devnull), (1, output / "out"), (2, output / "err")):
        os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
    os.chdir(request["folder"])
    os.environ["QKV_CACHE"] = str(Path(request["folder"]) / "cache")
    code: Any = 1
    try:
        run_here(request["command"], request["fault"])
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
    """Fork a child for each line of standard input; answer with its pid, or with its exit code."""
    import matplotlib.backends.backend_agg
    import matplotlib.figure  # noqa: F401
    import torch._dynamo  # noqa: F401  (AdamW does so when it is made)

    import qkv.cli.main
    import qkv.plots
    import qkv.training.trainer
    import qkv.verify  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        if "poll" in request:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork() or _serve_child(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        run_here(sys.argv[3:], json.loads(sys.argv[2]))
