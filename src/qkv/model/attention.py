"""Attention: each query asks every key how well it fits, and takes the values in that proportion.

    attention(Q, K, V) = softmax(Q K^T / sqrt(K)) V            (Vaswani et al., 2017, equation 1)

One class for all of it. Self or cross: which tensor gives keys and values. Causal or padded: which
`keep` mask. Fast or explaining: which `attend` function; `plain` is the specification, `fused` must equal it.

B batch · L queries · S keys · D width · H heads · K head width
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.cache import KeyValue
from qkv.model.dropout import Dropout
from qkv.model.positions import Frame, NoPositions, Positions

ScoreFunction = Callable[[Tensor, Tensor], Tensor]  # q_BHLK, k_BHSK -> scores_BHLS


class Linear(nn.Linear):
    """A linear map that draws no random numbers while it is only laid out, which would take most of that time."""

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


@dataclass(frozen=True)
class How:
    """How queries weigh keys: the score, which pairs are allowed, what is added to a score, dropout of weights."""

    score: ScoreFunction
    keep: Tensor | None  # (B or 1, 1, L or 1, S), True = may attend
    bias: Tensor | None  # (B or 1, H, L, S)
    drop: Dropout


Attend = Callable[[Tensor, Tensor, Tensor, How], Tensor]  # q_BHLK, k_BHSK, v_BHSK, how -> mixed_BHLK


def weigh(q_BHLK: Tensor, k_BHSK: Tensor, how: How) -> Tensor:
    """The attention weights (B, H, L, S): softmax of the scores of the keys that may be attended to.

    A query that may attend to nothing gets zeros, not NaN and not the mean of all values. Where softmax is saturated,
    hardly any gradient passes (measured by `qkv lab softmax`).
    """
    scores = how.score(q_BHLK, k_BHSK)
    if how.bias is not None:
        scores = scores + how.bias
    if how.keep is None:
        return scores.softmax(-1)
    blind = ~how.keep.any(-1, keepdim=True)
    return scores.masked_fill(~how.keep, -torch.inf).masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)


def plain(q_BHLK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, how: How) -> Tensor:
    """Attention as it is written: weights, then their mixture of values.

    (i) Q K^T and A V take 4 n^2 d operations (measured by `qkv lab cost`).
    """
    return how.drop(weigh(q_BHLK, k_BHSK, how)) @ v_BHSK


def fused(q_BHLK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, how: How) -> Tensor:
    """The same numbers without ever storing the weights (Dao et al., 2022), by torch's own kernel."""
    if how.score is not dot:
        raise ValueError("fused attention knows the dot score only; use attend=plain for additive")
    if how.drop.training and how.drop.share:
        raise ValueError("fused attention has no dropout inside; use attend=plain for attention_dropout")
    mask = how.keep
    if how.bias is not None:  # hidden pairs as -inf, never a large number: a query that sees nothing gives exactly 0
        mask = how.bias if how.keep is None else how.bias.masked_fill(~how.keep, -torch.inf)
    return F.scaled_dot_product_attention(q_BHLK, k_BHSK, v_BHSK, attn_mask=mask, scale=1.0)


class Recorder:
    """An attend function that keeps the weights it meets, in the order of the layers."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []  # (B, H, L, S) each

    def __call__(self, q_BHLK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, how: How) -> Tensor:
        weights = weigh(q_BHLK, k_BHSK, how)
        self.weights.append(weights)
        return how.drop(weights) @ v_BHSK


def dot(q_BHLK: Tensor, k_BHSK: Tensor) -> Tensor:
    """Score by dot product (Vaswani et al., 2017). The queries come scaled."""
    return q_BHLK @ k_BHSK.transpose(-1, -2)


class Additive(nn.Module):
    """Score by a small network, w . tanh(q + k) (Bahdanau et al., 2015, appendix A.1.2).

    Dot-product attention is faster than additive attention (measured by `qkv lab additive`).
    """

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.vector_HK = nn.Parameter(torch.empty(heads, head_width))

    def forward(self, q_BHLK: Tensor, k_BHSK: Tensor) -> Tensor:
        mixed_BHLSK = torch.tanh(q_BHLK[:, :, :, None] + k_BHSK[:, :, None])
        return torch.einsum("bhlsk,hk->bhls", mixed_BHLSK, self.vector_HK)


# Dot products of unit-variance vectors grow like √d_k (measured by `qkv lab scale`).
SCALES: dict[str, Callable[[int], float]] = {
    "sqrt": lambda head_width: head_width**-0.5,  # keeps the variance of a score at one
    "none": lambda head_width: 1.0,
    "full": lambda head_width: head_width**-1.0,
}
SCORES: dict[str, Callable[[int, int], ScoreFunction]] = {"dot": lambda heads, head_width: dot, "additive": Additive}


@dataclass(frozen=True)
class View:
    """How one pass looks at its keys: the same in all layers. The defaults see everything and know no positions."""

    positions: Positions = field(default_factory=NoPositions)
    frame: Frame = ()
    keep: Tensor | None = None
    attend: Attend | None = None  # None: the fastest that the attention's parts allow


def taken(x_BLD: Tensor, at_N: Tensor) -> Tensor:
    """The vectors at some places of the flattened rows (row * L + column). By index_select, whose backward is
    deterministic."""
    return x_BLD.flatten(0, 1).index_select(0, at_N)


class Attention(nn.Module):
    """Multi-head attention, self or cross, with one matrix for q, k and v so that self-attention is one product.

    With fewer `kv_heads` than `heads`, groups of queries share a key and value (Ainslie et al., 2023).

    h heads have as many weights as one (measured by `qkv lab heads`). Self-attention takes Q, K and V from one sequence
    (measured by `qkv lab who-asks`).
    """

    def __init__(
        self,
        *,
        width: int,
        heads: int,
        kv_heads: int,
        head_width: int,
        score: str,
        scale: str,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, head_width
        self.project = Linear(width, (heads + 2 * kv_heads) * head_width, bias)
        self.output = Linear(heads * head_width, width, bias)
        self.score = SCORES[score](heads, head_width)
        self.scale = SCALES[scale](head_width) if self.score is dot else 1.0  # only dot products grow with the width
        self.drop = Dropout(dropout)
        self.attend: Attend = fused if self.score is dot and self.drop.share == 0 else plain

    def remember(self, source_BSD: Tensor) -> KeyValue:
        """Keys and values of another sequence, for cross-attention. Computed once, used at every step."""
        k_BHSK, v_BHSK = self._part(source_BSD, slice(self.heads * self.head_width, None)).chunk(2, 1)
        return KeyValue(k_BHSK, v_BHSK)

    def forward(
        self,
        x_BLD: Tensor,
        view: View,
        *,
        layer: int = 0,
        past: KeyValue | None = None,
        memory: KeyValue | None = None,
        at_N: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """The attended x_BLD, and the keys and values that were attended to (for a cache).

        Without `memory`, keys and values come from x itself, after those of the `past`. With `at_N`, only the answers
        at these places of the flattened rows are given (N, D).
        """
        if memory is None:
            sizes = [self.heads, self.kv_heads, self.kv_heads]
            parts = self._split(self.project(x_BLD)).split_with_sizes(sizes, 2)
            q_BHLK, k_BHLK, v_BHLK = (part.transpose(1, 2) for part in parts)
            q_BHLK, k_BHLK = view.positions.rotate(q_BHLK, k_BHLK, view.frame)
            new = KeyValue(k_BHLK, v_BHLK)
            memory = new if past is None else past.append(new)
        else:
            q_BHLK = self._part(x_BLD, slice(self.heads * self.head_width))
        q_BHLK = q_BHLK * self.scale
        how = How(self.score, view.keep, view.positions.bias(q_BHLK, view.frame, layer), self.drop)
        attend = view.attend or self.attend
        mixed_BHLK = attend(q_BHLK, self._grouped(memory.k_NHSK), self._grouped(memory.v_NHSK), how)
        mixed = mixed_BHLK.transpose(1, 2).flatten(2)
        return self.output(mixed if at_N is None else taken(mixed, at_N)), memory

    def _part(self, x_BLD: Tensor, rows: slice) -> Tensor:
        """Only some rows of the projection, which holds q, k and v one after the other: (B, n, L, K)."""
        bias = None if self.project.bias is None else self.project.bias[rows]
        return self._split(F.linear(x_BLD, self.project.weight[rows], bias)).transpose(1, 2)

    def _split(self, x: Tensor) -> Tensor:
        """Features into heads: (B, L, n K) -> (B, L, n, K)."""
        return x.view(*x.shape[:2], x.shape[2] // self.head_width, self.head_width)

    def _grouped(self, x_BHSK: Tensor) -> Tensor:
        """Each key or value head once for every query head that shares it."""
        return x_BHSK if self.kv_heads == self.heads else x_BHSK.repeat_interleave(self.heads // self.kv_heads, 1)
