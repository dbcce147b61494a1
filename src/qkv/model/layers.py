"""The block every Transformer is a stack of: attention, perhaps attention to a source, then a feed-forward part,
each inside a residual connection with a norm.

B batch · L length · D width · F feed-forward width
"""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from qkv.model.attention import Attention, Linear, View, taken
from qkv.model.cache import KeyValue
from qkv.model.dropout import Dropout
from qkv.schema import UserError


class BatchNorm(nn.Module):
    """Normalises each feature over all tokens of the batch, padding included (Ioffe and Szegedy, 2015).

    The contrast to LayerNorm: what a token becomes depends on its neighbours in the batch.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.inner = nn.BatchNorm1d(width, eps)

    def forward(self, x_BLD: Tensor) -> Tensor:
        tokens = x_BLD.flatten(0, -2)
        if self.training and len(tokens) < 2:
            raise UserError(
                f"norm = 'batch' needs at least 2 tokens in a training batch to have a variance; found {len(tokens)}"
            )
        return self.inner(tokens).view_as(x_BLD)


# LayerNorm does not depend on batch size or length; BatchNorm does (measured by `qkv lab norm`).
NORMS: dict[str, Callable[[int, float, bool], nn.Module]] = {
    "layer": lambda width, eps, bias: nn.LayerNorm(width, eps, bias=bias),  # Ba et al., 2016
    "rms": lambda width, eps, bias: nn.RMSNorm(width, eps),  # Zhang and Sennrich, 2019
    "batch": lambda width, eps, bias: BatchNorm(width, eps),
    "none": lambda width, eps, bias: nn.Identity(),
}


def swiglu(x: Tensor) -> Tensor:
    """silu(gate) x value: the first half of the features lets the second through (Shazeer, 2020)."""
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


# A stack of linear layers is one linear map (measured by `qkv lab depth`).
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "swiglu": swiglu,
    "sigmoid": F.sigmoid,
    "tanh": F.tanh,
    "identity": lambda x: x,
}
GATED = {"swiglu"}  # take twice the features they give


class FeedForward(nn.Module):
    """Two linear maps with a non-linearity between, for each token alone (Vaswani et al., 2017, section 3.3).

    A perceptron cannot do exclusive or. A hidden layer with a non-linearity can (measured by `qkv lab xor`).
    """

    def __init__(self, *, width: int, feedforward: int, activation: str, bias: bool) -> None:
        super().__init__()
        self.inner = Linear(width, feedforward * (2 if activation in GATED else 1), bias)
        self.activation = ACTIVATIONS[activation]
        self.output = Linear(feedforward, width, bias)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.output(self.activation(self.inner(x_BLD)))


class Residual(nn.Module):
    """What surrounds every part of a block: norm, dropout, and the sum that keeps a path of gradient one.

    Residuals keep token i's state about token i (measured by `qkv lab residual`).

    post   norm(x + part(x))   the 2017 paper, BERT
    pre    x + part(norm(x))   GPT-2, Llama (Xiong et al., 2020)
    """

    def __init__(self, *, norm: nn.Module, place: str, residual: bool, dropout: float) -> None:
        super().__init__()
        self.norm, self.drop = norm, Dropout(dropout)
        self.pre, self.residual = place == "pre", residual

    def before(self, x_BLD: Tensor) -> Tensor:
        """What the part is given."""
        return self.norm(x_BLD) if self.pre else x_BLD

    def after(self, x_BLD: Tensor, part_BLD: Tensor) -> Tensor:
        """What goes on, from the block's own x and the part's answer."""
        y_BLD = self.drop(part_BLD)
        if self.residual:
            y_BLD = x_BLD + y_BLD
        return y_BLD if self.pre else self.norm(y_BLD)


class Block(nn.Module):
    """One layer. With `cross`, its middle part asks a source sequence: Q from the target, K and V from the source."""

    def __init__(
        self,
        *,
        layer: int,
        attention: Attention,
        cross: Attention | None,
        feed: FeedForward,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.layer = layer
        self.attention, self.attention_residual = attention, residual()
        self.cross, self.cross_residual = cross, None if cross is None else residual()
        self.feed, self.feed_residual = feed, residual()
        # Where nothing but self-attention mixes tokens, those that nobody asks for can be left out after it.
        self.each_alone = cross is None and not isinstance(self.feed_residual.norm, BatchNorm)

    def forward(
        self,
        x_BLD: Tensor,
        view: View,
        *,
        past: KeyValue | None = None,
        memory: KeyValue | None = None,
        memory_view: View | None = None,
        at_N: Tensor | None = None,
    ) -> tuple[Tensor, KeyValue]:
        """The next x_BLD, and this layer's own keys and values for a cache. With `at_N`, x is wanted at these places
        of the flattened rows only (N, D): what no other token will ask for need not be computed."""
        y_BLD, own = self.attention(self.attention_residual.before(x_BLD), view, layer=self.layer, past=past, at_N=at_N)
        x_BLD = self.attention_residual.after(x_BLD if at_N is None else taken(x_BLD, at_N), y_BLD)
        if self.cross is not None and self.cross_residual is not None:
            if memory is None or memory_view is None:
                raise ValueError("a block with cross-attention needs the memory of a source")
            y_BLD, _ = self.cross(self.cross_residual.before(x_BLD), memory_view, memory=memory)
            x_BLD = self.cross_residual.after(x_BLD, y_BLD)
        y_BLD = self.feed(self.feed_residual.before(x_BLD))
        return self.feed_residual.after(x_BLD, y_BLD), own
