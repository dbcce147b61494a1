"""A trained model as files: weights in a Hugging Face architecture if its parts make one, and the tokenizer."""

from __future__ import annotations

import copy
import json
from typing import Any

from qkv.config.recipe import Recipe
from qkv.data.prepare import TARGET, Prepared
from qkv.exchange.folder import ModelFiles
from qkv.exchange.hf import as_files
from qkv.model.transformer import Model
from qkv.tasks import TASKS

READER = "PreTrainedTokenizerFast"  # the class of transformers that reads any tokenizer.json


def trained_files(model: Model, recipe: Recipe, prepared: Prepared, temperature: float) -> ModelFiles:
    """The model as it is written. What its task fitted (a temperature, mean and deviation) is folded into the last
    layer, so that everyone who loads it gets the same predictions."""
    task, folded = TASKS[recipe.task], copy.deepcopy(model).eval()
    task.fold(folded, recipe, prepared, temperature)
    config: dict[str, Any] = {
        "pad_token_id": prepared.tokenizer.pad,
        "hidden_dropout_prob": recipe.train.dropout,
        "attention_probs_dropout_prob": recipe.train.attention_dropout,
        **task.token_ids(prepared),
    }
    if prepared.labels:
        config["id2label"] = {str(number): label for number, label in enumerate(prepared.labels)}
        config["label2id"] = {label: number for number, label in enumerate(prepared.labels)}
    return as_files(folded, recipe.model, config)


def tokenizer_files(prepared: Prepared, recipe: Recipe) -> dict[str, bytes]:
    """The tokenizer, in the two files that transformers reads."""
    tokenizer, target = prepared.tokenizer, prepared.target
    config = {"tokenizer_class": READER, "model_max_length": recipe.data.length, **tokenizer.special_roles()}
    texts = {"tokenizer.json": tokenizer.to_json(), "tokenizer_config.json": json.dumps(config, indent=2) + "\n"}
    texts |= {} if target is None else {TARGET: target.to_json()}
    return {name: text.encode() for name, text in texts.items()}
