"""Next-token prediction: what `complete` and `translate` have in common.

B examples · L tokens of the longest · S of the longest source · N tokens to predict · V vocabulary
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config.recipe import Recipe
from qkv.data.batch import Batch
from qkv.data.prepare import Prepared
from qkv.model.transformer import Decoder, EncoderDecoder, Model
from qkv.tasks.task import Loss, Validation


@dataclass(frozen=True)
class NextTokenBatch(Batch):
    """Texts of which every next token is predicted; of a translation, with its source."""

    positions_N: Tensor | None  # to predict from, in the flattened tokens; None: every position
    targets_N: Tensor  # the next token at each
    source_BS: Tensor | None = None
    source_keep_BS: Tensor | None = None

    @property
    def counts(self) -> dict[str, float]:
        return {"token": float(len(self.targets_N))}


def next_token_logits(model: Model, batch: NextTokenBatch) -> Tensor:
    """Logits at each position where the next token is predicted (N, V)."""
    if isinstance(model, EncoderDecoder):
        assert batch.source_BS is not None, "the batch is of translations"
        hidden_BLD = model(batch.source_BS, batch.tokens_BL, batch.source_keep_BS, batch.keep_BL)
        hidden_ND = hidden_BLD.flatten(0, 1)
        return model.logits(hidden_ND if batch.positions_N is None else hidden_ND.index_select(0, batch.positions_N))
    assert isinstance(model, Decoder), "a recipe's family is checked before"
    hidden = model(batch.tokens_BL, batch.keep_BL, at_N=batch.positions_N)
    return model.logits(hidden.flatten(0, 1) if batch.positions_N is None else hidden)


def loss(model: Model, batch: NextTokenBatch, recipe: Recipe) -> Loss:
    """Cross-entropy of every next token (Bengio et al., 2003); label smoothing as in the 2017 paper."""
    smoothing = recipe.train.label_smoothing
    logits_NV = next_token_logits(model, batch)
    return {"token": F.cross_entropy(logits_NV, batch.targets_N, reduction="sum", label_smoothing=smoothing)}


@torch.no_grad()
def evaluate(model: Model, batches: Iterable[NextTokenBatch]) -> tuple[Validation, int, float]:
    """Loss, perplexity and token accuracy; and the number of tokens with their total loss."""
    tokens, hits, total = 0, 0, 0.0
    for batch in batches:
        logits_NV = next_token_logits(model, batch)
        tokens += len(batch.targets_N)
        hits += int((logits_NV.argmax(1) == batch.targets_N).sum())
        total += F.cross_entropy(logits_NV, batch.targets_N, reduction="sum").double().item()
    mean = total / max(1, tokens)
    found = {"perplexity": math.exp(min(mean, 700.0)), "token_accuracy": hits / max(1, tokens)}
    return Validation(mean, found), tokens, total


def end_ids(prepared: Prepared) -> dict[str, Any]:
    """The special tokens of generated text, for config.json."""
    tokenizer = prepared.target or prepared.tokenizer
    return {} if tokenizer.end is None else {"eos_token_id": tokenizer.end, "bad_words_ids": [[tokenizer.pad]]}
