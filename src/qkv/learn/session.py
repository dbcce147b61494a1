"""A training that lives in a run folder: begin or go on, save, put the best model in the root, and finish with a card.

The same call begins and resumes. What is on the disk after any instant is enough to go on to the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch

from qkv import runtime
from qkv.config import Recipe, TokenizerConfig
from qkv.data.prepare import Form, Prepared, prepare, splitter_of
from qkv.data.source import Source, open_source
from qkv.exchange.hf import write_model
from qkv.exchange.own import write_own
from qkv.exchange.written import Written
from qkv.learn.card import root_files
from qkv.learn.material import Material, Standard, build_documents, build_texts, drawn, some_rows
from qkv.learn.optim import optimiser_tensors, restore_optimiser
from qkv.learn.start import Start, config_from, copy_weights, head_of, read_start
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
        written = written_model(self.learner.model, self.recipe, self.prepared, progress.temperature)
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
    start = read_start(recipe)
    source = open_source(recipe.data, say, recipe.task)
    tokenizer = recipe.tokenizer if start is None else start.tokenizer
    prepared = prepare(source, tokenizer, cache_folder(), say, form_of(recipe))
    recipe = finished_recipe(recipe, source, prepared, start)
    check_recipe(recipe)  # again, now that every key has its value
    began_with = _hashes(prepared, start)
    if before is not None:
        _must_agree(run, before, recipe, began_with)
        same_tokenizer(run, root_files(prepared, recipe))
    model = fresh_model(recipe)
    copied = [] if start is None else copy_weights(start, model, recipe.model)
    learner = new_learner(model, recipe, *build_materials(recipe, prepared))
    if start is not None and recipe.tokenizer != TokenizerConfig():
        copied.append(f"the tokenizer is that of {recipe.init}; [tokenizer] says nothing here")
    session = Session(run, recipe, source, prepared, learner, notes=[*copied, *_notes(prepared, learner)])
    if before is None:
        run.check_room(model.state_dict())
    with run.writing("the run"):
        if before is None:
            run.begin(recipe, root_files(prepared, recipe), began_with)
        _resume(session)
    return session


def form_of(recipe: Recipe) -> Form:
    """What a recipe's stores are to hold."""
    return Form(recipe.model.head == "grade", recipe.data.sentences if recipe.task == "fill" else None)


def build_materials(recipe: Recipe, prepared: Prepared) -> tuple[Material, Material]:
    """What is learnt from, and what it is judged by."""
    tokenizer = prepared.tokenizer
    if recipe.task == "fill":
        documents = np.unique(prepared.train.labels_R)
        wanted = documents[drawn(len(documents), recipe.data.rows, recipe.seed)]
        some = some_rows(prepared.train, np.flatnonzero(np.isin(prepared.train.labels_R, wanted)))
        train, validation = (build_documents(recipe, store, tokenizer) for store in (some, prepared.validation))
        if recipe.train.next_sentence and len(train) < 2:
            raise UserError(
                f"{recipe.data.corpus}: {len(train)} document to learn from: a next sentence can only be told from one "
                "of another document; accepted: train.next_sentence=false, or more documents (data.documents)"
            )
        return train, validation
    some = some_rows(prepared.train, drawn(len(prepared.train), recipe.data.rows, recipe.seed))
    standard = standard_of(recipe, prepared)
    train_texts, validation_texts = (
        build_texts(recipe, store, tokenizer, max(1, len(prepared.labels)), standard)
        for store in (some, prepared.validation)
    )
    return train_texts, validation_texts


def standard_of(recipe: Recipe, prepared: Prepared) -> Standard | None:
    """What grades are measured by; None where labels are classes. A decoder's head has no bias to hold a mean."""
    if recipe.model.head != "grade":
        return None
    chosen = drawn(len(prepared.train), recipe.data.rows, recipe.seed)
    return Standard.of(prepared.train.labels_R[chosen], centred=recipe.model.family == "encoder")


def fresh_model(recipe: Recipe) -> Model:
    """The model of a finished recipe with its initial weights."""
    dropout, attention_dropout = recipe.train.dropout, recipe.train.attention_dropout
    return build_model(recipe.model, seed=recipe.seed, dropout=dropout, attention_dropout=attention_dropout)


def open_run_data(recipe: Recipe) -> tuple[Prepared, dict[str, bytes], dict[str, str]]:
    """The data of a run that was begun, the root files made from it, and the hashes of what it began with."""
    start = read_start(recipe)
    source = open_source(recipe.data, task=recipe.task)
    tokenizer = recipe.tokenizer if start is None else start.tokenizer
    prepared = prepare(source, tokenizer, cache_folder(), form=form_of(recipe))
    return prepared, root_files(prepared, recipe), _hashes(prepared, start)


def _hashes(prepared: Prepared, start: Start | None) -> dict[str, str]:
    return {"data": prepared.data_hash, **({} if start is None else {"init": start.sha256})}


def fingerprint_of(prepared: Prepared) -> dict[str, Any]:
    """Everything outside the recipe that changes the last bits: the machine, the tokenizer's library, the data."""
    return {**runtime.fingerprint(), "tokenizers": tokenizers.__version__, "data": prepared.data_hash}


def check_recipe(recipe: Recipe) -> None:
    """What can be told before any data is read."""
    if recipe.task not in ("classify", "fill"):
        raise UserError(f"task = {recipe.task!r}: cannot be trained in this version; accepted: classify, fill")
    model, length = recipe.model, recipe.data.length
    if recipe.task == "fill":
        splitter_of(recipe.data.sentences)
        if model.pool == "mean" and recipe.train.next_sentence:
            raise UserError("model.pool = 'mean': next sentences are judged by one token; accepted: auto, first, last")
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


def finished_recipe(recipe: Recipe, source: Source, prepared: Prepared, start: Start | None = None) -> Recipe:
    """The recipe with what only the data and the model it goes on from can tell: columns and label names of a catalogue
    entry, vocabulary, labels, and every part of the other model."""
    model, size = recipe.model if start is None else config_from(start, recipe), prepared.tokenizer.size
    if start is None and model.vocabulary not in (0, size) and model.preset == "none":
        raise UserError(f"model.vocabulary = {model.vocabulary}, but the tokenizer has {size} tokens; accepted: 0")
    changed: dict[str, Any] = {"head": head_of(recipe), **({} if start is not None else {"vocabulary": size})}
    if changed["head"] == "classes":
        changed["classes"] = len(prepared.labels)
    paired = prepared.train.pairs or changed["head"] == "pretraining"
    if paired and start is None and model.family == "encoder" and model.segments < 2:
        changed["segments"] = 2
    columns = [files.columns for files in source.files["corpus"]]
    data = recipe.data
    if all(one == columns[0] for one in columns):
        data = data.replace(**{role: name or "none" for role, name in asdict(columns[0]).items()})
    names = ", ".join(f"{raw}={name}" for raw, name in source.label_names.items()) or "none"
    data = data.replace(label_names="none" if recipe.task == "fill" else names)
    return recipe.replace(model=model.replace(**changed).model_dump(), data=data.model_dump())


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
    cut, rows = learner.train.cut, len(learner.train)
    if cut:
        length, long = learner.recipe.data.length, learner.recipe.data.long
        how = "are cut to" if long == "cut" else "are read in windows of"
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
    temperature = Progress(**kept.progress).temperature
    run.replace_model(written_model(model, recipe, prepared, temperature), step=step, temperature=temperature)


def written_model(model: Model, recipe: Recipe, prepared: Prepared, temperature: float) -> Written:
    """The model as it is shipped, in a Hugging Face architecture if its parts make one. The temperature, or the mean
    and deviation of grades, are folded into its last layer: everybody who loads it gets calibrated probabilities, and
    grades as they were given."""
    shipped = copy.deepcopy(model).eval()
    _fold(shipped, temperature, standard_of(recipe, prepared))
    carried: dict[str, Any] = {
        "pad_token_id": prepared.tokenizer.pad,
        "hidden_dropout_prob": recipe.train.dropout,
        "attention_probs_dropout_prob": recipe.train.attention_dropout,
    }
    if prepared.labels:
        carried["id2label"] = {str(number): label for number, label in enumerate(prepared.labels)}
        carried["label2id"] = {label: number for number, label in enumerate(prepared.labels)}
    try:
        return write_model(shipped, recipe.model, carried)
    except UserError:  # no foreign architecture has these parts
        return write_own(shipped, recipe.model, carried)


@torch.no_grad()
def _fold(model: Model, temperature: float, standard: Standard | None) -> None:
    output = None if isinstance(model, EncoderDecoder) or model.text is None else model.text.output
    if output is None or (standard is None and temperature == 1.0):
        return
    for weight in output.parameters():
        weight.mul_(standard.deviation) if standard is not None else weight.div_(temperature)
    if standard is not None and output.bias is not None:
        output.bias.add_(standard.mean)
