"""Proof that a run is what was written, repair where it is not, and proof that a killed training ends alike."""

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
from qkv.learn.session import open_run_data, restore_root, same_tokenizer
from qkv.learn.train import Progress
from qkv.run import RECIPE, WEIGHTS, Run
from qkv.schema import UserError
from qkv.streams import stream

TIMES = ("seconds", "tokens_per_second")  # all that may differ between two runs of one recipe


@dataclass(frozen=True)
class Finding:
    """One part of a run: the root or a checkpoint, and what is wrong with it."""

    part: str
    problems: list[str]


def verify(path: Path) -> tuple[list[Finding], str]:
    """Every file of a run against its hash, and what the same `qkv train` command would do now."""
    run = Run(path)
    if not run.begun:
        raise UserError(f"{path}: is no run: it has no {disk.MANIFEST}; a run is what `qkv train` writes")
    findings = [Finding("root", run.problems())]
    for step in run.checkpoints():
        wrong = run.problems_of(step)
        if run.folder_of(step).exists():  # a training that goes on meanwhile lets go of old ones
            findings.append(Finding(f"step {step}", wrong))
    sound = [finding for finding in findings[1:] if not finding.problems]
    if findings[0].problems:
        future = "its root is damaged, so nothing uses this run as it is; --repair makes anew what can be made"
    elif run.is_done():
        future = "this run is finished; training it again changes nothing"
    elif sound:
        future = f"the same qkv train command goes on from {sound[0].part}"
    else:
        future = "there is no sound checkpoint: the same qkv train command begins at step 0"
    return findings, future


def repair(path: Path) -> list[str]:
    """Set aside damaged checkpoints, and make the root's model anew from the checkpoint it came from."""
    run, done = Run(path), list[str]()
    with run.lock():
        for step in run.checkpoints():
            if run.problems_of(step):
                done.append(f"{run.folder_of(step)} is damaged and was set aside as {run.set_aside(step).name}")
        if not run.problems():
            return done
        with run.writing("what was repaired"):
            return done + _rebuild(run)


def _rebuild(run: Run) -> list[str]:
    """Write the root again. The model comes from the checkpoint of its own step, so that it is the same to the bit."""
    checkpoint, _ = run.newest()
    if checkpoint is None:
        raise UserError(f"{run.path}: there is no sound checkpoint to make the model anew from; begin anew elsewhere")
    recipe, best = run.recipe, Progress(**checkpoint.progress).best_step
    if recipe is None or any(RECIPE in sentence for sentence in run.problems()):
        raise UserError(f"{run.path / RECIPE}: is damaged, and nothing else tells what it said; begin anew elsewhere")
    if best and best not in run.checkpoints():
        raise UserError(
            f"{run.path}: its model came from step {best}, whose checkpoint is lost too; begin anew elsewhere"
        )
    prepared, files, began_with = open_run_data(recipe, run)
    if prepared.data_hash != checkpoint.fingerprint["data"]:
        raise UserError(f"{run.path}: the data has changed since this run was begun, so its root cannot be made anew")
    if not any("tokenizer" in sentence for sentence in run.problems()):
        same_tokenizer(run, files)
    run.begin(recipe, files, began_with)
    if not best:
        return [f"{run.path}: its root was made anew; its first model is written at its first evaluation"]
    restore_root(run, recipe, prepared, best)
    return [f"{run.path}: its model was made anew from step {best}; its card is written when it is trained again"]


@dataclass(frozen=True)
class Kill:
    """One death of a training and what the next life made of it."""

    number: int
    signal: str
    reached: int  # the last step that was reported before
    resumed_at: int  # where the next life went on


@dataclass(frozen=True)
class Verdict:
    """The killed run beside the uninterrupted one."""

    equal: dict[str, bool]  # what was compared -> whether it is the same
    sha256: tuple[str, str]  # of the model: uninterrupted, killed

    @property
    def holds(self) -> bool:
        return all(self.equal.values())


def crash_test(command: Sequence[str], folder: Path, kills: int, seed: int) -> Iterator[Kill | Verdict]:
    """Run a training once in peace, once with its process killed again and again, and compare what came out.

    `command` is what trains, without its -o. Every second kill is SIGTERM, the others are SIGKILL.
    """
    whole, run, saved = folder / "whole", Run(folder / "killed"), 0
    _run_to_end([*command, "-o", str(whole)])
    steps = _reached(Run(whole))
    lines = Run(whole).metrics()
    pause = float(lines[-1]["seconds"]) / len(lines)  # between two reports
    for number in range(kills):
        share = int(stream(seed, "order", number).random_raw() >> 11) / 2**53
        how = signal.SIGTERM if number % 2 else signal.SIGKILL
        goal = saved + 1 + int(share * (steps - saved - 1) / (kills - number))
        if _killed([*command, "-o", str(run.path)], how, run, goal, share * pause):
            break  # it came to its end first
        saved = next((step for step in run.checkpoints() if not run.problems_of(step)), 0)
        yield Kill(number + 1, how.name, _reached(run), saved)
    _run_to_end([*command, "-o", str(run.path)])
    yield compare_to_the_bit(Run(whole), run)


def compare_to_the_bit(one: Run, other: Run) -> Verdict:
    """Model, last checkpoint, and metrics but for their times."""
    last = max(one.checkpoints())
    files = {name: f"checkpoints/step-{last}/{name}" for name in ("model.safetensors", "optimiser.safetensors")}
    hashes = [disk.described(run.path / WEIGHTS)["sha256"] for run in (one, other)]
    equal = {"model": hashes[0] == hashes[1]}
    for name, file in files.items():
        there = (other.path / file).exists()
        equal[f"last {name}"] = there and disk.described(one.path / file) == disk.described(other.path / file)
    equal["metrics.jsonl but for times"] = _timeless(one.metrics()) == _timeless(other.metrics())
    return Verdict(equal, (hashes[0], hashes[1]))


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
    """Let a training live until some seconds after it has reported a step, and kill it. True if it ended before."""
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


def this_command(recipe: str, settings: Sequence[str]) -> list[str]:
    """`qkv train RECIPE --set ...` by the interpreter that runs now."""
    chosen = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "qkv.app.cli", "train", recipe, *chosen]
