"""What a training goes on from: the weights and the tokenizer of another model (`init`)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qkv.bundled import path_of
from qkv.config import ModelConfig, Recipe
from qkv.exchange.folder import open_folder
from qkv.exchange.hf import read_model
from qkv.model.transformer import Model
from qkv.run import WEIGHTS, Run
from qkv.schema import UserError, listed
from qkv.text.tokenizer import Tokenizer

HEADS = ("words.", "text.")  # what reads off the last layer: made anew where the other model has none, or another
OF_TASK = ("head", "classes", "pool", "pooler")  # keys of [model] that a recipe may set, whatever the other model has


@dataclass(frozen=True)
class Start:
    """Another model, read."""

    path: Path
    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    sha256: str  # of its weights


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
    return Start(path, config, weights, tokenizer, _sha256(weights))


def config_from(start: Start, recipe: Recipe) -> ModelConfig:
    """The other model's parts, with the head that this recipe's task needs. A key of [model] that the recipe sets to
    something else is an error: parts cannot change under learnt weights."""
    theirs, ours = start.config, recipe.model
    if theirs.family not in ("encoder", "decoder") or theirs.family != ours.family:
        raise UserError(f"init: {start.path}: is of family {theirs.family!r}; this recipe has {ours.family!r}")
    usual, chosen = ModelConfig(), dict[str, object]()
    for key, mine in ours:
        if mine == getattr(usual, key):
            continue
        other = getattr(theirs.resolve(), key)
        if key in OF_TASK:
            chosen[key] = mine
        elif mine != other:
            raise UserError(
                f"model.{key} = {mine!r}, but {start.path} has {other!r}; with init, leave that key out of the recipe"
            )
    return theirs.replace(**chosen)


@torch.no_grad()
def copy_weights(start: Start, model: Model) -> list[str]:
    """Give a fresh model all that the other one has learnt, and say what is new and what found no place. Anything but a
    head must be there, in its shape."""
    own = model.state_dict()
    new = []
    for name, tensor in own.items():
        learnt = start.weights.get(name)
        if learnt is not None and learnt.shape == tensor.shape:
            tensor.copy_(learnt)
        elif name.startswith(HEADS):
            new.append(name)
        else:
            found = "is missing" if learnt is None else f"has the shape {tuple(learnt.shape)}"
            raise UserError(f"init: {start.path}: tensor {name!r} {found}; this model needs {tuple(tensor.shape)}")
    unused = [name for name, tensor in start.weights.items() if name not in own or own[name].shape != tensor.shape]
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
