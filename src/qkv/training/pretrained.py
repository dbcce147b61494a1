"""Pre-trained models to fine-tune: the weights and the tokenizer that `init` names.

Fine-tuning a pre-trained model beats training from scratch (measured by `qkv lab pretraining`).
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from qkv.config.recipe import FAMILIES_OF_TASK, TEXT_HEADS, Head, ModelConfig, Recipe, TokenizerConfig
from qkv.corpus.corpus import NONE, SPLIT, Corpus
from qkv.corpus.files import sha256
from qkv.data.prepare import TARGET, Prepared
from qkv.data.store import Store
from qkv.exchange.folder import INDEX, WEIGHTS
from qkv.exchange.hf import exportable_pooler
from qkv.exchange.special_tokens import label_names
from qkv.hub import models, path_of
from qkv.model.transformer import Model
from qkv.predict.predictor import open_model
from qkv.schema import UserError, listed
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.training.pooling_layer import start_as_mean, with_pooling_layer

LONGEST_CONTEXT = 100_000  # tokens; some architectures write a table of that length into every file
HEADS = ("words.", "text.")  # tensors of the heads: initialised where the pre-trained model has none, or another
OF_TASK = ("classes", "pool", "pooler")  # keys of [model] that are this recipe's to choose
SIZES = ("vocabulary", "target_vocabulary")  # those of a preset are not of the tokenizer
UNKNOWN_SHARE = 0.05  # of the tokens, above which a tokenizer does not fit the texts
ROWS_SEARCHED = 1000  # for a word that the tokenizer does not know, and as many words of each


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained model, read."""

    path: Path
    config: ModelConfig
    weights: dict[str, Tensor]
    tokenizer: Tokenizer
    target_tokenizer: Tokenizer | None  # of an encoder-decoder that has two
    labels: tuple[str, ...]  # of a classifier
    sha256: str  # of its model.safetensors
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
    target = Tokenizer.from_file(path / TARGET) if (path / TARGET).is_file() else None
    _check_sizes(path, "tokenizer.json", tokenizer, config.vocabulary)
    _check_sizes(path, TARGET, target or tokenizer, config.resolve().target_vocabulary or config.vocabulary)
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise UserError(f"init: {path}: tensor {name!r} has values that are not finite")
    if config.context > LONGEST_CONTEXT:
        raise UserError(f"init: {path}: context = {config.context:,}; accepted: up to {LONGEST_CONTEXT:,}")
    theirs = opened.recipe if opened.run.begun else None
    saw_all = theirs is not None and SPLIT not in (theirs.data.validation, theirs.data.test)
    labels = label_names({**opened.folder.config, **opened.folder.generation}, config)
    return Pretrained(path, config, weights, tokenizer, target, labels, _sha256(path), saw_all)


def _check_sizes(path: Path, file: str, tokenizer: Tokenizer, rows: int) -> None:
    if tokenizer.size > rows:
        sizes = f"{file} has {tokenizer.size} tokens, the embedding table {rows} rows"
        raise UserError(f"init: {path}: tokenizer and weights do not match: {sizes}")


def _sha256(path: Path) -> str:
    """Of model.safetensors; of weights in several files, of the list of their hashes."""
    if (path / WEIGHTS).is_file():
        return sha256(path / WEIGHTS)
    files = sorted(set(json.loads((path / INDEX).read_bytes())["weight_map"].values()))
    return hashlib.sha256("".join(f"{sha256(path / file)}  {file}\n" for file in files).encode()).hexdigest()


def inherited_config(pretrained: Pretrained, recipe: Recipe, head: Head) -> ModelConfig:
    """The parts of the pre-trained model, with the head that this recipe's task needs. A key of [model] that the recipe
    sets to something else is an error: the parts of trained weights cannot change."""
    theirs, ours = pretrained.config, recipe.model
    _check_family(recipe, theirs)
    if recipe.train.pooling_layer:
        theirs = with_pooling_layer(theirs, pretrained.path)
    defaults, chosen, conflicts = ModelConfig(), dict[str, object](), list[str]()
    for key, mine in ours:
        if mine == getattr(defaults, key) or key in ("head", "preset") or (key in SIZES and ours.preset != "none"):
            continue
        other = getattr(theirs.resolve(), key)
        if key in OF_TASK:
            chosen[key] = mine
        elif mine != other:
            conflicts.append(f"model.{key} = {mine!r} (it has {other!r})")
    if conflicts:
        raise UserError(f"init = {recipe.init!r} brings its own model; remove {listed(conflicts)}")
    config = theirs.replace(**chosen, head=head)
    return config.replace(pooler=exportable_pooler(config)) if head in TEXT_HEADS and "pooler" not in chosen else config


def _check_family(recipe: Recipe, theirs: ModelConfig) -> None:
    accepted = FAMILIES_OF_TASK[recipe.task]
    if theirs.family not in accepted:
        fitting = listed(name for name, model in models().items() if model.family in accepted)
        wrong = f"init = {recipe.init!r}: its family is {theirs.family!r}, which task = {recipe.task!r} cannot use"
        raise UserError(f"{wrong}; accepted: {' or '.join(accepted)}; such models by name: {fitting}")


@torch.no_grad()
def copy_weights(pretrained: Pretrained, model: Model, recipe: Recipe, labels: tuple[str, ...]) -> list[str]:
    """Copy the pre-trained weights into the fresh model of a recipe; notes for the user. Anything but a head must be
    there, in its shape. The output layer of a text head is taken over only if it has the same meaning, and the pooler
    only with the same activation."""
    own, rows, pools = model.state_dict(), _output_rows(pretrained, recipe, labels), recipe.train.pooling_layer
    other_pooler = pools or pretrained.config.pooler != recipe.model.pooler
    replaced = {"text.output.": rows is None, "text.dense.": other_pooler}
    added = (*HEADS, *([f"stack.blocks.{pretrained.config.layers}."] if pools else []))
    new, taken = list[str](), set[str]()
    for name, tensor in own.items():
        trained = pretrained.weights.get(name)
        if any(name.startswith(part) and is_replaced for part, is_replaced in replaced.items()):
            new.append(name)
        elif trained is not None and trained.shape == tensor.shape:
            tensor.copy_(trained[rows] if rows is not None and name.startswith("text.output.") else trained)
            taken.add(name)
        elif name.startswith(added):
            new.append(name)
        else:
            found = "is missing" if trained is None else f"has the shape {tuple(trained.shape)}"
            raise UserError(f"init: {pretrained.path}: tensor {name!r} {found}; this model needs {tuple(tensor.shape)}")
    if recipe.train.pooling_layer:
        start_as_mean(model, recipe.model)
    return _copy_notes(pretrained, recipe, new, taken)


def keeps_output(pretrained: Pretrained, recipe: Recipe, labels: tuple[str, ...]) -> bool:
    """Whether the output layer of a classifier or a regression is taken over."""
    return recipe.model.head in TEXT_HEADS and _output_rows(pretrained, recipe, labels) is not None


def _output_rows(pretrained: Pretrained, recipe: Recipe, labels: tuple[str, ...]) -> list[int] | None:
    """Which rows of the pre-trained output layer the new one has: those of the same labels, which may be in another
    order. None where it means something else: other labels, another head, or another pooler below it."""
    theirs, ours = pretrained.config, recipe.model
    if theirs.head != ours.head or theirs.pooler != ours.pooler or recipe.train.pooling_layer:
        return None
    if ours.head != "classification":
        return {"regression": [0], "pretraining": [0, 1]}.get(ours.head)
    known = {label: row for row, label in enumerate(pretrained.labels)}
    return [known[label] for label in labels] if known.keys() == set(labels) else None


def _copy_notes(pretrained: Pretrained, recipe: Recipe, new: list[str], taken: set[str]) -> list[str]:
    unused = [name for name in pretrained.weights if name not in taken]
    notes = []
    if recipe.model.head in TEXT_HEADS and "text.output.weight" in taken:
        notes.append(f"output layer taken from {recipe.init}")
    if new:
        notes.append(f"newly initialised: {listed(_layers(new))}")
    if unused:
        notes.append(f"not used from {pretrained.path.name}: {listed(_layers(unused))}")
    if recipe.tokenizer != TokenizerConfig():
        notes.append(f"the tokenizer is that of {recipe.init}; [tokenizer] is ignored")
    if pretrained.saw_all and {SPLIT, NONE} & {recipe.data.validation, recipe.data.test}:
        whole = f"{recipe.init} was trained on every row of its corpus"
        notes.append(f"{whole}; if it is this corpus, the test metrics are contaminated")
    return notes


def _layers(names: list[str]) -> list[str]:
    """Names of tensors, those of a whole layer as one."""
    return list(dict.fromkeys(re.sub(r"^(stack\.blocks\.\d+)\..*", r"\1", name) for name in names))


def unknown_note(name: str, corpus: Corpus, prepared: Prepared) -> list[str]:
    """A warning where the tokenizer of a pre-trained model does not know the script or the words of these texts."""
    share = _unknown_share(prepared.train, prepared.tokenizer.unknown, (prepared.target or prepared.tokenizer).unknown)
    if share <= UNKNOWN_SHARE:
        return []
    word = _unknown_word(corpus, prepared.tokenizer)
    example = f" (such as {word[:40]!r})" if word else ""
    found = f"{share:.0%} of the tokens are unknown to the tokenizer of {name}{example}"
    return [f"{found}; train from scratch (remove init) or use another model"]


def _unknown_share(store: Store, unknown: int | None, target_unknown: int | None) -> float:
    """Share of unknown tokens. The second text of a row may have another tokenizer."""
    _, middle, stop = store.bounds()
    found = 0
    for one, is_second in ((unknown, False), (target_unknown, True)):
        places = np.flatnonzero(store.tokens == (-1 if one is None else one))
        rows = np.searchsorted(stop, places, side="right")
        found += int(np.count_nonzero((places >= middle[rows]) == is_second))
    return found / max(1, len(store.tokens))


def _unknown_word(corpus: Corpus, tokenizer: Tokenizer) -> str | None:
    """The first word of the training rows that is an unknown token."""
    for _, (_, row) in zip(range(ROWS_SEARCHED), corpus.rows(["train"]), strict=False):
        words = row.text.split()[:ROWS_SEARCHED]
        for word, ids in zip(words, tokenizer.ids(words), strict=True):
            if tokenizer.unknown in ids:
                return word
    return None
