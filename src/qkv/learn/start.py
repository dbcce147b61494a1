"""What a training goes on from: the weights and the tokenizer of another model (`init`).

Fine-tuning after pre-training beats training from nothing (measured by `qkv lab pretraining`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qkv.bundled import path_of
from qkv.config import Head, ModelConfig, Recipe
from qkv.exchange.folder import open_folder
from qkv.exchange.hf import can_leave, read_model
from qkv.model.transformer import Model
from qkv.run import WEIGHTS, Run
from qkv.schema import UserError, listed
from qkv.text.tokenizer import Tokenizer

LONGEST_CONTEXT = 100_000  # tokens; some architectures write a table of that length into every file
HEADS = ("words.", "text.")  # what reads off the last layer: made anew where the other model has none, or another
OF_TASK = ("classes", "pool", "pooler")  # keys of [model] that are this recipe's to choose


@dataclass(frozen=True)
class Start:
    """Another model, read."""

    path: Path
    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    sha256: str  # of its weights
    saw_all: bool = False  # it learnt from all rows of its corpus: its validation and test rows were in other files


def read_start(recipe: Recipe) -> Start | None:
    """The model that a recipe goes on from; None where it begins from nothing."""
    if recipe.init == "none":
        return None
    path = path_of(recipe.init)
    run = Run(path)
    if run.begun:
        run.check()
        if not (path / WEIGHTS).exists():
            raise UserError(f"init: {path}: this run has no model yet; the first is written at its first evaluation")
    folder = open_folder(path)
    if folder.tokenizer is None:
        raise UserError(f"init: {path}: holds no tokenizer.json, so nobody knows which word each row of its table is")
    model, config = read_model(folder)
    tokenizer = Tokenizer.from_file(folder.tokenizer)
    if tokenizer.size > config.vocabulary:
        sizes = f"tokenizer.json has {tokenizer.size} tokens, its table of words {config.vocabulary} rows"
        raise UserError(f"init: {path}: vocabulary and weights do not belong together: {sizes}")
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise UserError(f"init: {path}: tensor {name!r} holds numbers that are not finite")
    if config.context > LONGEST_CONTEXT:
        raise UserError(f"init: {path}: context = {config.context:,}; accepted: up to {LONGEST_CONTEXT:,}")
    theirs = run.recipe if run.begun else None
    saw_all = theirs is not None and "split" not in (theirs.data.validation, theirs.data.test)
    return Start(path, config, weights, tokenizer, _sha256(weights), saw_all)


def with_parts(recipe: Recipe) -> Recipe:
    """A recipe whose model has the parts of the one it goes on from."""
    start = read_start(recipe)
    return recipe if start is None else recipe.replace(model=config_from(start, recipe).model_dump())


def config_from(start: Start, recipe: Recipe) -> ModelConfig:
    """The other model's parts, with the head that this recipe's task needs. A key of [model] that the recipe sets to
    something else is an error: parts cannot change under learnt weights."""
    theirs, ours = start.config, recipe.model
    if theirs.family not in ("encoder", "decoder") or theirs.family != ours.family:
        raise UserError(f"init: {start.path}: is of family {theirs.family!r}; this recipe has {ours.family!r}")
    usual, chosen = ModelConfig(), dict[str, object]()
    for key, mine in ours:
        if mine == getattr(usual, key) or key == "head":
            continue
        other = getattr(theirs.resolve(), key)
        if key in OF_TASK:
            chosen[key] = mine
        elif mine != other:
            raise UserError(
                f"model.{key} = {mine!r}, but {start.path} has {other!r}; with init, leave that key out of the recipe"
            )
    if recipe.task == "classify" and "pooler" not in chosen:
        chosen["pooler"] = _pooler(theirs)
    return theirs.replace(**chosen, head=head_of(recipe))


def head_of(recipe: Recipe) -> Head:
    """The head that a recipe's task needs."""
    if recipe.task == "fill":
        return "pretraining" if recipe.train.next_sentence else "words"
    if recipe.task in ("complete", "translate"):
        return "words"
    return "grade" if recipe.model.head == "grade" else "classes"


def _pooler(theirs: ModelConfig) -> str:
    """The pooler of the other model, unless only another one lets a classifier leave as a Hugging Face folder: BERT's
    classifier has tanh, RoFormer's has the activation of its layers."""
    for pooler in (theirs.pooler, "tanh", "gelu", "relu", "none"):
        if can_leave(theirs.replace(head="classes", pooler=pooler)):
            return pooler
    return theirs.pooler


@torch.no_grad()
def copy_weights(start: Start, model: Model, config: ModelConfig) -> list[str]:
    """Give a fresh model all that the other one has learnt, and say what is new and what found no place. Anything but a
    head must be there, in its shape. What answered another question is not taken over: a pooler of another activation,
    and the outputs of a text's head, unless both tell the next sentence (labels and grades are folded into them)."""
    own = model.state_dict()
    same_question = start.config.head == config.head == "pretraining"
    strange = {"text.output.": not same_question, "text.dense.": start.config.pooler != config.pooler}
    new, taken = list[str](), set[str]()
    for name, tensor in own.items():
        learnt = start.weights.get(name)
        if any(name.startswith(part) and is_strange for part, is_strange in strange.items()):
            new.append(name)
        elif learnt is not None and learnt.shape == tensor.shape:
            tensor.copy_(learnt)
            taken.add(name)
        elif name.startswith(HEADS):
            new.append(name)
        else:
            found = "is missing" if learnt is None else f"has the shape {tuple(learnt.shape)}"
            raise UserError(f"init: {start.path}: tensor {name!r} {found}; this model needs {tuple(tensor.shape)}")
    unused = [name for name in start.weights if name not in taken]
    notes = []
    if new:
        notes.append(f"new, and still to be learnt: {listed(new)}")
    if unused:
        notes.append(f"of {start.path.name} not used here: {listed(unused)}")
    return notes


def _sha256(weights: Mapping[str, Tensor]) -> str:
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(name.encode() + b"\0")
        whole.update(weights[name].contiguous().numpy().tobytes())
    return whole.hexdigest()
