"""One attention head, worked through step by step.

B batch · L length · D width · H heads · K head width
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from qkv.model.attention import Attention, How, View, fused, weigh


@dataclass(frozen=True)
class Inside:
    """One self-attention over one sequence. H heads, L tokens, head width K."""

    q_HLK: Tensor  # what each token looks for, before scaling
    k_HLK: Tensor  # what each token offers
    v_HLK: Tensor  # what each token holds
    scale: float
    weights_HLL: Tensor
    mixed_HLK: Tensor  # by the fused kernel, which never sees the weights


@dataclass(frozen=True)
class Worked:
    """What one query of one head does, in the order of the arithmetic."""

    products: list[float]  # query . key, one for each key
    scaled: list[float]  # times the scale
    exponentials: list[float]  # e to the power of that
    weights: list[float]  # divided by their sum
    output: list[float]  # the values in these proportions


def look_inside(attention: Attention, x_LD: Tensor, keep: Tensor | None = None) -> Inside:
    """Run one attention and keep everything. `keep` is a mask as in `qkv.model.masks`."""
    seen: list[Inside] = []

    def attend(q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, how: How) -> Tensor:
        mixed = fused(q_BHLK, k_BHLK, v_BHLK, how)
        q = q_BHLK / attention.scale
        seen.append(Inside(q[0], k_BHLK[0], v_BHLK[0], attention.scale, weigh(q_BHLK, k_BHLK, how)[0], mixed[0]))
        return mixed

    with torch.no_grad():
        attention(x_LD[None], View(keep=keep, attend=attend))
    return seen[0]


def work_through(inside: Inside, position: int, head: int = 0) -> Worked:
    """One query's answer in plain Python numbers, from q, k and v alone: softmax(q . k x scale) v, written out."""
    query, keys, values = (t[head].tolist() for t in (inside.q_HLK, inside.k_HLK, inside.v_HLK))
    products = [sum(a * b for a, b in zip(query[position], key, strict=True)) for key in keys]
    scaled = [product * inside.scale for product in products]
    exponentials = [math.exp(score) for score in scaled]
    weights = [e / sum(exponentials) for e in exponentials]
    output = [sum(w * value[i] for w, value in zip(weights, values, strict=True)) for i in range(len(values[0]))]
    return Worked(products, scaled, exponentials, weights, output)
