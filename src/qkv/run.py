"""A run is a folder that explains itself: its recipe, its model, its metrics, its checkpoints.

    recipe.toml  config.json  model.safetensors  tokenizer.json  README.md  MANIFEST.json     the root: ready to use
    metrics.jsonl                                                              a line a report
    checkpoints/step-N/                                                        weights, optimiser, progress, manifest

Everything appears whole or not at all, and every reader checks the manifest. Nothing in a run can execute code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv import disk
from qkv.config import Recipe
from qkv.exchange.written import Written
from qkv.schema import Section, UserError, describe, read_toml

RECIPE, METRICS, CARD, WEIGHTS = "recipe.toml", "metrics.jsonl", "README.md", "model.safetensors"
KEPT = 2  # newest checkpoints, beside that of the best model
MAY_CHANGE = ("train.report_every", "train.eval_every", "train.save_every")  # on resume
PARTS = (WEIGHTS, "optimiser.safetensors", "progress.json")  # of a checkpoint
_STEP = re.compile(r"step-(0|[1-9]\d{0,15})")
_LEFT_IN_ROOT = re.compile(r"\.[\w.]+\.(json|jsonl|toml|md|safetensors|png)\.(new|tmp-\d+)")  # by a process killed
_LEFT_IN_CHECKPOINTS = re.compile(r"step-\d+\.tmp-\d+")


@dataclass(frozen=True)
class Checkpoint:
    """A training at one step. Tensors are mapped to the file: copy out of them."""

    step: int
    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    progress: dict[str, Any]
    fingerprint: dict[str, Any]


class Run:
    """A run folder, to write and to read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process trains a run. The system lets go of the lock when a process ends, however it ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / ".lock", blocking=False)
            lock.acquire()
        except filelock.Timeout:
            raise UserError(f"{self.path}: another process is training this run; wait for it, or stop it") from None
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}; choose another place with -o") from None
        try:
            with self.writing("what a killed process left"):
                if self.begun:
                    disk.remove_leftovers(self.path, _LEFT_IN_ROOT)
                disk.remove_leftovers(self.path / "checkpoints", _LEFT_IN_CHECKPOINTS)
            yield
        finally:
            lock.release()

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """A full disk, or one that cannot be written, is told in a sentence."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)[:200]
            raise UserError(
                f"{self.path}: {what} cannot be written: {reason}; what was saved before is whole, so make room and "
                "give the same command again"
            ) from None

    @property
    def recipe(self) -> Recipe | None:
        """The recipe that was begun with; None where nothing was begun."""
        file = self.path / RECIPE
        return Recipe.read(read_toml(file), str(file)) if os.path.exists(file) else None  # noqa: PTH110

    def begin(self, recipe: Recipe, files: Mapping[str, bytes], began_with: Mapping[str, str]) -> None:
        """Write what does not change: the resolved recipe and the tokenizer. A model and a card must be made anew."""
        content = {RECIPE: recipe.to_toml().encode(), **files}
        if not self.begun:
            self._check_place(content)
        for name, text in content.items():
            disk.replace_file(self.path / name, text)
        for name in ("config.json", WEIGHTS, CARD):
            (self.path / name).unlink(missing_ok=True)
        (self.path / "checkpoints").mkdir(exist_ok=True)
        disk.write_manifest(self.path, content, {RECIPE: dict(began_with)})
        disk.remove_leftovers(self.path, _LEFT_IN_ROOT)

    def _check_place(self, content: Mapping[str, bytes]) -> None:
        """What lies there and is not ours is not written over."""
        if self.checkpoints():
            raise UserError(f"{self.path}: holds checkpoints, but is no run; choose another place with -o")
        for name in (*content, "config.json", WEIGHTS, CARD, METRICS, "curves.png"):
            file = self.path / name
            if os.path.lexists(file) and (name not in content or file.read_bytes() != content[name]):
                raise UserError(f"{file}: is there already, in a folder that is no run; choose another place with -o")

    def began_with(self) -> dict[str, Any]:
        """The hashes of what was begun with: `data`, and `init` where it goes on from another model."""
        return disk.facts_of(self.path, RECIPE) or {}

    def data_hash(self) -> str | None:
        """The hash of the data that was begun with."""
        return self.began_with().get("data")

    @property
    def begun(self) -> bool:
        return os.path.exists(self.path / disk.MANIFEST)  # noqa: PTH110  (Path raises where a name is too long)

    def replace_model(self, written: Written, *, step: int, temperature: float) -> None:
        """Put a new model in the root, in one step: whoever reads meanwhile gets the old one or the new one."""
        config = (json.dumps(written.config, indent=2, sort_keys=True) + "\n").encode()
        if not (self.path / "config.json").exists() or (self.path / "config.json").read_bytes() != config:
            disk.replace_listed(self.path, "config.json", config)

        def save(path: Path) -> None:
            save_file(written.tensors, path, {"format": "pt"})
            path.chmod(0o644)  # safetensors makes a file that only its owner may read

        disk.replace_listed(self.path, WEIGHTS, save, step=step, temperature=temperature)

    def facts(self) -> dict[str, Any]:
        """Step and temperature of the model in the root; empty where there is none."""
        if not self.begun or not (self.path / WEIGHTS).exists():
            return {}
        return disk.facts_of(self.path, WEIGHTS) or {}

    def architecture(self) -> str:
        """The class that loads the model in the root."""
        said = json.loads((self.path / "config.json").read_bytes())
        return str(said.get("architectures", [said["model_type"]])[0])

    def write_card(self, text: str) -> None:
        disk.replace_listed(self.path, CARD, text.encode())

    def is_done(self) -> bool:
        return self.begun and disk.lists(self.path, CARD) and (self.path / CARD).exists()

    def problems(self) -> list[str]:
        """What is wrong in the root, a sentence each."""
        return disk.problems(self.path, (RECIPE, WEIGHTS, CARD, "config.json", "tokenizer.json"))

    def problems_of(self, step: int) -> list[str]:
        """What is wrong with a checkpoint, a sentence each."""
        return disk.problems(self.folder_of(step), PARTS)

    def check(self) -> None:
        """Every reader's first step: a file that is not what was written is named, never used."""
        wrong = self.problems()
        if wrong:
            raise UserError(f"{wrong[0]}; `qkv verify {self.path} --repair` says what can be done")

    def append(self, line: Mapping[str, Any]) -> None:
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl; a last line that a crash cut short is no line."""
        try:
            raw = (self.path / METRICS).read_bytes()
        except FileNotFoundError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in lines):
                raise ValueError("a line is not an object with a step")
        except (ValueError, RecursionError) as error:
            raise UserError(f"{self.path / METRICS}: is not JSON lines: {error}") from None
        return lines

    def cut_back(self, step: int) -> None:
        """Forget the reports after a step: they will be made again."""
        lines = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        disk.replace_file(self.path / METRICS, "".join(lines).encode())

    def checkpoints(self) -> list[int]:
        """Steps of which there is a checkpoint, newest first."""
        folder = self.path / "checkpoints"
        names = [_STEP.fullmatch(entry.name) for entry in folder.iterdir()] if folder.is_dir() else []
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def folder_of(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step}"

    def save(self, checkpoint: Checkpoint, *, best_step: int) -> None:
        """Write a checkpoint, make sure of it, and only then let go of those that are no longer needed."""
        if (self.path / METRICS).exists():
            disk.sync(self.path / METRICS)  # its lines up to here are never made again
        with disk.new_folder(self.folder_of(checkpoint.step)) as folder:
            save_file(checkpoint.weights, folder / WEIGHTS)
            save_file(checkpoint.optimiser, folder / "optimiser.safetensors")
            facts = {"progress": checkpoint.progress, "fingerprint": checkpoint.fingerprint}
            (folder / "progress.json").write_text(json.dumps(facts), encoding="utf-8")
        wrong = self.problems_of(checkpoint.step)
        if wrong:
            raise UserError(f"{wrong[0]}: the disk does not keep what is written to it")
        for step in self.checkpoints()[KEPT:]:
            if step not in (best_step, checkpoint.step):
                disk.remove_folder(self.folder_of(step))

    def set_aside(self, step: int) -> Path:
        """Give a damaged checkpoint another name, so that its place is free and nobody takes it for a checkpoint."""
        folder, number = self.folder_of(step), 1
        while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
            number += 1
        folder.rename(aside)
        return aside

    def load(self, step: int) -> Checkpoint:
        """A checkpoint that is what was written."""
        folder = self.folder_of(step)
        wrong = self.problems_of(step)
        if wrong:
            raise UserError(wrong[0])
        try:
            facts = json.loads((folder / "progress.json").read_bytes())
            weights, optimiser = load_file(folder / WEIGHTS), load_file(folder / "optimiser.safetensors")
            return Checkpoint(step, weights, optimiser, facts["progress"], facts["fingerprint"])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise UserError(f"{folder}: cannot be read: {str(error)[:200]}") from None

    def holds_weights(self) -> bool:
        """Whether there is something to go on from: a checkpoint that verifies, or a finished model."""
        return self.is_done() or any(not self.problems_of(step) for step in self.checkpoints())

    def newest(self) -> tuple[Checkpoint | None, dict[int, str]]:
        """The newest checkpoint that verifies, and of each newer one what is wrong with it."""
        passed_over: dict[int, str] = {}
        for step in self.checkpoints():
            try:
                return self.load(step), passed_over
            except UserError as error:
                passed_over[step] = str(error)
        return None, passed_over

    def check_room(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse before the first step what a full disk would stop later: room for four checkpoints and two models."""
        needed = 14 * sum(tensor.nbytes for tensor in tensors.values())
        free = shutil.disk_usage(self.path).free
        if free < needed:
            sizes = f"{needed / 2**20:,.0f} MiB are needed for checkpoints and {free / 2**20:,.0f} MiB are free"
            raise UserError(f"{self.path}: {sizes}; make room, or choose a place on another disk with -o")


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of our own, no longer mapped to a file that may go away."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def changes(then: Recipe, now: Recipe, *, ignore: tuple[str, ...] = ()) -> list[str]:
    """What differs between two recipes: `train.dropout was 0.1, is 0.2`."""
    old = {path: value for path, value, _ in describe(then)}
    new = {path: value for path, value, _ in describe(now)}
    plain = [path for path in old if path not in ignore and not isinstance(old[path], Section)]
    return [f"{path} was {old[path]!r}, is {new[path]!r}" for path in plain if old[path] != new[path]]
