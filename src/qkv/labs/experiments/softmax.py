"""What softmax does to scores, and what it does not: it saturates, and it does not overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model import attention
from qkv.model.dropout import Dropout
from qkv.plots import BLUE, COLOURS, PALE, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = (2.0, 1.0, 0.0)
PRINTED = (0.665, 0.245, 0.090)  # to three digits, as textbooks have them
FACTORS = tuple(2.0 ** (power / 2) for power in range(-2, 10))
LARGE = tuple(float(10**power) for power in range(5))


def weights_of(scores: Tensor) -> Tensor:
    """The weights that the model's attention gives to keys with these scores."""
    q_1111, k_11S1 = torch.ones(1, 1, 1, 1), scores.view(1, 1, -1, 1)
    how = attention.How(attention.dot, None, None, Dropout(0.0))
    return attention.weigh(q_1111, k_11S1, how).flatten()


def gradient_size(scores: Tensor) -> float:
    """How strongly the weights react to the scores: the norm of all their derivatives."""
    return float(torch.autograd.functional.jacobian(weights_of, scores).norm())


def naive_limit() -> float:
    """The largest score whose exponential float32 can hold, found by halving."""
    low, high = 0.0, 1000.0
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if torch.tensor(middle).exp().isfinite() else (low, middle)
    return low


def measure(setting: Setting) -> Measured:
    scores = torch.tensor(SCORES)
    weights = weights_of(scores).tolist()
    sizes = [gradient_size(factor * scores) for factor in FACTORS]
    broken = [not bool(weights_of(factor * scores).isfinite().all()) for factor in LARGE]
    return Measured(
        effects={
            "numbers": max(abs(a - b) for a, b in zip(weights, PRINTED, strict=True)),
            "saturation": gradient_size(10 * scores) / gradient_size(scores),
            "overflow": sum(broken) / len(broken),
            "naive": naive_limit(),
        },
        figures={
            "sum of e^2, e^1, e^0": sum(math.exp(score) for score in SCORES),
            **{f"weight of score {score:g}": weight for score, weight in zip(SCORES, weights, strict=True)},
        },
        series={"weights": weights, "gradient": sizes},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, right = figure.subplots(1, 2)
    weights, sizes = measured[0].series["weights"], measured[0].series["gradient"]
    bars = left.bar([f"{score:g}" for score in SCORES], weights, color=PALE, edgecolor=BLUE)
    left.bar_label(bars, [f"{weight:.3f}" for weight in weights])
    left.set_xlabel("score")
    left.set_ylabel("weight")
    right.plot([2 * factor for factor in FACTORS], sizes, color=COLOURS[0], marker="o")
    right.set_yscale("log")
    right.set_ylim(1e-12, 3)
    right.axvline(measured[0].effects["naive"], color=RED, linestyle="--")
    right.annotate("e^x overflows here,\nthe model does not", (measured[0].effects["naive"], 1e-6), (-8, 0),
                   textcoords="offset points", ha="right", va="center", color=RED)  # fmt: skip
    right.set_xlabel("largest score (second: half of it, third: 0)")
    right.set_ylabel("how weights react to scores")
    right.set_xlim(0, 100)


LAB = Lab(
    name="softmax",
    question="What does softmax make of scores, and why must they not be large?",
    usual="It turns scores into probabilities; with large scores the exponentials overflow.",
    answer="It turns scores into shares that sum to one; with large scores one share is nearly 1 and hardly anything "
    "can be learnt any more. It does not overflow, because the largest score is subtracted first.",
    paragraphs=(
        "Attention asks every key how well it fits. The answers are scores of any size; softmax turns them into "
        "weights between 0 and 1 that sum to one, by letting each score stand in an exponent. Two scores that differ "
        "by 1 get weights that differ by the factor e, wherever they lie: only differences count, so subtracting the "
        "same number from all changes nothing. Every implementation uses that and subtracts the largest score first.",
        "Ten times larger scores have ten times larger differences, and then one weight is nearly 1 and the others "
        "nearly 0. The weights no longer react when a score changes a little, so the gradient that should teach the "
        "scores is nearly zero. That is the harm of large scores, and the reason for the division by the square root "
        "of the head width (see the lab `scale`).",
    ),
    formula="weight(i) = e^score(i) / (e^score(1) + ... + e^score(n))",
    claims=(
        Claim(
            "numbers",
            "softmax(2, 1, 0) is (0.665, 0.245, 0.090); the exponentials sum to 11.107.",
            "any textbook; worked by hand",
            "largest distance of the model's three weights from these",
            Rule(high=5e-4),
        ),
        Claim(
            "saturation",
            "Where softmax is saturated, hardly any gradient passes.",
            "Vaswani et al. 2017, section 3.2.1",
            "gradient at scores (20, 10, 0), as a share of that at (2, 1, 0)",
            Rule(high=0.01),
        ),
        Claim(
            "overflow",
            "Large scores are harmful because softmax overflows.",
            "often written",
            "share of score ranges from 1 to 10,000 in which the model gives a weight that is no finite number",
            Rule(high=0.0),
            correction="The harm is saturation. The largest score is subtracted before the exponential, so that no "
            "finite scores overflow.",
        ),
        Claim(
            "naive",
            "The exponential alone, without that subtraction, overflows near 88 in float32.",
            "largest float32: 3.4e38 = e^88.7",
            "the largest score whose exponential is finite",
            Rule(88.0, 89.0),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/attention.py",),
    tries=("qkv lab scale", "qkv explain"),
    seeds=1,
)
