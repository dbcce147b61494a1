"""Verification of a run against its manifests, and repair."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qkv import disk
from qkv.config.recipe import Recipe
from qkv.run.folder import COMPARISON, RECIPE, Run
from qkv.schema import UserError
from qkv.training.build import TrainingData, open_data
from qkv.training.loop import Progress
from qkv.training.model_files import tokenizer_files
from qkv.training.trainer import check_tokenizer, known_hashes, open_run_data, restore_root


@dataclass(frozen=True)
class PartStatus:
    """One part of a run: the root or a checkpoint, and what is wrong with it."""

    name: str
    problems: list[str]


def verify(path: Path) -> tuple[list[PartStatus], str]:
    """The model, recipe, tokenizer, card and checkpoints of a run against their hashes, and what the same `qkv train`
    command would do now."""
    run = Run(path)
    if not run.begun:
        raise UserError(f"{path}: is not a run: it has no {disk.MANIFEST}; a run is a folder that `qkv train` wrote")
    parts = [PartStatus("root", run.problems())]
    for step in run.checkpoints.steps():
        wrong = run.checkpoints.problems(step)
        if run.checkpoints.folder(step).exists():  # a training may have deleted it meanwhile
            parts.append(PartStatus(f"step {step}", wrong))
    sound = [part for part in parts[1:] if not part.problems]
    if parts[0].problems:
        outlook = "the root is damaged, so no command can use this run; try --repair"
    elif run.is_done():
        outlook = "this run is finished; the same qkv train command would change nothing"
    elif sound:
        outlook = f"the same qkv train command resumes from {sound[0].name}"
    else:
        outlook = "there is no sound checkpoint: the same qkv train command starts at step 0"
    return parts, outlook


def repair(path: Path) -> list[str]:
    """Set damaged checkpoints aside, and rebuild the root from the checkpoint that its model came from."""
    run, done = Run(path), list[str]()
    with run.lock():
        for step in run.checkpoints.steps():
            if run.checkpoints.problems(step):
                folder, aside = run.checkpoints.folder(step), run.checkpoints.set_aside(step)
                done.append(f"{folder} is damaged and was set aside as {aside.name}")
        if not run.problems():
            return done
        with run.writing("what was repaired"):
            return done + _rebuild(run)


def _rebuild(run: Run) -> list[str]:
    """Write the root again. The model comes from the checkpoint of its own step, so it is the same to the bit."""
    checkpoint, _ = run.checkpoints.newest()
    if checkpoint is None:
        raise UserError(f"{run.path}: there is no sound checkpoint to rebuild the model from; train in another folder")
    recipe, best = run.recipe, Progress(**checkpoint.progress).best_step
    if recipe is None or any(RECIPE in sentence for sentence in run.problems()):
        raise UserError(f"{run.path / RECIPE}: is damaged and cannot be rebuilt; train in another folder")
    if best is not None and best not in run.checkpoints.steps():
        raise UserError(
            f"{run.path}: its model came from step {best}, whose checkpoint is lost; train in another folder"
        )
    data, hashes = _reopen(recipe, run)
    if data.prepared.data_hash != checkpoint.fingerprint["data"]:
        raise UserError(f"{run.path}: the data has changed since this run was begun, so it cannot be rebuilt")
    files = tokenizer_files(data.prepared, recipe)
    if not any("tokenizer" in sentence for sentence in run.problems()):
        check_tokenizer(run, files)
    run.begin(recipe, {**files, **_kept_comparison(run)}, hashes)
    if best is None:
        return [f"{run.path}: the root was rebuilt; its first model is written at the first validation"]
    restore_root(run, data, best)
    return [f"{run.path}: the model was rebuilt from step {best}; `qkv train` writes its card again"]


def _kept_comparison(run: Run) -> dict[str, bytes]:
    """The comparison with simpler models, if it is there and sound."""
    file = run.path / COMPARISON
    damaged = any(COMPARISON in sentence for sentence in run.problems())
    return {COMPARISON: file.read_bytes()} if file.is_file() and not damaged else {}


def _reopen(recipe: Recipe, run: Run) -> tuple[TrainingData, dict[str, str]]:
    """The data of a damaged run, and the hashes that it was begun with. A fine-tuned run has its tokenizer from the
    pre-trained model: one that cannot be trusted is read there again, and never from the run."""
    suspect = any(name in sentence for sentence in run.problems() for name in ("tokenizer", disk.MANIFEST))
    if recipe.init == "none" or not suspect:
        return open_run_data(recipe, run)
    data = open_data(recipe)
    hashes = data.hashes()
    if known_hashes(run).get("init", hashes["init"]) != hashes["init"]:
        raise UserError(f"{run.path}: its tokenizer came from {recipe.init}, which has changed; train anew")
    return data, hashes
