"""A training that lives in a run folder: begin or go on, save, put the best model in the root, and finish with a card.

The same call begins and resumes. What is on the disk after any instant is enough to go on to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tokenizers

from qkv import runtime
from qkv.config import Recipe, TokenizerConfig
from qkv.data.prepare import EXAMPLES, Prepared, prepare
from qkv.data.source import Source, open_source
from qkv.learn.average import average_tensors, restored_average, with_weights
from qkv.learn.card import root_files
from qkv.learn.material import Documents
from qkv.learn.optim import optimiser_tensors, restore_optimiser
from qkv.learn.setup import build_materials, check_recipe, finished_recipe, form_of, fresh_model
from qkv.learn.shipping import written_model
from qkv.learn.start import Start, copy_weights, read_start
from qkv.learn.train import Learner, Progress, Report, new_learner, train
from qkv.run import MAY_CHANGE, Checkpoint, Run, changes
from qkv.schema import UserError
from qkv.text.catalog import cache_folder
from qkv.text.tokenizer import Tokenizer

Say = Callable[[str], None]


@dataclass
class Session:
    """One training in one folder, from begin to end. `reports()` does the work."""

    run: Run
    recipe: Recipe  # resolved: what the data decided is filled in
    source: Source
    prepared: Prepared
    learner: Learner
    resumed_at: int = 0
    notes: list[str] = field(default_factory=list)

    def reports(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Report]:
        """Learn, and keep on the disk what each report calls for. Ends early where `stop()` says so."""
        for report in train(self.learner, stop):
            with self.run.writing(f"step {report.step:,}"):
                if report.is_best:
                    self._replace_model()
                if report.line is not None:
                    self.run.append(report.line)
                if report.save:
                    self._save()
            yield report

    def _replace_model(self) -> None:
        progress = self.learner.progress
        written = written_model(self.learner.shown, self.recipe, self.prepared, progress.temperature)
        self.run.replace_model(written, step=progress.step, temperature=progress.temperature)

    def _save(self) -> None:
        learner = self.learner
        checkpoint = Checkpoint(
            learner.progress.step,
            learner.model.state_dict(),
            {**optimiser_tensors(learner.optimiser, learner.model), **average_tensors(learner.average)},
            asdict(learner.progress),
            fingerprint_of(self.prepared),
        )
        self.run.save(checkpoint, best_step=learner.progress.best_step)


def open_session(recipe: Recipe, path: Path, say: Say = lambda sentence: None) -> Session:
    """Prepare a training: begin a run, or go on with the one that is there. The caller holds the run's lock."""
    run = Run(path)
    if run.begun:
        run.check()
    before = run.recipe if run.begun else None
    threads = before.runtime.threads if before is not None and recipe.runtime.threads == 0 else recipe.runtime.threads
    recipe = recipe.replace(runtime={"threads": runtime.start(threads)})
    goes_on = before is not None and run.holds_weights()  # then all that init gave is in the run
    start = None if goes_on else read_start(recipe)
    source = open_source(recipe.data, say, recipe.task)
    prepared = prepare(source, _tokenizer(recipe, run, start), cache_folder(), say, form_of(recipe))
    recipe = finished_recipe(recipe, source, prepared, start, before if goes_on else None)
    check_recipe(recipe)  # again, now that every key has its value
    began_with = _hashes(prepared, start) if not goes_on else _remembered(run, prepared)
    if before is not None:
        _must_agree(run, before, recipe, began_with)
        same_tokenizer(run, root_files(prepared, recipe))
    model = fresh_model(recipe)
    copied = [] if start is None else copy_weights(start, model, recipe.model)
    learner = new_learner(model, recipe, *build_materials(recipe, prepared))
    if start is not None and recipe.tokenizer != TokenizerConfig():
        copied.append(f"the tokenizer is that of {recipe.init}; [tokenizer] says nothing here")
    if start is not None and start.saw_all and "split" in (recipe.data.validation, recipe.data.test):
        copied.append(f"{recipe.init} learnt from every row of its corpus; if it is this one, the figures are too good")
    session = Session(run, recipe, source, prepared, learner, notes=[*copied, *_notes(prepared, learner)])
    if before is None:
        run.check_room(model.state_dict())
    with run.writing("the run"):
        if before is None:
            run.begin(recipe, root_files(prepared, recipe), began_with)
        _resume(session)
    return session


def open_run_data(recipe: Recipe, run: Run) -> tuple[Prepared, dict[str, bytes], dict[str, str]]:
    """The data of a run that was begun, the root files made from it, and the hashes of what it began with."""
    source = open_source(recipe.data, task=recipe.task)
    prepared = prepare(source, _tokenizer(recipe, run, None), cache_folder(), form=form_of(recipe))
    return prepared, root_files(prepared, recipe), _remembered(run, prepared)


def _remembered(run: Run, prepared: Prepared) -> dict[str, str]:
    """What a run began with, as far as its manifest still tells."""
    try:
        return {**run.began_with(), "data": prepared.data_hash}
    except UserError:
        return {"data": prepared.data_hash}


def _tokenizer(recipe: Recipe, run: Run, start: Start | None) -> TokenizerConfig | Tokenizer:
    """The tokenizer that comes with another model: from there, or from the run that went on from it; else how to train
    one."""
    if recipe.init == "none":
        return recipe.tokenizer
    return start.tokenizer if start is not None else Tokenizer.from_file(run.path / "tokenizer.json")


def _hashes(prepared: Prepared, start: Start | None) -> dict[str, str]:
    return {"data": prepared.data_hash, **({} if start is None else {"init": start.sha256})}


def fingerprint_of(prepared: Prepared) -> dict[str, Any]:
    """Everything outside the recipe that changes the last bits: the machine, the tokenizer's library, the data."""
    return {
        **runtime.fingerprint(),
        "tokenizers": tokenizers.__version__,
        "data": prepared.data_hash,
        "examples": EXAMPLES,
    }


def _must_agree(run: Run, before: Recipe, now: Recipe, began_with: Mapping[str, str]) -> None:
    """A run goes on with the data, the recipe and the model it was begun with, or not at all."""
    then = run.began_with()
    if before.data == now.data and then.get("data") != began_with["data"]:
        raise UserError(f"{run.path}: the data has changed since this run was begun; it cannot go on with other data")
    if before.init == now.init and then.get("init") != began_with.get("init"):
        raise UserError(f"{run.path}: {now.init} has changed since this run was begun from it; begin anew elsewhere")
    differences = changes(before, now, ignore=MAY_CHANGE)
    if differences:
        lines = "\n  ".join(differences)
        raise UserError(
            f"{run.path}: was begun with another recipe:\n  {lines}\nOnly {', '.join(MAY_CHANGE)} may change; "
            "to begin anew choose another place with -o, or delete that folder"
        )


def same_tokenizer(run: Run, files: Mapping[str, bytes]) -> None:
    """Another version of a library may make another tokenizer of the same data: every id would mean another word."""
    for name, content in files.items():
        if (run.path / name).read_bytes() != content:
            raise UserError(f"{run.path / name}: is not what this version makes of the same data; begin anew elsewhere")


def _notes(prepared: Prepared, learner: Learner) -> list[str]:
    notes = list(prepared.notes)
    known = sum(prepared.counts["train"].values())
    if 0 < learner.recipe.data.rows < known:
        notes.append(f"only {len(learner.train):,} of {known:,} training rows are learnt from (data.rows)")
    if isinstance(learner.train, Documents) and learner.recipe.train.next_sentence:
        judged, passages = learner.train.pairs
        notes.append(f"{judged:,} of {passages:,} passages are pairs that can be judged")
    cut, rows = learner.train.cut, len(learner.train)
    if cut and learner.recipe.task == "translate":
        longest = f"{learner.recipe.data.length} tokens (data.length)"
        notes.append(f"{cut:,} of {cut + rows:,} pairs have a side of more than {longest} and are left out")
    elif cut:
        length, long = learner.recipe.data.length, learner.recipe.data.long
        how = {"cut": "are cut to", "ends": "keep their two ends,", "windows": "are read in windows of"}[long]
        notes.append(f"{cut:,} of {rows:,} training texts {how} {length} tokens (data.length, data.long)")
    if not len(prepared.validation):
        uncalibrated = ", uncalibrated" if learner.recipe.model.head == "classes" else ""
        notes.append(f"there are no validation rows, so the last weights are kept{uncalibrated}")
    return notes


def _resume(session: Session) -> None:
    """Go on from the newest checkpoint that verifies. Newer ones are set aside: their steps are made again."""
    run, learner = session.run, session.learner
    checkpoint, passed_over = run.newest()
    for step, wrong in passed_over.items():
        instead = f"the checkpoint of step {checkpoint.step:,} is used" if checkpoint else "training begins at step 0"
        session.notes.append(f"{wrong}; {instead}, and the damaged one is set aside as {run.set_aside(step).name}")
    if checkpoint is None:
        _without_checkpoint(session)
        return
    then, now = {"examples": 1, **checkpoint.fingerprint}, fingerprint_of(session.prepared)
    if then["examples"] != now["examples"]:
        raise UserError(
            f"{run.path}: was begun by a qkv that makes other examples of the same data; begin anew elsewhere"
        )
    try:
        learner.progress = Progress(**checkpoint.progress)
        learner.model.load_state_dict(checkpoint.weights)
        restore_optimiser(learner.optimiser, learner.model, checkpoint.optimiser)
        learner.average = restored_average(checkpoint.optimiser)
    except (TypeError, RuntimeError, KeyError) as error:
        raise UserError(f"{run.folder_of(checkpoint.step)}: is of another model: {str(error)[:200]}") from None
    session.resumed_at = checkpoint.step
    run.cut_back(checkpoint.step)
    best = learner.progress.best_step
    if best and run.facts().get("step") != best and best in run.checkpoints():
        restore_root(run, session.recipe, session.prepared, best)  # a later model was never made sure of
    session.notes += [f"{sentence}: the last bits will differ" for sentence in runtime.differences(then, now)]


def _without_checkpoint(session: Session) -> None:
    """Nothing to go on from: a finished run is left as it is, any other begins at step 0."""
    run, progress = session.run, session.learner.progress
    if run.is_done():
        progress.finished, progress.step = True, int(run.facts().get("step", 0))
        session.resumed_at = progress.step
        return
    if run.metrics() and not any("training begins at step 0" in note for note in session.notes):
        session.notes.append("no checkpoint is left, so training begins at step 0")
    run.cut_back(0)


def restore_root(run: Run, recipe: Recipe, prepared: Prepared, step: int) -> None:
    """Put the model of a checkpoint into the root, the same to the bit as it was there before."""
    kept, model = run.load(step), fresh_model(recipe)
    model.load_state_dict(kept.weights)
    model = with_weights(model, restored_average(kept.optimiser))
    temperature = Progress(**kept.progress).temperature
    run.replace_model(written_model(model, recipe, prepared, temperature), step=step, temperature=temperature)
