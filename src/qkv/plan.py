"""What a model costs before anything is trained: parameters, arithmetic and memory.

Parameters are counted on the model itself, laid out without memory. Arithmetic is given as formulas a reader can check,
and held equal to torch's own counter by a test. Memory for activations is measured by running the real model on tensors
without data. Lengths: n tokens, in an encoder-decoder n on each side.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from qkv.config.recipe import ModelConfig, Recipe
from qkv.model.build import lay_out
from qkv.model.layers import GATED
from qkv.model.transformer import EncoderDecoder, Model
from qkv.schema import UserError

PARTS = {  # what to call a weight, by the first pattern its name matches
    r"(embedding|target)\.table": "token embeddings",
    r"embedding\.segments": "segment embeddings",
    r"positions\.": "positions",
    r"norm\.": "norms",
    r"attention\.": "self-attention",
    r"cross\.": "cross-attention",
    r"feed\.": "feed-forward",
    r"words\.": "token head",
    r"text\.": "text head",
}
MASKED_SHARE = 0.15  # of an encoder's tokens are asked for in masked-token training
LONGEST = 1_000_000  # tokens of a planned sequence


@dataclass(frozen=True)
class Cost:
    """Floating-point operations for one token at one length; a multiplication and an addition count as two."""

    length: int
    prediction: int  # one forward pass, logits at every position
    training: int  # forward and backward: three times that, an encoder's logits at the masked positions only

    @staticmethod
    def at(config: ModelConfig, length: int) -> Cost:
        parts = flops(config, length)
        forward, logits = sum(parts.values()), parts["logits"]
        asked = round(MASKED_SHARE * logits) if config.family == "encoder" else logits
        return Cost(length, forward, 3 * (forward - logits + asked))


@dataclass(frozen=True)
class Memory:
    """Bytes while training in float32 with AdamW."""

    weights: int
    gradients: int
    optimiser: int
    activations: int  # what one micro-batch keeps for the backward pass
    rows: int
    length: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.activations


@dataclass(frozen=True)
class Plan:
    """The cost of a recipe's model. `parameters` is by part, in the order of the model."""

    parameters: dict[str, int]
    costs: list[Cost]
    memory: Memory

    @property
    def total(self) -> int:
        return sum(self.parameters.values())


def make_plan(recipe: Recipe, length: int = 128) -> Plan:
    """Count, calculate and measure. Nothing of the model's size is allocated."""
    config = recipe.model
    limit = config.context if config.positions == "learned" else LONGEST
    if not 1 <= length <= limit:
        raise UserError(f"length = {length}: must be at least 1 and at most {limit:,} for this model")
    usual = (128, 512, config.context if config.positions == "learned" else 2048)
    lengths = sorted({length, *(n for n in usual if n <= limit)})
    return Plan(parameters(config), [Cost.at(config, n) for n in lengths], measure_memory(recipe, length))


def parameters(config: ModelConfig) -> dict[str, int]:
    """The number of weights in each part."""
    count: Counter[str] = Counter()
    for name, weight in lay_out(config).named_parameters():
        count[next(part for pattern, part in PARTS.items() if re.search(pattern, name))] += weight.numel()
    return dict(count)


def flops(config: ModelConfig, length: int) -> dict[str, int]:
    """Operations of one forward pass for one token among `length`, by part. Matrix products only: the rest is small,
    and so is a text head, which works once for a whole text.

    In an encoder-decoder: for one source and one target token together.
    """
    c = config.resolve()
    inner, keys = c.heads * c.head_width, c.kv_heads * c.head_width
    projections = 2 * c.width * (inner + 2 * keys) + 2 * inner * c.width  # q, k, v and output
    pairs = 2 * length * inner + 2 * length * inner  # QK^T and AV: the only part that grows with the length
    if c.positions == "relative":
        pairs += 2 * (2 * c.reach + 1) * inner  # the query with every distance
    feed = 2 * c.width * c.feedforward * (3 if c.activation in GATED else 2)
    layers = c.layers + c.decoder_layers
    logits = 2 * c.width * (c.target_vocabulary or c.vocabulary) if c.head in ("tokens", "pretraining") else 0
    if logits and c.family == "encoder":
        logits += 2 * c.width * c.width  # the layer before the output
    return {
        "projections": (layers + c.decoder_layers) * projections,  # cross-attention has as many as self-attention
        "attention": layers * pairs + c.decoder_layers * 4 * length * inner,
        "feed-forward": layers * feed,
        "logits": logits,
    }


def measure_memory(recipe: Recipe, length: int) -> Memory:
    """Run one micro-batch of the real model on tensors that have shapes but no data, and add up what autograd keeps."""
    sides = 2 if recipe.model.family == "encoder-decoder" else 1
    rows = max(1, recipe.train.batch_tokens // recipe.train.micro_batches // (sides * length))
    kept: dict[int, int] = {}  # address of a storage -> bytes, so that views of one tensor count once

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    with FakeTensorMode():
        model = lay_out(
            recipe.model, dropout=recipe.train.dropout, attention_dropout=recipe.train.attention_dropout, device="cpu"
        )
        own = {weight.untyped_storage()._cdata for weight in model.parameters()}
        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = _training_loss(model, rows, length)  # held until the counting is done: it keeps the addresses in use
        activations = sum(size for address, size in kept.items() if address not in own)
        weights = sum(weight.nbytes for weight in model.parameters())
    del loss
    return Memory(weights, weights, 2 * weights, activations, rows, length)


def _training_loss(model: Model, rows: int, length: int) -> Tensor:
    """A loss over one batch, as training computes it: logits at every position (an encoder: at the masked ones)."""
    tokens = torch.zeros(rows, length, dtype=torch.long)
    if isinstance(model, EncoderDecoder):
        hidden_BLD, share = model(tokens, tokens), 1.0
    else:
        hidden_BLD, share = model(tokens), 1.0 if model.stack.causal else MASKED_SHARE
    loss: Tensor = hidden_BLD.sum()
    if model.words is not None:
        asked_ND = hidden_BLD.flatten(0, 1)[: max(1, round(share * rows * length))]
        logits_NV = model.logits(asked_ND)
        loss = loss + F.cross_entropy(logits_NV, torch.zeros(len(logits_NV), dtype=torch.long))
    if model.text is not None:
        loss = loss + model.text(hidden_BLD).sum()
    return loss
