"""What a recipe comes to once its data is known: every key filled in, what is learnt from, and the model."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any, get_args

import numpy as np

from qkv.config import DataConfig, ModelConfig, Recipe, Task
from qkv.data.prepare import Prepared
from qkv.data.source import Source
from qkv.data.tokenise import Form, splitter_of
from qkv.learn.material import Material, Standard, build_documents, build_texts, drawn, some_rows
from qkv.learn.sequences import build_pairs, build_running
from qkv.learn.start import Start, config_from, head_of
from qkv.model.build import build_model
from qkv.model.transformer import Model
from qkv.schema import UserError, describe

TASKS = re.compile(rf"((?:{'|'.join(get_args(Task))}|, )+): ")  # whom a key is for, before its sentence


def check_recipe(recipe: Recipe) -> None:
    """What can be told before any data is read."""
    model, length = recipe.model, recipe.data.length
    _check_keys(recipe)
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


def _check_keys(recipe: Recipe) -> None:
    """A key that this task does not read is a mistake, not a wish."""
    usual = {path: value for path, value, _ in describe(Recipe())}
    for path, value, sentence in describe(recipe):
        named = TASKS.match(sentence)
        if named and recipe.task not in named[1].split(", ") and value != usual[path]:
            raise UserError(f"{path} = {value!r}: is not read where task = {recipe.task!r}; leave it out")


def form_of(recipe: Recipe) -> Form:
    """What a recipe's stores are to hold."""
    if recipe.task == "fill":
        return Form("sentences", recipe.data.sentences)
    if recipe.task == "complete":
        return Form("documents", around="begin")
    if recipe.task == "translate":
        return Form("translations", around="end")
    return Form("grades" if recipe.model.head == "grade" else "labels")


def finished_recipe(
    recipe: Recipe, source: Source, prepared: Prepared, start: Start | None = None, before: Recipe | None = None
) -> Recipe:
    """The recipe with what only the data and the model it goes on from can tell: columns and label names of a catalogue
    entry, vocabulary, labels, and every part of the other model."""
    if recipe.init != "none" and before is not None and before.init == recipe.init:
        for key, mine in recipe.model:
            if mine not in (getattr(ModelConfig(), key), getattr(before.model, key)):
                raise UserError(f"model.{key} = {mine!r}: this run was begun with {getattr(before.model, key)!r}")
        return recipe.replace(model=before.model.model_dump(), data=_finished_data(recipe, source).model_dump())
    model, size = recipe.model if start is None else config_from(start, recipe), prepared.tokenizer.size
    if start is None and model.vocabulary not in (0, size) and model.preset == "none":
        raise UserError(f"model.vocabulary = {model.vocabulary}, but the tokenizer has {size} tokens; accepted: 0")
    changed: dict[str, Any] = {"head": head_of(recipe)}
    if start is None:
        changed["vocabulary"] = size
        if prepared.target is not None:
            changed["target_vocabulary"] = prepared.target.size
    if changed["head"] == "classes":
        changed["classes"] = len(prepared.labels)
    if changed["head"] == "words":
        changed["pooler"] = "none"  # nothing would read it
    paired = prepared.train.pairs or changed["head"] == "pretraining"
    if paired and start is None and model.family == "encoder" and model.segments < 2:
        changed["segments"] = 2
    data = _finished_data(recipe, source)
    return recipe.replace(model=model.replace(**changed).model_dump(), data=data.model_dump())


def _finished_data(recipe: Recipe, source: Source) -> DataConfig:
    """[data] with what the catalogue knows of a corpus; of several, what they agree on."""
    files = source.files["corpus"]
    changed: dict[str, Any] = {}
    if all(one.columns == files[0].columns for one in files):
        changed = {role: name or "none" for role, name in asdict(files[0].columns).items()}
    if recipe.task == "translate":
        changed["target"], changed["pair"] = changed.get("pair", recipe.data.target), "none"
        return recipe.data.replace(**changed, label_names="none")
    if recipe.task in ("fill", "complete"):
        if all(one.documents == files[0].documents for one in files):
            changed["documents"] = files[0].documents
        return recipe.data.replace(**changed, label_names="none")
    names = ", ".join(f"{raw}={name}" for raw, name in source.label_names.items()) or "none"
    return recipe.data.replace(**changed, label_names=names)


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
        if not train.sampler.batches:
            raise UserError(f"{recipe.data.corpus}: its documents become no tokens, so there is nothing to learn from")
        return train, validation
    if recipe.task in ("complete", "translate"):
        return _sequences(recipe, prepared)
    some = some_rows(prepared.train, drawn(len(prepared.train), recipe.data.rows, recipe.seed))
    standard = standard_of(recipe, prepared)
    train_texts, validation_texts = (
        build_texts(recipe, store, tokenizer, max(1, len(prepared.labels)), standard)
        for store in (some, prepared.validation)
    )
    return train_texts, validation_texts


def _sequences(recipe: Recipe, prepared: Prepared) -> tuple[Material, Material]:
    """Running text, or pairs to translate."""
    tokenizer, target = prepared.tokenizer, prepared.target
    some = some_rows(prepared.train, drawn(len(prepared.train), recipe.data.rows, recipe.seed))
    train: Material
    validation: Material
    if recipe.task == "complete":
        train = build_running(recipe, some, tokenizer)
        validation = build_running(recipe, prepared.validation, tokenizer, prepared.text_bytes.get("validation", 0))
    else:
        train, validation = (build_pairs(recipe, store, tokenizer, target) for store in (some, prepared.validation))
    if not train.sampler.batches:
        found = (
            "its texts become no tokens" if not train.cut else f"all pairs are longer than {recipe.data.length} tokens"
        )
        raise UserError(f"{recipe.data.corpus}: {found} (data.length), so there is nothing to learn from")
    return train, validation


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
