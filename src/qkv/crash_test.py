"""Proof that a killed training ends with the same bits as an uninterrupted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qkv import disk
from qkv.run.checkpoint import OPTIMISER, WEIGHTS
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.streams import stream

TIMES = ("seconds", "tokens_per_second")  # all that may differ between two runs of one recipe


@dataclass(frozen=True)
class Kill:
    """One kill of a training, and where it resumed."""

    number: int
    signal: str
    reached: int  # the last step that was reported before
    resumed_at: int


@dataclass(frozen=True)
class Comparison:
    """The killed run beside the uninterrupted one."""

    equal: dict[str, bool]  # what was compared -> whether it is the same
    sha256: tuple[str, str]  # of the model: uninterrupted, killed

    @property
    def holds(self) -> bool:
        return all(self.equal.values())


def crash_test(command: Sequence[str], folder: Path, kills: int, seed: int) -> Iterator[Kill | Comparison]:
    """Train once uninterrupted, once with the process killed again and again, and compare the results.

    `command` is what trains, without its -o. Every second kill is SIGTERM, the others are SIGKILL.
    """
    whole, run, saved = folder / "whole", Run(folder / "killed"), 0
    _run_to_end([*command, "-o", str(whole)])
    steps = _reached(Run(whole))
    lines = Run(whole).metrics()
    if not lines:
        raise UserError("this recipe makes no optimiser step, so there is nothing to interrupt; set train.steps")
    pause = float(lines[-1]["seconds"]) / len(lines)  # between two reports
    for number in range(kills):
        share = int(stream(seed, "order", number).random_raw() >> 11) / 2**53
        how = signal.SIGTERM if number % 2 else signal.SIGKILL
        goal = saved + 1 + int(share * (steps - saved - 1) / (kills - number))
        if _killed([*command, "-o", str(run.path)], how, run, goal, share * pause):
            break  # it finished first
        saved = next(iter(run.checkpoints.sound()), 0)
        yield Kill(number + 1, how.name, _reached(run), saved)
    _run_to_end([*command, "-o", str(run.path)])
    yield compare_to_the_bit(Run(whole), run)


def compare_to_the_bit(one: Run, other: Run) -> Comparison:
    """Model, last checkpoint, and metrics but for their times."""
    last = max(one.checkpoints.steps())
    files = {name: f"checkpoints/step-{last}/{name}" for name in (WEIGHTS, OPTIMISER)}
    hashes = [disk.described(run.path / WEIGHTS)["sha256"] for run in (one, other)]
    equal = {"model": hashes[0] == hashes[1]}
    for name, file in files.items():
        there = (other.path / file).exists()
        equal[f"last {name}"] = there and disk.described(one.path / file) == disk.described(other.path / file)
    equal["metrics.jsonl but for times"] = _timeless(one.metrics()) == _timeless(other.metrics())
    return Comparison(equal, (hashes[0], hashes[1]))


def _timeless(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


def _reached(run: Run) -> int:
    """The last step that was reported."""
    lines = run.metrics()
    return int(lines[-1]["step"]) if lines else 0


def _run_to_end(command: Sequence[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, env=_environment())
    if result.returncode:
        raise UserError(f"the training itself failed:\n{result.stderr[-2000:]}")


def _killed(command: Sequence[str], how: signal.Signals, run: Run, step: int, pause: float) -> bool:
    """Kill a training some seconds after it has reported a step. True if it finished before."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment())
    try:
        while process.poll() is None:
            if _reached(run) >= step:
                time.sleep(pause)
                if process.poll() is not None:
                    return True
                process.send_signal(how)
                process.wait()
                return False
            time.sleep(0.01)
        return True
    finally:
        process.kill()


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1"}


def train_command(recipe: str, settings: Sequence[str]) -> list[str]:
    """`qkv train RECIPE --set ...` with this interpreter. -P: the current folder is not on sys.path."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-P", "-m", "qkv.cli.main", "train", recipe, *chosen]
