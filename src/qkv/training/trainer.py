"""A training in a run folder: begin or resume, save, keep the best model in the root, test it, write its card.

The same call begins and resumes. What is on the disk at any instant is enough to resume to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from qkv import runtime
from qkv.config.recipe import Recipe
from qkv.data.batch import EXAMPLES_VERSION
from qkv.data.prepare import Prepared
from qkv.metrics import ClassificationMetrics, TestMetrics
from qkv.plots import History, save_classification, save_curves
from qkv.predict.predictor import load_predictor
from qkv.run.checkpoint import Checkpoint
from qkv.run.folder import COMPARISON, CONFUSION, CURVES, MAY_CHANGE, PICTURES, RELIABILITY, Run, changes
from qkv.schema import Say, UserError, silent
from qkv.tasks import TASKS
from qkv.training.averaging import average_tensors, averaged_model, restore_average
from qkv.training.build import Resumed, TrainingData, build_state, check_recipe, fresh_model, open_data
from qkv.training.comparison import BaselineComparison, read_comparison
from qkv.training.loop import Progress, Report, TrainState, train
from qkv.training.model_card import write_card
from qkv.training.model_files import tokenizer_files, trained_files
from qkv.training.optim import optimiser_tensors, restore_optimiser


@dataclass
class Trainer:
    """One training in one run folder. Iterate over `reports()`, then call `finish()`."""

    run: Run
    data: TrainingData
    state: TrainState
    resumed_at: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def recipe(self) -> Recipe:
        return self.data.recipe

    @property
    def finished(self) -> bool:
        return self.state.progress.finished

    def reports(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Report]:
        """Train, and save what each report asks for. Ends early when `stop()` is true."""
        for report in train(self.state, stop):
            with self.run.writing(f"step {report.step:,}"):
                if report.keep:
                    self._replace_model(report)
                if report.line is not None:
                    self.run.append(report.line)
                if report.save:
                    self._save()
            yield report

    def finish(self) -> TestMetrics | None:
        """Test the model in the root on raw text, as users would; write pictures and card. Without test rows the
        figures are those of the cross-validation, if there was one. None where there are no figures, or the training is
        not finished."""
        if not self.finished:
            return None
        comparison = read_comparison(self.run.path)
        found = comparison.test_metrics() if comparison is not None else None
        if self.data.prepared.rows("test"):
            self.data.corpus.check_unchanged()
            rows = self.data.corpus.labelled(["test"], self.data.prepared.labels)
            found = self.data.task.test(load_predictor(self.run.path), rows, self.recipe, silent)
        if not self.run.is_done():
            with self.run.writing("the card"):
                self.run.write_card(self._card(found, comparison))
        return found

    def _card(self, found: TestMetrics | None, comparison: BaselineComparison | None) -> str:
        """The model card. Its pictures are drawn first: it links those that there are."""
        folder, name = self.run.path, self.run.path.resolve().name
        save_curves(folder / CURVES, [history_of(self.run, self.recipe)])
        whole = found["all"] if found is not None else None
        if isinstance(whole, ClassificationMetrics):
            save_classification(folder / RELIABILITY, folder / CONFUSION, whole, name)
        return write_card(
            name,
            self.data,
            self.state.progress,
            self.run.architecture(),
            self.run.hashes(),
            found,
            pictures=[picture for picture in PICTURES if (folder / picture).is_file()],
            comparison=comparison,
        )

    def _replace_model(self, report: Report) -> None:
        progress = self.state.progress
        files = trained_files(self.state.kept_model, self.recipe, self.data.prepared, progress.temperature)
        self.run.replace_model(files.config, files.tensors, step=progress.step, temperature=progress.temperature)
        if report.validation is not None and report.validation.by_row:
            self.run.write_validation(progress.step, report.validation.by_row)

    def _save(self) -> None:
        state = self.state
        checkpoint = Checkpoint(
            state.progress.step,
            state.model.state_dict(),
            {**optimiser_tensors(state.optimiser, state.model), **average_tensors(state.average)},
            asdict(state.progress),
            fingerprint_of(self.data.prepared),
        )
        self.run.save(checkpoint, best_step=state.progress.best_step)


def history_of(run: Run, recipe: Recipe) -> History:
    """What the learning curves of a run are drawn from."""
    task = TASKS[recipe.task]
    return History(run.path.name, run.metrics(), run.facts().get("step"), task.metrics, task.loss_name)


@contextmanager
def open_trainer(
    recipe: Recipe, path: Path, say: Say = silent, comparison: BaselineComparison | None = None
) -> Iterator[Trainer]:
    """Begin a run, or resume the one that is there, with the folder locked. A new run keeps the comparison with simpler
    models, for its card."""
    check_recipe(recipe)
    with Run(path).lock():
        yield _open(recipe, Run(path), say, comparison)


def _open(recipe: Recipe, run: Run, say: Say, comparison: BaselineComparison | None) -> Trainer:
    """Every reason for which a run does not resume is raised here, by `Run.check`, `_check_same`, `check_tokenizer` or
    `_restore`."""
    previous = _previous_recipe(run)
    threads = recipe.runtime.threads or (previous.runtime.threads if previous is not None else 0)
    recipe = recipe.replace(runtime={"threads": runtime.start(threads)})
    resumed = None
    if previous is not None and run.can_resume():  # the weights and the tokenizer of `init` are in the run
        resumed = Resumed(previous, run.path)
    data = open_data(recipe, say, resumed=resumed)
    hashes = data.hashes() if resumed is None else {**known_hashes(run), "data": data.prepared.data_hash}
    files = tokenizer_files(data.prepared, data.recipe)
    if previous is not None:
        _check_same(run, previous, data.recipe, hashes)
        check_tokenizer(run, files)
    state, notes = build_state(data)
    trainer = Trainer(run, data, state, notes=notes)
    if previous is None:
        run.checkpoints.check_room(state.model.state_dict())
    with run.writing("the run"):
        if previous is None:
            compared = {} if comparison is None else {COMPARISON: comparison.to_json()}
            run.begin(data.recipe, {**files, **compared}, hashes)
        _resume(trainer)
    return trainer


def _previous_recipe(run: Run) -> Recipe | None:
    """The recipe of the run that is already there; None where there is none."""
    if not run.begun:
        return None
    run.check()
    if run.recipe is None:
        raise UserError(f"{run.path}: has a manifest but no recipe.toml, so it is not a run; choose another with -o")
    return run.recipe


def open_run_data(recipe: Recipe, run: Run) -> tuple[TrainingData, dict[str, str]]:
    """The data of an existing run, and the hashes that it was begun with."""
    data = open_data(recipe, resumed=Resumed(recipe, run.path))
    return data, {**known_hashes(run), "data": data.prepared.data_hash}


def known_hashes(run: Run) -> dict[str, str]:
    """The hashes that a run was begun with, as far as its manifest has them."""
    try:
        return run.hashes()
    except UserError:
        return {}


def fingerprint_of(prepared: Prepared) -> dict[str, Any]:
    """Everything outside the recipe that changes the last bits: the machine, the tokenizer's library, the data."""
    return {
        **runtime.fingerprint(),
        "tokenizers": tokenizers.__version__,
        "data": prepared.data_hash,
        "examples": EXAMPLES_VERSION,
    }


def _check_same(run: Run, before: Recipe, now: Recipe, hashes: Mapping[str, str]) -> None:
    """A run resumes with its own data and recipe, or not at all; before its first checkpoint also with the same
    pre-trained model."""
    then = run.hashes()
    if before.data == now.data and then.get("data") != hashes["data"]:
        anew = "to train anew, choose another folder: `-o OTHER`"
        on = (
            f"; to go on from this model with the new rows: `-o OTHER --set init={run.path}`" if run.has_model() else ""
        )
        raise UserError(f"{run.path}: the data has changed since this run was begun; {anew}{on}")
    if before.init == now.init and then.get("init") != hashes.get("init"):
        raise UserError(f"{run.path}: {now.init} has changed since this run was begun; train in another folder with -o")
    unread = tuple(f"tokenizer.{key}" for key, _ in now.tokenizer) if now.init != "none" else ()
    differences = changes(before, now, ignore=(*MAY_CHANGE, *unread))
    if differences:
        lines = "\n  ".join(differences)
        raise UserError(
            f"{run.path}: was begun with another recipe:\n  {lines}\nOnly {', '.join(MAY_CHANGE)} may change. "
            "To train on from these weights, set init to this run in a new one; to start over, choose another folder "
            "with -o"
        )


def check_tokenizer(run: Run, files: Mapping[str, bytes]) -> None:
    """Another version of a library may train another tokenizer on the same data: every id would mean another token."""
    for name, content in files.items():
        if (run.path / name).read_bytes() != content:
            raise UserError(
                f"{run.path / name}: this version trains another tokenizer on the same data; train in another folder "
                "with -o"
            )


def _resume(trainer: Trainer) -> None:
    """Restore the newest checkpoint that verifies. Damaged newer ones are set aside: their steps are made again.
    Without a checkpoint a finished run stays as it is, and any other starts at step 0."""
    run, progress = trainer.run, trainer.state.progress
    checkpoint, damaged = run.checkpoints.newest()
    for step, wrong in damaged.items():
        instead = f"resuming from step {checkpoint.step:,}" if checkpoint else "training starts at step 0"
        aside = run.checkpoints.set_aside(step).name
        trainer.notes.append(f"{wrong}; {instead}, and the damaged checkpoint is kept as {aside}")
    if checkpoint is not None:
        _restore(trainer, checkpoint)
    elif run.is_done():
        progress.finished, progress.step = True, int(run.facts().get("step", 0))
        trainer.resumed_at = progress.step
    else:
        if run.metrics() and not damaged:
            trainer.notes.append("there is no checkpoint, so training starts at step 0")
        run.cut_back(0)


def _restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Resume from a checkpoint."""
    run, state = trainer.run, trainer.state
    then, now = {"examples": 1, **checkpoint.fingerprint}, fingerprint_of(trainer.data.prepared)
    if then["examples"] != now["examples"]:
        raise UserError(
            f"{run.path}: was begun by a version of qkv that makes other examples of the same data; train in another "
            "folder with -o"
        )
    try:
        state.progress = Progress(**checkpoint.progress)
        state.model.load_state_dict(checkpoint.weights)
        restore_optimiser(state.optimiser, state.model, checkpoint.optimiser)
        state.average = restore_average(checkpoint.optimiser)
    except (TypeError, RuntimeError, KeyError) as error:
        folder = run.checkpoints.folder(checkpoint.step)
        raise UserError(f"{folder}: is a checkpoint of another model: {str(error)[:200]}") from None
    trainer.resumed_at = checkpoint.step
    run.cut_back(checkpoint.step)
    best = state.progress.best_step
    if best is not None and run.facts().get("step") != best and best in run.checkpoints.steps():
        restore_root(run, trainer.data, best)  # a later model was never confirmed by a checkpoint
    trainer.notes += [f"{sentence}: the last bits will differ" for sentence in runtime.differences(then, now)]


def restore_root(run: Run, data: TrainingData, step: int) -> None:
    """Put the model of a checkpoint into the root, the same to the bit as it was there before."""
    kept, model = run.checkpoints.load(step), fresh_model(data.recipe)
    model.load_state_dict(kept.weights)
    model = averaged_model(model, restore_average(kept.optimiser))
    temperature = Progress(**kept.progress).temperature
    files = trained_files(model, data.recipe, data.prepared, temperature)
    run.replace_model(files.config, files.tensors, step=step, temperature=temperature)
