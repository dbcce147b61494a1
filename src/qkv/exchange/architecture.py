"""How a foreign architecture is described: which of our parts it is made of, what it calls them, and how each of our
weights is made from its tensors and taken apart again.

Every weight rule is exact: a file that is read and written again is equal bit by bit. Foreign names have {i} for the
layer and @ for the prefix of the body inside a model with a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qkv.config.recipe import ModelConfig


@dataclass(frozen=True)
class WeightRule:
    """One weight of ours and the foreign ones it is made of. The config is resolved: it has all sizes."""

    names: tuple[str, ...]
    read: Callable[[list[Tensor], ModelConfig], Tensor]
    write: Callable[[Tensor, ModelConfig], list[Tensor]]


def same(name: str) -> WeightRule:
    """The same tensor under another name."""
    return WeightRule((name,), lambda theirs, c: theirs[0], lambda ours, c: [ours])


def transposed(name: str) -> WeightRule:
    """A linear map stored the other way round (GPT-2's Conv1D)."""
    return WeightRule((name,), lambda theirs, c: theirs[0].T, lambda ours, c: [ours.T])


def as_row(name: str) -> WeightRule:
    """A bias for each word, stored as (1, V)."""
    return WeightRule((name,), lambda theirs, c: theirs[0][0], lambda ours, c: [ours[None]])


def rolled(name: str, rows: int) -> WeightRule:
    """A table that starts with `rows` rows no input reaches (BART's positions); ours has them at its end."""

    def read(theirs: list[Tensor], c: ModelConfig) -> Tensor:
        return torch.cat([theirs[0][rows:], theirs[0][:rows]])

    def write(ours: Tensor, c: ModelConfig) -> list[Tensor]:
        return [torch.cat([ours[-rows:], ours[:-rows]])]

    return WeightRule((name,), read, write)


def stacked(*names: str) -> WeightRule:
    """Maps of equal size, one below the other: the gate and the value of a gated feed-forward part."""
    return WeightRule(names, lambda theirs, c: torch.cat(theirs), lambda ours, c: list(ours.chunk(len(names))))


def qkv(query: str, key: str, value: str) -> WeightRule:
    """Queries, keys and values, one below the other."""
    return WeightRule((query, key, value), lambda theirs, c: torch.cat(theirs), _split_qkv)


def qkv_of_neighbours(query: str, key: str, value: str) -> WeightRule:
    """As `qkv`, where rotary positions turn neighbouring features (2i, 2i + 1) and ours turn (i, i + K/2)."""

    def read(theirs: list[Tensor], c: ModelConfig) -> Tensor:
        q, k, v = theirs
        return torch.cat([_regrouped(q, (c.heads, -1, 2)), _regrouped(k, (c.kv_heads, -1, 2)), v])

    def write(ours: Tensor, c: ModelConfig) -> list[Tensor]:
        q, k, v = _split_qkv(ours, c)
        return [_regrouped(q, (c.heads, 2, -1)), _regrouped(k, (c.kv_heads, 2, -1)), v]

    return WeightRule((query, key, value), read, write)


def sinusoid(positions: int, width: int) -> Tensor:
    """The table of sinusoids as Marian, Pegasus and RoFormer store it, bit by bit: sines, then cosines, in float32."""
    i = np.arange((width + 1) // 2)
    angles = np.arange(positions)[:, None] / np.power(10000, 2 * i / width)
    return torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles[:, : width // 2])], 1)).float()


def _split_qkv(ours: Tensor, c: ModelConfig) -> list[Tensor]:
    return list(torch.split_with_sizes(ours, [c.heads * c.head_width, *2 * [c.kv_heads * c.head_width]]))


def _regrouped(rows: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Rows seen as (heads, a, b), put in the order (heads, b, a)."""
    return rows.view(*shape, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


Table = dict[str, WeightRule]
ACTIVATION_NAMES = {  # theirs -> ours; the first of several is the one we write
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
    "swish": "silu", "sigmoid": "sigmoid", "tanh": "tanh", "linear": "identity",
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A foreign class: the architecture with one kind of head. `pooler` is what our text head must have for it."""

    name: str
    head: str
    pooler: str = "none"
    weights: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """One foreign architecture."""

    kind: str  # their `model_type`
    body: str  # prefix of the body's weights in a class with a head
    variants: tuple[Variant, ...]
    parts: Mapping[str, Any]  # our keys with the only value this architecture can have
    keys: Mapping[str, tuple[str, ...]]  # our keys -> theirs, copied as they are; several must agree
    defaults: Mapping[str, Any]  # what their keys mean where config.json is silent
    demands: Mapping[str, Any]  # their keys that must have this value, since we have no part for another
    activation: tuple[str, ...]  # where they name the activation
    weights: Table
    tied: Mapping[str, Mapping[str, Any]]  # our `tied` -> their keys that say so
    ids: Mapping[str, int | None] = field(default_factory=dict)  # special tokens where nobody names any; -1: the last
    sinusoids: Mapping[str, Callable[[ModelConfig], tuple[int, int]]] = field(default_factory=dict)  # tables, by size
    recomputed_by: tuple[str, ...] = ()  # classes that do not store these tables
    context_offset: int = 0  # rows of a position table that no input reaches
    aliases: Mapping[str, str] = field(default_factory=dict)  # second names of a weight
    idle: Mapping[str, str] = field(default_factory=dict)  # weights that nothing reads -> the one we write there


def names(**keys: str) -> dict[str, tuple[str, ...]]:
    """Our key = their key, or several of theirs with blanks between."""
    return {ours: tuple(theirs.split()) for ours, theirs in keys.items()}


def same_names(**names: str) -> Table:
    """Our names, with __ for a dot, -> theirs."""
    return {ours.replace("__", "."): same(theirs) for ours, theirs in names.items()}


TIED_OUTPUT = {"output": {"tie_word_embeddings": True}}
UNTIED = {"none": {"tie_word_embeddings": False}}
POST = {"norm": "layer", "norm_place": "post", "final_norm": False}
PRE = {"norm_place": "pre", "final_norm": True}
PLAIN = {"score": "dot", "residual": True}  # what everybody has
ENCODER = {**PLAIN, **POST, "family": "encoder", "scale": "sqrt", "bias": True, "embedding_norm": True,
            "embedding_scale": False, "output_scale": False, "output_bias": True, "pool": "first"}  # fmt: skip
DECODER = {**PLAIN, **PRE, "family": "decoder", "scale": "sqrt", "embedding_norm": False, "embedding_scale": False,
            "segments": 0, "output_scale": False, "output_bias": False, "pool": "last"}  # fmt: skip
BOTH = {**PLAIN, "family": "encoder-decoder", "segments": 0}
