"""What depth is worth without bends, and what it costs the gradient with the wrong ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.layers import ACTIVATIONS, FeedForward
from qkv.plots import COLOURS, DASHES, MARKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, ROWS = 256, 64
DEPTHS = (1, 2, 4, 8, 16, 24)
DEEP = DEPTHS[-1]


def linear_error(seed: int) -> float:
    """Four feed-forward parts of a block one after the other, with the identity between: how far they are, on new
    inputs, from the one linear map that their matrices multiply to."""
    torch.manual_seed(seed)
    parts = [FeedForward(width=32, feedforward=64, activation="identity", bias=False).double() for _ in range(4)]
    one_map = torch.eye(32, dtype=torch.float64)
    for part in parts:
        one_map = part.output.weight @ part.inner.weight @ one_map
    x = torch.randn(100, 32, dtype=torch.float64)
    y = x
    for part in parts:
        y = part(y)
    return float(((y - x @ one_map.T).abs().max() / y.abs().mean()).detach())


def steepest(activation: Callable[[Tensor], Tensor]) -> float:
    """The largest derivative anywhere between -10 and 10."""
    x = torch.linspace(-10, 10, 20_001, dtype=torch.float64, requires_grad=True)
    return float(torch.autograd.grad(activation(x).sum(), x)[0].max())


def surviving(activation: Callable[[Tensor], Tensor], gain: float, seed: int) -> tuple[list[float], float]:
    """The gradient that reaches the input of a stack, in units of that at its top, by depth; and the share of places
    where the activation passes none at all. Weights have a variance of `gain` squared over the width."""
    dice = torch.Generator().manual_seed(seed)
    maps = [torch.randn(WIDTH, WIDTH, generator=dice) * gain / math.sqrt(WIDTH) for _ in range(DEEP)]
    start, closed = torch.randn(ROWS, WIDTH, generator=dice), []
    sizes = []
    for depth in DEPTHS:
        x = start.clone().requires_grad_()
        y = x
        for one in maps[:depth]:
            before = y @ one
            y = activation(before)
            if depth == DEEP:
                closed.append(_closed(activation, before.detach()))
        pull = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
        sizes.append(float(torch.autograd.grad(y, x, pull)[0].norm() / pull.norm()))
    return sizes, sum(closed) / len(closed)


def _closed(activation: Callable[[Tensor], Tensor], before: Tensor) -> float:
    """Share of inputs whose derivative is exactly 0."""
    before = before.clone().requires_grad_()
    return float((torch.autograd.grad(activation(before).sum(), before)[0] == 0).float().mean())


def each_layer(sizes: Sequence[float]) -> float:
    """By what factor the gradient changes with every layer."""
    return float((sizes[-1] / sizes[0]) ** (1 / (DEPTHS[-1] - DEPTHS[0])))


def measure(setting: Setting) -> Measured:
    sigmoid, relu = ACTIVATIONS["sigmoid"], ACTIVATIONS["relu"]
    stacks = {
        "sigmoid": surviving(sigmoid, 1.0, setting.seed),
        "ReLU, variance 2/n": surviving(relu, math.sqrt(2), setting.seed),
        "ReLU, variance 1/n": surviving(relu, 1.0, setting.seed),
    }
    factors = {name: each_layer(sizes) for name, (sizes, _) in stacks.items()}
    return Measured(
        effects={
            "linear": linear_error(setting.seed),
            "quarter": steepest(sigmoid),
            "sigmoid": factors["sigmoid"],
            "relu": stacks["ReLU, variance 2/n"][1],
            "kept": factors["ReLU, variance 2/n"],
            "lost": factors["ReLU, variance 1/n"],
        },
        figures={f"factor a layer, {name}": factor for name, factor in factors.items()},
        series={name: sizes for name, (sizes, _) in stacks.items()},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    for number, name in enumerate(measured[0].series):
        rows = [one.series[name] for one in measured]
        means = [math.exp(sum(math.log(value) for value in column) / len(rows)) for column in zip(*rows, strict=True)]
        axes.plot(DEPTHS, means, color=COLOURS[number], linestyle=DASHES[number], marker=MARKS[number], label=name)
    axes.set_yscale("log")
    axes.set_xlabel("layers")
    axes.set_ylabel("gradient that reaches the input")
    axes.legend(frameon=False)


LAB = Lab(
    name="depth",
    question="Why non-linear activations, and why not the sigmoid?",
    usual="Linear layers collapse into one; sigmoids lose the gradient; ReLU's gradient is 1.",
    answer="Linear layers are one linear map. A sigmoid's derivative is at most 1/4, so its stacks lose gradient "
    "exponentially. ReLU's is 1 for positive inputs only, so it depends on how weights begin.",
    paragraphs=(
        "A linear map of a linear map is a linear map: however many layers without a bend, one matrix does the same. "
        "The lab multiplies the matrices of four feed-forward parts with the identity as their activation, and "
        "compares.",
        "With a bend, the gradient passes each layer through the derivative of the activation. The sigmoid's is at "
        "most 1/4, so that every layer takes away three quarters and more unless the weights are large. ReLU's "
        "derivative is 1, but only for positive inputs: at any moment about half of the places pass nothing. That half "
        "is what the variance 2/n of the initial weights makes up for (He et al. 2015); with 1/n the gradient falls by "
        "√2 a layer.",
    ),
    formula="gradient at the input = product over layers of (weights x derivative of the activation)",
    claims=(
        Claim(
            "linear",
            "A stack of linear layers is one linear map.",
            "linear algebra",
            "largest distance from the product of the matrices, in units of the answers",
            Rule(high=1e-10),
        ),
        Claim(
            "quarter",
            "The derivative of the sigmoid is at most 1/4.",
            "calculus",
            "its largest derivative",
            Rule(0.2499, 0.2501),
        ),
        Claim(
            "sigmoid",
            "Stacks of sigmoids lose gradient exponentially.",
            "Hochreiter 1991; Bengio et al. 1994",
            "factor by which the gradient changes with every layer",
            Rule(high=0.5),
        ),
        Claim(
            "relu",
            "ReLU's gradient is 1.",
            "often written",
            "share of places that pass no gradient, in 24 layers",
            Rule(0.3, 0.7),
            correction="It is 1 only for positive inputs; about half of the places pass nothing.",
        ),
        Claim(
            "kept",
            "Weights of variance 2/n keep the gradient of a ReLU stack.",
            "He et al. 2015",
            "factor by which the gradient changes with every layer",
            Rule(0.9, 1.1),
        ),
        Claim(
            "lost",
            "With variance 1/n it is lost all the same.",
            "He et al. 2015",
            "factor by which the gradient changes with every layer",
            Rule(0.6, 0.8),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/layers.py", "model/build.py"),
    tries=("qkv lab residual", "qkv lab xor"),
)
