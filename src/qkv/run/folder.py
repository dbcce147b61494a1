"""A run is a folder that explains itself: its recipe, its model, its metrics, its checkpoints.

    recipe.toml  config.json  model.safetensors  tokenizer.json  README.md  MANIFEST.json     the root: ready to use
    metrics.jsonl                                                              a line a report
    validation.json                                                            the kept model, row by row
    curves.png  reliability.png  confusion.png                                 pictures, when finished
    checkpoints/step-N/                                                        weights, optimiser, progress, manifest

Every file appears whole or not at all, and every reader verifies the manifest. Nothing in a run can execute code.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import filelock
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from qkv import disk
from qkv.config.recipe import Recipe
from qkv.data.prepare import TARGET
from qkv.run.checkpoint import WEIGHTS, Checkpoint, Checkpoints
from qkv.schema import Section, UserError, describe, read_toml

RECIPE, METRICS, CARD, VALIDATION, LOCK = "recipe.toml", "metrics.jsonl", "README.md", "validation.json", ".lock"
COMPARISON = "comparison.json"  # with simpler models, on the same rows
CURVES, RELIABILITY, CONFUSION = "curves.png", "reliability.png", "confusion.png"
PICTURES = (CURVES, RELIABILITY, CONFUSION)  # that a card may show
MODEL_FILES = ("config.json", WEIGHTS, CARD)  # written later than the rest
MAY_CHANGE = ("train.report_every", "train.eval_every", "train.save_every", "runtime.threads")  # on resume
VERIFIED = (RECIPE, WEIGHTS, CARD, "config.json", "tokenizer.json", TARGET, COMPARISON)
_LEFTOVERS = re.compile(r"\.[\w.]+\.(json|jsonl|toml|md|safetensors|png)\.(new|tmp-\d+)")  # of a killed process


class Run:
    """A run folder, to write and to read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Only one process trains a run. The system releases the lock when the process ends, however it ends."""
        if os.path.isfile(self.path):  # noqa: PTH113  (Path raises where a name is too long)
            raise UserError(f"{self.path}: is a file; a run is a folder, choose another name with -o")
        is_new = not os.path.exists(self.path)  # noqa: PTH110
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(self.path / LOCK, blocking=False)
            lock.acquire()
        except filelock.Timeout:
            raise UserError(f"{self.path}: another process is training this run; wait for it, or stop it") from None
        except OSError as error:
            raise UserError(
                f"{self.path}: cannot be written: {error.strerror}; choose another folder with -o"
            ) from None
        try:
            with self.writing("files of a killed process"):
                if self.begun:
                    disk.remove_leftovers(self.path, _LEFTOVERS)
                self.checkpoints.remove_leftovers()
            yield
        finally:
            if is_new and not self.begun:
                self._remove_empty()
            lock.release()

    def _remove_empty(self) -> None:
        """A training that failed before its first file leaves no folder behind."""
        with suppress(OSError):  # it has other files
            (self.path / LOCK).unlink(missing_ok=True)
            self.path.rmdir()

    @contextmanager
    def writing(self, what: str) -> Iterator[None]:
        """Turns the errors of a full or read-only disk into one sentence."""
        try:
            yield
        except (OSError, SafetensorError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)[:200]
            raise UserError(
                f"{self.path}: {what} cannot be written: {reason}; the last checkpoint is intact, so free some space "
                "and run the same command again"
            ) from None

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the run; None where there is none."""
        file = self.path / RECIPE
        return Recipe.read(read_toml(file), str(file)) if os.path.exists(file) else None  # noqa: PTH110

    @property
    def begun(self) -> bool:
        return os.path.exists(self.path / disk.MANIFEST)  # noqa: PTH110  (Path raises where a name is too long)

    def begin(self, recipe: Recipe, files: Mapping[str, bytes], hashes: Mapping[str, str]) -> None:
        """Write what does not change: the resolved recipe and the tokenizer. `hashes` are those of the data and of the
        pre-trained model."""
        content = {RECIPE: recipe.to_toml().encode(), **files}
        if not self.begun:
            self._check_free(content)
        for name, text in content.items():
            disk.replace_file(self.path / name, text)
        for name in MODEL_FILES:
            (self.path / name).unlink(missing_ok=True)
        self.checkpoints.path.mkdir(exist_ok=True)
        disk.write_manifest(self.path, content, {RECIPE: dict(hashes)})
        disk.remove_leftovers(self.path, _LEFTOVERS)

    def _check_free(self, content: Mapping[str, bytes]) -> None:
        """Files that are not ours are not overwritten."""
        if self.checkpoints.steps():
            raise UserError(f"{self.path}: has checkpoints, but is not a run; choose another folder with -o")
        for name in (*content, *MODEL_FILES, METRICS, VALIDATION, *PICTURES):
            file = self.path / name
            if os.path.lexists(file) and (name not in content or file.read_bytes() != content[name]):
                raise UserError(f"{file}: already exists, and the folder is not a run; choose another folder with -o")

    def hashes(self) -> dict[str, Any]:
        """The hashes that the run was begun with: `data`, and `init` of the pre-trained model."""
        return disk.facts_of(self.path, RECIPE) or {}

    def data_hash(self) -> str | None:
        return self.hashes().get("data")

    def replace_model(
        self, config: Mapping[str, Any], tensors: dict[str, Tensor], *, step: int, temperature: float
    ) -> None:
        """Put a new model into the root, in one step: a reader gets the old one or the new one."""
        raw = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
        if not (self.path / "config.json").exists() or (self.path / "config.json").read_bytes() != raw:
            disk.replace_listed(self.path, "config.json", raw)

        def save(path: Path) -> None:
            save_file(tensors, path, {"format": "pt"})
            path.chmod(0o644)  # safetensors makes a file that only its owner may read

        disk.replace_listed(self.path, WEIGHTS, save, step=step, temperature=temperature)

    def write_validation(self, step: int, by_row: Mapping[str, NDArray[np.float64]]) -> None:
        """What the model of a step gives for each validation row, so that runs can be compared row by row."""
        values = {name: np.round(column, 6).tolist() for name, column in by_row.items()}
        disk.replace_file(self.path / VALIDATION, json.dumps({"step": step, "by_row": values}).encode())

    def validation_by_row(self) -> dict[str, NDArray[np.float64]]:
        """The same of the model in the root; empty where that is not known."""
        try:
            found = json.loads((self.path / VALIDATION).read_bytes())
            columns = {str(name): np.array(column, np.float64) for name, column in found["by_row"].items()}
            known = found["step"] == self.facts().get("step") and all(c.ndim == 1 and c.size for c in columns.values())
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(f"{self.path / VALIDATION}: is not what `qkv train` wrote: {str(error)[:100]}") from None
        return columns if known else {}

    def has_model(self) -> bool:
        return (self.path / WEIGHTS).exists()

    def facts(self) -> dict[str, Any]:
        """Step and temperature of the model in the root; empty where there is none."""
        return (disk.facts_of(self.path, WEIGHTS) or {}) if self.begun and self.has_model() else {}

    def temperature(self) -> float:
        """The temperature that was folded into the model in the root."""
        found = self.facts().get("temperature", 1.0)
        if not isinstance(found, float) or not 0.01 <= found <= 100:
            raise UserError(f"{self.path / disk.MANIFEST}: temperature {str(found)[:40]} must be between 0.01 and 100")
        return found

    def architecture(self) -> str:
        """The class that loads the model in the root."""
        config = json.loads((self.path / "config.json").read_bytes())
        return str(config.get("architectures", [config["model_type"]])[0])

    def write_card(self, text: str) -> None:
        disk.replace_listed(self.path, CARD, text.encode())

    def is_done(self) -> bool:
        return self.begun and disk.lists(self.path, CARD) and (self.path / CARD).exists()

    def can_resume(self) -> bool:
        """Whether there is a checkpoint that verifies, or a finished model."""
        return self.is_done() or bool(self.checkpoints.sound())

    def problems(self) -> list[str]:
        """What is wrong in the root, a sentence each."""
        return disk.problems(self.path, VERIFIED)

    def check(self) -> None:
        """Every reader's first step: a damaged file is named, never used."""
        wrong = self.problems()
        if wrong:
            raise UserError(f"{wrong[0]}; try `qkv verify {self.path} --repair`")

    def append(self, line: Mapping[str, Any]) -> None:
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl, without a last line that a crash cut short."""
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
        """Drop the reports after a step: they will be made again."""
        lines = [json.dumps(line) + "\n" for line in self.metrics() if line["step"] <= step]
        disk.replace_file(self.path / METRICS, "".join(lines).encode())

    def save(self, checkpoint: Checkpoint, *, best_step: int | None) -> None:
        """Write a checkpoint. The reports before it are made durable first: they are never made again."""
        if (self.path / METRICS).exists():
            disk.sync(self.path / METRICS)
        self.checkpoints.save(checkpoint, best_step=best_step)


def changes(then: Recipe, now: Recipe, *, ignore: tuple[str, ...] = ()) -> list[str]:
    """What differs between two recipes: `train.dropout was 0.1, is 0.2`."""
    old = {path: value for path, value, _ in describe(then)}
    new = {path: value for path, value, _ in describe(now)}
    plain = [path for path in old if path not in ignore and not isinstance(old[path], Section)]
    return [f"{path} was {old[path]!r}, is {new[path]!r}" for path in plain if old[path] != new[path]]
