"""How a weight of ours is made from foreign ones and taken apart again. Every rule is exact: read, then written, a file
comes back bit by bit.

Foreign names have {i} for the layer and @ for the prefix of the body inside a model with a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from qkv.config import ModelConfig


@dataclass(frozen=True)
class Rule:
    """One weight of ours and the foreign ones it is made of. The config is resolved: it has all sizes."""

    names: tuple[str, ...]
    read: Callable[[list[Tensor], ModelConfig], Tensor]
    write: Callable[[Tensor, ModelConfig], list[Tensor]]


def same(name: str) -> Rule:
    """The same tensor under another name."""
    return Rule((name,), lambda theirs, c: theirs[0], lambda ours, c: [ours])


def transposed(name: str) -> Rule:
    """A linear map stored the other way round (GPT-2's Conv1D)."""
    return Rule((name,), lambda theirs, c: theirs[0].T, lambda ours, c: [ours.T])


def as_row(name: str) -> Rule:
    """A bias for each word, stored as (1, V)."""
    return Rule((name,), lambda theirs, c: theirs[0][0], lambda ours, c: [ours[None]])


def rolled(name: str, rows: int) -> Rule:
    """A table that starts with `rows` rows no input reaches (BART's positions); ours has them at its end."""

    def read(theirs: list[Tensor], c: ModelConfig) -> Tensor:
        return torch.cat([theirs[0][rows:], theirs[0][:rows]])

    def write(ours: Tensor, c: ModelConfig) -> list[Tensor]:
        return [torch.cat([ours[-rows:], ours[:-rows]])]

    return Rule((name,), read, write)


def stacked(*names: str) -> Rule:
    """Maps of equal size, one below the other: the gate and the value of a gated feed-forward part."""
    return Rule(names, lambda theirs, c: torch.cat(theirs), lambda ours, c: list(ours.chunk(len(names))))


def qkv(query: str, key: str, value: str) -> Rule:
    """Queries, keys and values, one below the other."""
    return Rule((query, key, value), lambda theirs, c: torch.cat(theirs), _split_qkv)


def qkv_of_neighbours(query: str, key: str, value: str) -> Rule:
    """As `qkv`, where rotary positions turn neighbouring features (2i, 2i + 1) and ours turn (i, i + K/2)."""

    def read(theirs: list[Tensor], c: ModelConfig) -> Tensor:
        q, k, v = theirs
        return torch.cat([_regrouped(q, (c.heads, -1, 2)), _regrouped(k, (c.kv_heads, -1, 2)), v])

    def write(ours: Tensor, c: ModelConfig) -> list[Tensor]:
        q, k, v = _split_qkv(ours, c)
        return [_regrouped(q, (c.heads, 2, -1)), _regrouped(k, (c.kv_heads, 2, -1)), v]

    return Rule((query, key, value), read, write)


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
