"""Pre-trained models to fine-tune: the weights and the tokenizer that `init` names.

Fine-tuning a pre-trained model beats training from scratch (measured by `qkv lab pretraining`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from qkv.bundled import path_of
from qkv.config.recipe import TEXT_HEADS, Head, ModelConfig, Recipe, TokenizerConfig
from qkv.exchange.hf import is_exportable
from qkv.model.transformer import Model
from qkv.predict.predictor import open_model
from qkv.schema import UserError, listed
from qkv.tokenizer.tokenizer import Tokenizer

LONGEST_CONTEXT = 100_000  # tokens; some architectures write a table of that length into every file
HEADS = ("words.", "text.")  # tensors of the heads: initialised where the pre-trained model has none, or another
OF_TASK = ("classes", "pool", "pooler")  # keys of [model] that are this recipe's to choose


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model, read."""

    path: Path
    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    sha256: str  # of its weights
    saw_all: bool  # it was trained on all rows of its corpus: validation and test were separate files


def read_pretrained(recipe: Recipe) -> Pretrained | None:
    """The model that a recipe fine-tunes; None where it trains from scratch."""
    if recipe.init == "none":
        return None
    path = path_of(recipe.init)
    try:
        opened = open_model(path)
    except UserError as error:
        raise UserError(f"init: {error}") from None
    config, tokenizer, weights = opened.config, opened.tokenizer, opened.model.state_dict()
    if tokenizer is None:
        raise UserError(f"init: {path}: has no tokenizer.json, so the meaning of its embeddings is unknown")
    if tokenizer.size > config.vocabulary:
        sizes = f"tokenizer.json has {tokenizer.size} tokens, the embedding table {config.vocabulary} rows"
        raise UserError(f"init: {path}: tokenizer and weights do not match: {sizes}")
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise UserError(f"init: {path}: tensor {name!r} has values that are not finite")
    if config.context > LONGEST_CONTEXT:
        raise UserError(f"init: {path}: context = {config.context:,}; accepted: up to {LONGEST_CONTEXT:,}")
    theirs = opened.recipe if opened.run.begun else None
    saw_all = theirs is not None and "split" not in (theirs.data.validation, theirs.data.test)
    return Pretrained(path, config, weights, tokenizer, _sha256(weights), saw_all)


def inherited_config(pretrained: Pretrained, recipe: Recipe, head: Head) -> ModelConfig:
    """The parts of the pre-trained model, with the head that this recipe's task needs. A key of [model] that the recipe
    sets to something else is an error: the parts of trained weights cannot change."""
    theirs, ours = pretrained.config, recipe.model
    if theirs.family not in ("encoder", "decoder") or theirs.family != ours.family:
        raise UserError(f"init: {pretrained.path}: its family is {theirs.family!r}; this recipe has {ours.family!r}")
    defaults, chosen, conflicts = ModelConfig(), dict[str, object](), list[str]()
    for key, mine in ours:
        if mine == getattr(defaults, key) or key == "head":
            continue
        other = getattr(theirs.resolve(), key)
        if key in OF_TASK:
            chosen[key] = mine
        elif mine != other:
            conflicts.append(f"model.{key} = {mine!r} (it has {other!r})")
    if conflicts:
        raise UserError(f"init = {recipe.init!r} brings its own model; remove {listed(conflicts)}")
    if head in TEXT_HEADS and "pooler" not in chosen:
        chosen["pooler"] = _pooler(theirs)
    return theirs.replace(**chosen, head=head)


def _pooler(theirs: ModelConfig) -> str:
    """The pooler of the pre-trained model, unless only another one makes the classifier a Hugging Face architecture:
    BERT's classifier has tanh, RoFormer's has the activation of its layers."""
    for pooler in (theirs.pooler, "tanh", "gelu", "relu", "none"):
        if is_exportable(theirs.replace(head="classification", pooler=pooler)):
            return pooler
    return theirs.pooler


@torch.no_grad()
def copy_weights(pretrained: Pretrained, model: Model, recipe: Recipe) -> list[str]:
    """Copy the pre-trained weights into the fresh model of a recipe; notes for the user. Anything but a head
    must be there, in its shape. The output layer of a text head is taken over only between two models that predict the
    next sentence (labels and numbers are of another task), and the pooler only with the same activation."""
    own, config = model.state_dict(), recipe.model
    same_outputs = pretrained.config.head == config.head == "pretraining"
    replaced = {"text.output.": not same_outputs, "text.dense.": pretrained.config.pooler != config.pooler}
    new, taken = list[str](), set[str]()
    for name, tensor in own.items():
        trained = pretrained.weights.get(name)
        if any(name.startswith(part) and is_replaced for part, is_replaced in replaced.items()):
            new.append(name)
        elif trained is not None and trained.shape == tensor.shape:
            tensor.copy_(trained)
            taken.add(name)
        elif name.startswith(HEADS):
            new.append(name)
        else:
            found = "is missing" if trained is None else f"has the shape {tuple(trained.shape)}"
            raise UserError(f"init: {pretrained.path}: tensor {name!r} {found}; this model needs {tuple(tensor.shape)}")
    unused = [name for name in pretrained.weights if name not in taken]
    notes = []
    if new:
        notes.append(f"newly initialised: {listed(new)}")
    if unused:
        notes.append(f"not used from {pretrained.path.name}: {listed(unused)}")
    if recipe.tokenizer != TokenizerConfig():
        notes.append(f"the tokenizer is that of {recipe.init}; [tokenizer] is ignored")
    if pretrained.saw_all and "split" in (recipe.data.validation, recipe.data.test):
        whole = f"{recipe.init} was trained on every row of its corpus"
        notes.append(f"{whole}; if it is this corpus, the test metrics are contaminated")
    return notes


def _sha256(weights: Mapping[str, Tensor]) -> str:
    whole = hashlib.sha256()
    for name in sorted(weights):
        whole.update(name.encode() + b"\0")
        whole.update(weights[name].contiguous().numpy().tobytes())
    return whole.hexdigest()
