"""A model as it is shipped: in a Hugging Face architecture if its parts make one, all that was fitted folded in."""

from __future__ import annotations

import copy
from typing import Any

import torch

from qkv.config import Recipe
from qkv.data.prepare import Prepared
from qkv.exchange.hf import write_model
from qkv.exchange.own import write_own
from qkv.exchange.written import Written
from qkv.learn.material import Standard
from qkv.learn.setup import standard_of
from qkv.model.transformer import EncoderDecoder, Model
from qkv.schema import UserError


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
    carried |= _special_ids(recipe, prepared)
    if prepared.labels:
        carried["id2label"] = {str(number): label for number, label in enumerate(prepared.labels)}
        carried["label2id"] = {label: number for number, label in enumerate(prepared.labels)}
    try:
        return write_model(shipped, recipe.model, carried)
    except UserError:  # no foreign architecture has these parts
        return write_own(shipped, recipe.model, carried)


def _special_ids(recipe: Recipe, prepared: Prepared) -> dict[str, Any]:
    """With which tokens an answer begins and ends, and which are none."""
    tokenizer = prepared.target or prepared.tokenizer
    if recipe.task not in ("complete", "translate") or tokenizer.end is None:
        return {}
    ids: dict[str, Any] = {"eos_token_id": tokenizer.end, "bad_words_ids": [[tokenizer.pad]]}
    if recipe.task == "translate":
        return {**ids, "decoder_start_token_id": tokenizer.pad, "forced_eos_token_id": tokenizer.end}
    before = tokenizer.frame(pair=False).before
    return {**ids, "bos_token_id": before[0]} if before else ids


@torch.no_grad()
def _fold(model: Model, temperature: float, standard: Standard | None) -> None:
    output = None if isinstance(model, EncoderDecoder) or model.text is None else model.text.output
    if output is None or (standard is None and temperature == 1.0):
        return
    for weight in output.parameters():
        weight.mul_(standard.deviation) if standard is not None else weight.div_(temperature)
    if standard is not None and output.bias is not None:
        output.bias.add_(standard.mean)
