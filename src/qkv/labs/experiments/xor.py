"""Exclusive or: what one linear map cannot do, and a hidden layer can if something bends in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.labs.baselines import Layers, Perceptron
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.layers import FeedForward
from qkv.plots import BLUE, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

POINTS = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
ANSWERS = torch.tensor([0.0, 1.0, 1.0, 0.0])
HIDDEN, STEPS, RATE = 16, 400, 0.05
GRID = 41  # points of the picture, each way


class OfABlock(nn.Module):
    """The feed-forward part of a Transformer's block, and a map that reads one answer from what it gives."""

    def __init__(self, activation: str) -> None:
        super().__init__()
        self.feed = FeedForward(width=2, feedforward=HIDDEN, activation=activation, bias=True)
        self.read = Perceptron(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.feed(x))


def trained(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Learn the four points by heart, if the model can."""
    optimiser = torch.optim.Adam(model.parameters(), RATE)
    for _ in range(STEPS):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(model(POINTS), ANSWERS).backward()
        optimiser.step()

    def answer(x: Tensor) -> Tensor:
        with torch.no_grad():
            return model(x)

    return answer


def right(answer: Callable[[Tensor], Tensor]) -> float:
    """Share of the four points that are told right."""
    return float(((answer(POINTS) > 0) == (ANSWERS > 0)).float().mean())


def best_line(seed: int, tries: int) -> float:
    """The best of many straight lines drawn by chance: a perceptron can be no other than one of these."""
    dice = torch.Generator().manual_seed(seed)
    weights_2T = torch.randn(2, tries, generator=dice)
    through_T = torch.rand(2, tries, generator=dice) * 2 - 0.5  # a point that the line goes through, near the four
    sides_4T = POINTS @ weights_2T - (weights_2T * through_T).sum(0)
    return float(((sides_4T > 0) == (ANSWERS > 0)[:, None]).float().mean(0).max())


def measure(setting: Setting) -> Measured:
    torch.manual_seed(setting.seed)
    hidden = Layers([2, HIDDEN, 1], nn.Tanh())
    models = {
        "perceptron": trained(Perceptron(2)),
        "hidden": trained(nn.Sequential(hidden, nn.Flatten(0))),
        "block": trained(OfABlock("gelu")),
        "straight": trained(OfABlock("identity")),
    }
    effects = {name: right(answer) for name, answer in models.items()}
    tries = 1_000_000 if setting.full else 100_000
    effects["perceptron"] = max(effects["perceptron"], best_line(setting.seed, tries))
    axis = torch.linspace(-0.5, 1.5, GRID)
    grid = torch.cartesian_prod(axis, axis)
    return Measured(
        effects,
        figures={"lines tried": tries},
        series={name: models[name](grid).sigmoid().tolist() for name in ("perceptron", "block")},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    titles = {"perceptron": "a perceptron: one straight line", "block": "a block's feed-forward part"}
    for axes, (name, title) in zip(figure.subplots(1, 2, sharey=True), titles.items(), strict=True):
        values = torch.tensor(measured[0].series[name]).view(GRID, GRID).T.tolist()
        axes.contourf(
            torch.linspace(-0.5, 1.5, GRID).tolist(), torch.linspace(-0.5, 1.5, GRID).tolist(), values,
            levels=[0, 0.5, 1], colors=["#ffffff", "#dceaf5"],
        )  # fmt: skip
        for (x, y), wanted in zip(POINTS.tolist(), ANSWERS.tolist(), strict=True):
            axes.plot(x, y, "o" if wanted else "X", color=BLUE if wanted else RED, markersize=12)
        axes.set_title(title)
        axes.set_xlabel("first input (circle: answer 1, cross: answer 0)")
    figure.axes[0].set_ylabel("second input")


LAB = Lab(
    name="xor",
    question="Why does a network need a hidden layer with a non-linearity?",
    usual="A perceptron cannot compute exclusive or; a hidden layer can.",
    answer="No straight line parts the four points, so a perceptron has at most three of four right. A hidden layer "
    "has all four, but only if it is not linear.",
    paragraphs=(
        "Exclusive or is 1 where exactly one of two inputs is 1. Draw the four cases as points: those that are 1 lie "
        "across from each other, and no straight line has both on one side and the others on the other. A perceptron "
        "is such a line, so three of four is the best it can do (Minsky and Papert, 1969).",
        "A hidden layer first moves the points so that a line can part them. It must bend them: a linear layer after a "
        "linear layer is one linear layer again. The same is true of the feed-forward part in every block of a "
        "Transformer, which is nothing but such a hidden layer: with the identity for its activation it fails here.",
    ),
    formula="xor(0,0) = 0, xor(0,1) = 1, xor(1,0) = 1, xor(1,1) = 0",
    claims=(
        Claim(
            "perceptron",
            "A perceptron cannot do exclusive or.",
            "Minsky and Papert 1969",
            "best share of the four points, of a trained one and of lines drawn by chance",
            Rule(0.75, 0.75),
        ),
        Claim(
            "hidden",
            "A hidden layer with a non-linearity can.",
            "Rumelhart et al. 1986",
            "share of the four points",
            Rule(1.0, 1.0),
        ),
        Claim(
            "block",
            "So can the feed-forward part of a Transformer's block.",
            "Vaswani et al. 2017, section 3.3",
            "share of the four points",
            Rule(1.0, 1.0),
        ),
        Claim(
            "straight",
            "Without the non-linearity it cannot.",
            "follows from linear algebra",
            "share of the four points, with the identity as activation",
            Rule(0.0, 0.75),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/layers.py", "labs/baselines.py"),
    tries=("qkv lab depth", "qkv lab xor --full"),
    seeds=5,
)
