"""What is read off the last layer: logits of a token for each position, or one answer for a whole text.

N positions of any shape · B batch · L length · D width · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.attention import Linear, taken
from qkv.model.dropout import Dropout
from qkv.model.layers import ACTIVATIONS


class TokenHead(nn.Module):
    """Logits of every token (N, V).

    Tied (Press and Wolf, 2017), it has no table of its own and reads the one it is given, so that there is one tensor
    to train, to save and to load. `transform` is BERT's extra layer before the output; `scaled` divides by sqrt(width).
    """

    def __init__(
        self, *, width: int, vocabulary: int, tied: bool, bias: bool, scaled: bool, transform: nn.Module
    ) -> None:
        super().__init__()
        self.factor = width**-0.5 if scaled else 1.0
        self.transform = transform
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.empty(vocabulary)) if bias else None

    def forward(self, hidden_ND: Tensor, table_VD: Tensor) -> Tensor:
        x_ND = self.transform(hidden_ND)
        if self.factor != 1.0:
            x_ND = x_ND * self.factor
        return F.linear(x_ND, table_VD if self.weight is None else self.weight, self.bias)


class Transform(nn.Module):
    """Dense layer, activation, norm: what BERT puts between the last layer and the output (Devlin et al., 2019)."""

    def __init__(self, *, width: int, activation: str, norm: nn.Module) -> None:
        super().__init__()
        self.dense = Linear(width, width)
        self.activation = ACTIVATIONS[activation]
        self.norm = norm

    def forward(self, hidden_ND: Tensor) -> Tensor:
        return self.norm(self.activation(self.dense(hidden_ND)))


class TextHead(nn.Module):
    """One answer for a whole text: next sentence or not (2 outputs), classes, or a number (1 output).

    A vector is pooled from the last layer, goes through an optional dense layer (the pooler), then to the outputs.
    With outputs = 0 the pooled vector itself is the answer.
    """

    def __init__(self, *, width: int, pool: str, pooler: str, outputs: int, bias: bool, dropout: float) -> None:
        super().__init__()
        self.pool, self.place = POOLS[pool], PLACES.get(pool)
        self.dense = None if pooler == "none" else Linear(width, width)
        self.activation = ACTIVATIONS["identity" if pooler == "none" else pooler]
        self.drop = Dropout(dropout)
        self.output = Linear(width, outputs, bias) if outputs else None

    def forward(self, hidden_BLD: Tensor, keep_BL: Tensor | None = None) -> Tensor:
        if keep_BL is None:
            keep_BL = hidden_BLD.new_ones(hidden_BLD.shape[:2], dtype=torch.bool)
        return self.answer(self.pool(hidden_BLD, keep_BL))

    def answer(self, x_BD: Tensor) -> Tensor:
        """The answers for pooled vectors."""
        x_BD = self.vector(x_BD)
        return x_BD if self.output is None else self.output(self.drop(x_BD))

    def vector(self, x_BD: Tensor) -> Tensor:
        """What the output layer reads, for pooled vectors."""
        return x_BD if self.dense is None else self.activation(self.dense(x_BD))


def _first(keep_BL: Tensor) -> Tensor:
    """The first visible token: [CLS]."""
    return keep_BL.int().argmax(1)


def _last(keep_BL: Tensor) -> Tensor:
    """The last visible token: the only one of a decoder that has seen the whole text."""
    return keep_BL.shape[1] - 1 - keep_BL.flip(1).int().argmax(1)


def _mean(hidden_BLD: Tensor, keep_BL: Tensor) -> Tensor:
    """The mean of the visible tokens; zero where there is none."""
    keep_BL1 = keep_BL[..., None].to(hidden_BLD.dtype)
    return (hidden_BLD * keep_BL1).sum(1) / keep_BL1.sum(1).clamp(min=1)


def place_in_rows(place: Callable[[Tensor], Tensor], keep_BL: Tensor) -> Tensor:
    """Where in the flattened rows each row's own place is."""
    rows, length = keep_BL.shape
    return place(keep_BL) + length * torch.arange(rows, device=keep_BL.device)


def _first_vector(hidden_BLD: Tensor, keep_BL: Tensor) -> Tensor:
    return taken(hidden_BLD, place_in_rows(_first, keep_BL))


def _last_vector(hidden_BLD: Tensor, keep_BL: Tensor) -> Tensor:
    return taken(hidden_BLD, place_in_rows(_last, keep_BL))


PLACES: dict[str, Callable[[Tensor], Tensor]] = {"first": _first, "last": _last}
POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"first": _first_vector, "mean": _mean, "last": _last_vector}
