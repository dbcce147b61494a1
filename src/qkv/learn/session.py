"""A training that lives in a run folder: begin or go on, save, put the best model in the root, and finish with a card.

The same call begins and resumes. What is on the disk after any instant is enough to go on to the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tokenizers
import torch

from qkv import runtime
from qkv.config import Recipe
from qkv.data.prepare import Prepared, Source, open_source, prepare
from qkv.exchange.hf import write_model
from qkv.exchange.own import write_own
from qkv.exchange.written import Written
from qkv.learn.card import root_files
from qkv.learn.material import build_material
from qkv.learn.optim import optimiser_tensors, restore_optimiser
from qkv.learn.train import Learner, Progress, Report, new_learner, train
from qkv.model.build import build_model
from qkv.model.transformer import EncoderDecoder, Model
from qkv.run import MAY_CHANGE, Checkpoint, Run, changes
from qkv.schema import UserError
from qkv.text.catalog import cache_folder

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
        written = written_model(self.learner.model, self.recipe, self.prepared.labels, progress.temperature)
        self.run.replace_model(written, step=progress.step, temperature=progress.temperature)

    def _save(self) -> None:
        learner = self.learner
        checkpoint = Checkpoint(
            learner.progress.step,
            learner.model.state_dict(),
            optimiser_tensors(learner.optimiser, learner.model),
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
    source = open_source(recipe.data, say)
    prepared = prepare(source, recipe.tokenizer, cache_folder(), say)
    recipe = finished_recipe(recipe, source, prepared)
    if before is not None:
        _must_agree(run, before, recipe, prepared)
    model = fresh_model(recipe)
    train_part, validation = (
        build_material(recipe, store, prepared.tokenizer, len(prepared.labels))
        for store in (prepared.train, prepared.validation)
    )
    learner = new_learner(model, recipe, train_part, validation)
    session = Session(run, recipe, source, prepared, learner, notes=_notes(prepared, learner))
    if before is None:
        run.check_room(model.state_dict())
    with run.writing("the run"):
        if before is None:
            run.begin(recipe, root_files(prepared, recipe), prepared.data_hash)
        _resume(session)
    return session


def fresh_model(recipe: Recipe) -> Model:
    """The model of a finished recipe with its initial weights."""
    dropout, attention_dropout = recipe.train.dropout, recipe.train.attention_dropout
    return build_model(recipe.model, seed=recipe.seed, dropout=dropout, attention_dropout=attention_dropout)


def open_run_data(recipe: Recipe) -> tuple[Prepared, dict[str, bytes]]:
    """The data of a run that was begun, and the root files made from it."""
    prepared = prepare(open_source(recipe.data), recipe.tokenizer, cache_folder())
    return prepared, root_files(prepared, recipe)


def fingerprint_of(prepared: Prepared) -> dict[str, Any]:
    """Everything outside the recipe that changes the last bits: the machine, the tokenizer's library, the data."""
    return {**runtime.fingerprint(), "tokenizers": tokenizers.__version__, "data": prepared.data_hash}


def check_recipe(recipe: Recipe) -> None:
    """What can be told before any data is read."""
    if recipe.task != "classify":
        raise UserError(f"task = {recipe.task!r}: cannot be trained in this version; accepted: classify")
    model, length = recipe.model, recipe.data.length
    if model.positions == "learned" and model.context < length:
        raise UserError(
            f"data.length = {length} is more than model.context = {model.context}; make them fit, for example "
            f"data.length={model.context}"
        )
    if recipe.train.batch_tokens < length:
        raise UserError(f"train.batch_tokens = {recipe.train.batch_tokens}: must hold a text of data.length = {length}")
    try:
        recipe.to_toml().encode()
    except UnicodeEncodeError:
        raise UserError("the recipe holds half a character (a lone surrogate); accepted: UTF-8 text") from None


def finished_recipe(recipe: Recipe, source: Source, prepared: Prepared) -> Recipe:
    """The recipe with what only the data can tell: columns and label names of a catalogue entry, vocabulary, labels."""
    model = recipe.model
    size = prepared.tokenizer.size
    if model.vocabulary not in (0, size) and model.preset == "none":
        raise UserError(f"model.vocabulary = {model.vocabulary}, but the tokenizer has {size} tokens; accepted: 0")
    pair = prepared.train.pairs
    changed = {"vocabulary": size, "head": "classes", "classes": len(prepared.labels)}
    if pair and model.family == "encoder" and model.segments < 2:
        changed["segments"] = 2
    columns = {role: name or "none" for role, name in asdict(source.columns).items()}
    names = ", ".join(f"{raw}={name}" for raw, name in source.label_names.items()) or "none"
    data = recipe.data.replace(**columns, label_names=names)
    return recipe.replace(model=model.replace(**changed).model_dump(), data=data.model_dump())


def _must_agree(run: Run, before: Recipe, now: Recipe, prepared: Prepared) -> None:
    """A run goes on with the data, the recipe and the tokenizer it was begun with, or not at all."""
    if before.data == now.data and run.data_hash() != prepared.data_hash:
        raise UserError(f"{run.path}: the data has changed since this run was begun; it cannot go on with other data")
    differences = changes(before, now, ignore=MAY_CHANGE)
    if differences:
        lines = "\n  ".join(differences)
        raise UserError(
            f"{run.path}: was begun with another recipe:\n  {lines}\nOnly {', '.join(MAY_CHANGE)} may change; "
            "to begin anew choose another place with -o, or delete that folder"
        )
    same_tokenizer(run, root_files(prepared, now))


def same_tokenizer(run: Run, files: Mapping[str, bytes]) -> None:
    """Another version of a library may make another tokenizer of the same data: every id would mean another word."""
    for name, content in files.items():
        if (run.path / name).read_bytes() != content:
            raise UserError(f"{run.path / name}: is not what this version makes of the same data; begin anew elsewhere")


def _notes(prepared: Prepared, learner: Learner) -> list[str]:
    notes = list(prepared.notes)
    cut, rows = learner.train.examples.cut, len(learner.train.store)
    if cut:
        length, long = learner.recipe.data.length, learner.recipe.data.long
        how = "are cut to" if long == "cut" else "are read in windows of"
        notes.append(f"{cut:,} of {rows:,} training texts {how} {length} tokens (data.length, data.long)")
    if not len(prepared.validation):
        notes.append("there are no validation rows, so the last weights are kept, uncalibrated")
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
    then, now = checkpoint.fingerprint, fingerprint_of(session.prepared)
    try:
        learner.progress = Progress(**checkpoint.progress)
        learner.model.load_state_dict(checkpoint.weights)
        restore_optimiser(learner.optimiser, learner.model, checkpoint.optimiser)
    except (TypeError, RuntimeError, KeyError) as error:
        raise UserError(f"{run.folder_of(checkpoint.step)}: is of another model: {str(error)[:200]}") from None
    session.resumed_at = checkpoint.step
    run.cut_back(checkpoint.step)
    best = learner.progress.best_step
    if best and run.facts().get("step") != best and best in run.checkpoints():
        restore_root(run, session.recipe, session.prepared.labels, best)  # a later model was never made sure of
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


def restore_root(run: Run, recipe: Recipe, labels: tuple[str, ...], step: int) -> None:
    """Put the model of a checkpoint into the root, the same to the bit as it was there before."""
    kept, model = run.load(step), fresh_model(recipe)
    model.load_state_dict(kept.weights)
    temperature = Progress(**kept.progress).temperature
    run.replace_model(written_model(model, recipe, labels, temperature), step=step, temperature=temperature)


def written_model(model: Model, recipe: Recipe, labels: tuple[str, ...], temperature: float) -> Written:
    """The model as it is shipped: the temperature folded into its last layer, in a Hugging Face architecture if its
    parts make one. So everybody who loads it gets calibrated probabilities."""
    shipped = copy.deepcopy(model).eval()
    assert not isinstance(shipped, EncoderDecoder)
    assert shipped.text is not None
    assert shipped.text.output is not None
    with torch.no_grad():
        for weight in shipped.text.output.parameters():
            weight.div_(temperature)
    carried: dict[str, Any] = {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
        "pad_token_id": 0,
        "hidden_dropout_prob": recipe.train.dropout,
        "attention_probs_dropout_prob": recipe.train.attention_dropout,
    }
    try:
        return write_model(shipped, recipe.model, carried)
    except UserError:  # no foreign architecture has these parts
        return write_own(shipped, recipe.model, carried)
