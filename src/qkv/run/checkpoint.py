"""Checkpoints of a run: step-N folders that appear whole or not at all, each with a manifest.

The newest that verifies is the one to resume from. An old one is deleted only after the new one was read back.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qkv import disk
from qkv.schema import UserError

KEPT = 2  # newest checkpoints, beside that of the best model
WEIGHTS, OPTIMISER, PROGRESS = "model.safetensors", "optimiser.safetensors", "progress.json"
_STEP = re.compile(r"step-(0|[1-9]\d{0,15})")
_LEFTOVERS = re.compile(r"step-\d+\.tmp-\d+")  # of a killed process


@dataclass(frozen=True)
class Checkpoint:
    """A training at one step. Tensors are mapped to the file: copy out of them."""

    step: int
    weights: dict[str, Tensor]
    optimiser: dict[str, Tensor]
    progress: dict[str, Any]
    fingerprint: dict[str, Any]


class Checkpoints:
    """The folder `checkpoints` of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def steps(self) -> list[int]:
        """Steps with a checkpoint, newest first."""
        names = [_STEP.fullmatch(entry.name) for entry in self.path.iterdir()] if self.path.is_dir() else []
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def folder(self, step: int) -> Path:
        return self.path / f"step-{step}"

    def problems(self, step: int) -> list[str]:
        """What is wrong with a checkpoint, a sentence each."""
        return disk.problems(self.folder(step), (WEIGHTS, OPTIMISER, PROGRESS))

    def sound(self) -> list[int]:
        """Steps whose checkpoint verifies, newest first."""
        return [step for step in self.steps() if not self.problems(step)]

    def save(self, checkpoint: Checkpoint, *, best_step: int | None) -> None:
        """Write a checkpoint, verify it, and only then delete those that are no longer needed."""
        with disk.new_folder(self.folder(checkpoint.step)) as folder:
            save_file(checkpoint.weights, folder / WEIGHTS)
            save_file(checkpoint.optimiser, folder / OPTIMISER)
            facts = {"progress": checkpoint.progress, "fingerprint": checkpoint.fingerprint}
            (folder / PROGRESS).write_text(json.dumps(facts), encoding="utf-8")
        wrong = self.problems(checkpoint.step)
        if wrong:
            raise UserError(f"{wrong[0]}: the disk does not keep what is written to it")
        for step in self.steps()[KEPT:]:
            if step not in (best_step, checkpoint.step):
                disk.remove_folder(self.folder(step))

    def load(self, step: int) -> Checkpoint:
        """A checkpoint that verifies."""
        folder = self.folder(step)
        wrong = self.problems(step)
        if wrong:
            raise UserError(wrong[0])
        try:
            facts = json.loads((folder / PROGRESS).read_bytes())
            weights, optimiser = load_file(folder / WEIGHTS), load_file(folder / OPTIMISER)
            return Checkpoint(step, weights, optimiser, facts["progress"], facts["fingerprint"])
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise UserError(f"{folder}: cannot be read: {str(error)[:200]}") from None

    def newest(self) -> tuple[Checkpoint | None, dict[int, str]]:
        """The newest checkpoint that verifies, and of each newer one what is wrong with it."""
        damaged: dict[int, str] = {}
        for step in self.steps():
            try:
                return self.load(step), damaged
            except UserError as error:
                damaged[step] = str(error)
        return None, damaged

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that its place is free and nothing takes it for a checkpoint."""
        folder, number = self.folder(step), 1
        while (aside := folder.with_name(f"{folder.name}.damaged-{number}")).exists():
            number += 1
        folder.rename(aside)
        return aside

    def remove_leftovers(self) -> None:
        disk.remove_leftovers(self.path, _LEFTOVERS)

    def check_room(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse before the first step what a full disk would stop later: room for four checkpoints and two models."""
        needed = 14 * sum(tensor.nbytes for tensor in tensors.values())
        free = shutil.disk_usage(self.path.parent).free
        if free < needed:
            sizes = f"checkpoints need {needed / 2**20:,.0f} MiB and {free / 2**20:,.0f} MiB are free"
            raise UserError(f"{self.path.parent}: {sizes}; make room, or choose another disk with -o")
