"""How a Transformer knows the order of its tokens: seven schemes that act through three doors.

Without positions and without a causal mask, self-attention is permutation-equivariant (measured by `qkv lab order`): it
treats its input as a set. A scheme enters at one of
    embed   the vector of a token, before the first layer      sinusoidal, learned
    rotate  queries and keys, before they are compared         rotary
    bias    the score of a query and a key                     relative, t5, alibi
and leaves the other two as they are, so attention itself needs to know no scheme. The stack owns the scheme and
computes its `frame` once a pass: what depends on positions only, shared by all layers.

B batch · L queries · S keys · D width · H heads · K head width · R distances told apart
Positions are integer tensors (1 or B, L): left padding, packing and caches are only other numbers in them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.schema import UserError

Frame = tuple[Tensor, ...]


class Positions(nn.Module, ABC):
    """The three doors. `pos_q` are the new positions, `pos_k` all that can be attended to, the remembered included;
    `like` is any tensor of the wanted type."""

    @abstractmethod
    def embed(self, x_BLD: Tensor, pos: Tensor) -> Tensor: ...

    @abstractmethod
    def frame(self, pos_q: Tensor, pos_k: Tensor, like: Tensor) -> Frame: ...

    @abstractmethod
    def rotate(self, q_BHLK: Tensor, k_BHLK: Tensor, frame: Frame) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def bias(self, q_BHLK: Tensor, frame: Frame, layer: int) -> Tensor | None: ...


class _NoEmbed(Positions):
    def embed(self, x_BLD: Tensor, pos: Tensor) -> Tensor:
        return x_BLD


class _NoFrame(Positions):
    def frame(self, pos_q: Tensor, pos_k: Tensor, like: Tensor) -> Frame:
        return ()


class _NoRotate(Positions):
    def rotate(self, q_BHLK: Tensor, k_BHLK: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        return q_BHLK, k_BHLK


class _NoBias(Positions):
    def bias(self, q_BHLK: Tensor, frame: Frame, layer: int) -> Tensor | None:
        return None


class NoPositions(_NoEmbed, _NoFrame, _NoRotate, _NoBias):
    """All doors shut: for cross-attention, and to see what order is worth."""


class Sinusoidal(_NoFrame, _NoRotate, _NoBias):
    """Waves of geometrically growing length added to the token vectors (Vaswani et al., 2017, section 3.5).

    The sines come first, then the cosines; the paper interleaves them, the same up to the order of features. A
    shift is a linear map (measured by `qkv lab positions`).
    """

    def embed(self, x_BLD: Tensor, pos: Tensor) -> Tensor:
        width = x_BLD.shape[-1]
        angles = _angles(pos, width, 10_000.0)
        waves = torch.cat([angles.sin(), angles[..., : width // 2].cos()], -1)
        return x_BLD + waves.to(x_BLD.dtype)


class Learned(_NoFrame, _NoRotate, _NoBias):
    """A trained vector for each position below `context`, added to the token vectors (Gehring et al., 2017; BERT)."""

    def __init__(self, context: int, width: int) -> None:
        super().__init__()
        self.context = context
        self.table = nn.Parameter(torch.empty(context, width))

    def embed(self, x_BLD: Tensor, pos: Tensor) -> Tensor:
        try:
            return x_BLD + F.embedding(pos, self.table)
        except IndexError:
            raise UserError(
                f"position {int(pos.max())} has no learned vector: model.context = {self.context} allows 0 to "
                f"{self.context - 1}; truncate the input, or train with a larger context or other positions"
            ) from None


class Rotary(_NoEmbed, _NoBias):
    """Turns each pair of features of q and k by an angle that grows with position, so that q.k depends on the distance
    only (Su et al., 2021, section 3.2). Feature i is paired with i + K/2, as in Llama; the paper pairs neighbours.

    Masked-token training leaves its plateau far earlier with rotary than with learned positions (measured by `qkv lab
    long-range`).
    """

    def __init__(self, base: float, head_width: int) -> None:
        super().__init__()
        self.base, self.head_width = base, head_width

    def frame(self, pos_q: Tensor, pos_k: Tensor, like: Tensor) -> Frame:
        angles = _angles(pos_q, self.head_width, self.base)[
            :, None
        ]  # (1 or B, 1, L, K/2); remembered keys are turned already
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    def rotate(self, q_BHLK: Tensor, k_BHLK: Tensor, frame: Frame) -> tuple[Tensor, Tensor]:
        return _turned(q_BHLK, *frame), _turned(k_BHLK, *frame)


class Relative(_NoEmbed, _NoRotate):
    """A trained vector for each clipped distance, compared with the query (Shaw et al., 2018, equation 5; keys only).

    A table for each layer, shared by its heads.
    """

    def __init__(self, layers: int, reach: int, head_width: int) -> None:
        super().__init__()
        self.reach = reach
        self.table = nn.Parameter(torch.empty(layers, 2 * reach + 1, head_width))

    def frame(self, pos_q: Tensor, pos_k: Tensor, like: Tensor) -> Frame:
        return (_distance(pos_q, pos_k).clamp(-self.reach, self.reach) + self.reach,)

    def bias(self, q_BHLK: Tensor, frame: Frame, layer: int) -> Tensor:
        (index,) = frame
        scores_BHLR = q_BHLK @ self.table[layer].T
        return scores_BHLR.gather(-1, index[:, None].expand(*q_BHLK.shape[:3], -1))


class T5(_NoEmbed, _NoRotate):
    """A trained number for each head and bucket of distances, fine nearby, logarithmic far away (Raffel et al., 2020,
    section 2.1). One table for all layers of a stack."""

    def __init__(self, heads: int, buckets: int, reach: int, causal: bool) -> None:
        super().__init__()
        self.buckets, self.reach, self.causal = buckets, reach, causal
        self.table = nn.Parameter(torch.empty(buckets, heads))

    def frame(self, pos_q: Tensor, pos_k: Tensor, like: Tensor) -> Frame:
        return (F.embedding(self.bucket(_distance(pos_q, pos_k)), self.table).permute(0, 3, 1, 2),)

    def bucket(self, distance: Tensor) -> Tensor:
        """Half of the buckets hold one distance each, the rest grow logarithmically up to `reach`. Looking both ways,
        keys after the query have the second half of all buckets."""
        count = self.buckets if self.causal else self.buckets // 2
        after = torch.zeros_like(distance) if self.causal else (distance > 0).long() * count
        gap = (-distance).clamp(min=0) if self.causal else distance.abs()
        exact = count // 2
        log_share = torch.log(gap.clamp(min=1).float() / exact) / math.log(self.reach / exact)
        far = exact + (log_share * (count - exact)).long()
        return after + torch.where(gap < exact, gap, far.clamp(max=count - 1))

    def bias(self, q_BHLK: Tensor, frame: Frame, layer: int) -> Tensor:
        return frame[0]


class Alibi(_NoEmbed, _NoRotate):
    """A penalty that grows with distance, at a fixed slope for each head (Press et al., 2022, section 3)."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def frame(self, pos_q: Tensor, pos_k: Tensor, like: Tensor) -> Frame:
        slopes_H11 = torch.tensor(alibi_slopes(self.heads), dtype=like.dtype, device=like.device)[:, None, None]
        return (-slopes_H11 * _distance(pos_q, pos_k).abs()[:, None],)

    def bias(self, q_BHLK: Tensor, frame: Frame, layer: int) -> Tensor:
        return frame[0]


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/H), 2^(-16/H), ... for H a power of two (Press et al., 2022, section 3); else, as in its authors' code,
    those of the power below, then every other one of the power above."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    return slopes + [2 ** (-4 * (2 * i + 1) / power) for i in range(heads - power)]


def _distance(pos_q: Tensor, pos_k: Tensor) -> Tensor:
    """How far each key is after each query (1 or B, L, S); negative: before."""
    return pos_k[:, None, :] - pos_q[:, :, None]


def _angles(pos: Tensor, width: int, base: float) -> Tensor:
    """pos / base^(2i / width), of shape (1 or B, L, half the width rounded up).

    In float64: an angle near 1,000 in float32 has lost three digits.
    """
    i = torch.arange((width + 1) // 2, device=pos.device, dtype=torch.float64)
    return pos[..., None] * base ** (-2 * i / width)


def _turned(x_BHLK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x_BHLK.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
