"""Why scores are divided by the square root of the head width: not more, not less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.labs import texts
from qkv.labs.arms import Bench, bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting, mean_series
from qkv.model import attention
from qkv.model.dropout import Dropout
from qkv.plots import COLOURS, DASHES, MARKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTHS = (4, 16, 64, 256, 1024)
PAIRS, KEYS, QUERIES = 40_000, 64, 1024
SCALES = ("sqrt", "none", "full")
SMALL, LARGE = WIDTHS[0], WIDTHS[-1]


def unit(*shape: int, dice: torch.Generator) -> Tensor:
    """Vectors whose features have mean 0 and variance 1."""
    return torch.randn(*shape, generator=dice)


def deviation(width: int, dice: torch.Generator) -> float:
    """Standard deviation of the model's dot products of such vectors."""
    products = []
    for _ in range(8):
        q, k = (unit(PAIRS // 8, 1, 1, width, dice=dice) for _ in range(2))
        products.append(attention.dot(q, k).flatten())
    return float(torch.cat(products).std())


def attending(width: int, scale: str, dice: torch.Generator) -> tuple[float, float]:
    """Of queries and keys of unit variance: the entropy of the weights as a share of the largest possible, and how
    strongly the weights react to the scores (the mean norm of their derivatives)."""
    part = attention.Attention(
        width=width, heads=1, kv_heads=1, head_width=width, score="dot", scale=scale, bias=False, dropout=0.0
    )
    q = unit(1, 1, QUERIES, width, dice=dice) * part.scale
    k = unit(1, 1, KEYS, width, dice=dice)
    weights = attention.weigh(q, k, attention.How(part.score, None, None, Dropout(0.0)))[0, 0]
    entropy = -(weights * weights.clamp_min(1e-30).log()).sum(-1).mean() / math.log(KEYS)
    jacobians = torch.diag_embed(weights) - weights[:, :, None] * weights[:, None, :]
    return float(entropy), float(jacobians.flatten(1).norm(dim=1).mean())


def final_loss(place: Bench, corpus: str, scale: str, setting: Setting) -> tuple[float, list[float]]:
    """Train a decoder whose one head is wide on real text: its loss on held-out text, and on the way."""
    train = settings(400 if setting.full else 120, rate=2e-3)
    arm = place.decoder(f"scale {scale}", corpus, setting, train, width=128, heads=1, feedforward=256, scale=scale)
    return arm.loss, list(arm.losses)


def measure(setting: Setting) -> Measured:
    dice = torch.Generator().manual_seed(setting.seed)
    deviations = [deviation(width, dice) for width in WIDTHS]
    looks = {scale: [attending(width, scale, dice) for width in WIDTHS] for scale in SCALES}
    with bench(setting.tick) as place:
        corpus = place.text("help", texts.paragraphs())
        ends = {scale: final_loss(place, corpus, scale, setting) for scale in SCALES}
    entropy = {scale: [one for one, _ in looks[scale]] for scale in SCALES}
    gradient = {scale: [one for _, one in looks[scale]] for scale in SCALES}
    return Measured(
        effects={
            "growth": max(abs(d / math.sqrt(width) - 1) for d, width in zip(deviations, WIDTHS, strict=True)),
            "saturates": entropy["none"][-1] / entropy["sqrt"][-1],
            "vanishes": gradient["none"][-1] / gradient["sqrt"][-1],
            "small": gradient["none"][0] / gradient["sqrt"][0],
            "training": ends["none"][0] - ends["sqrt"][0],
            "twice": entropy["full"][-1],
        },
        figures={
            **{f"deviation at {width}": d for width, d in zip(WIDTHS, deviations, strict=True)},
            **{f"loss with {scale}": loss for scale, (loss, _) in ends.items()},
        },
        series={
            **{f"entropy {scale}": entropy[scale] for scale in SCALES},
            **{f"losses {scale}": losses for scale, (_, losses) in ends.items()},
        },
    )


NAMES = {"sqrt": "divided by √d_k", "none": "not divided", "full": "divided by d_k"}


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, right = figure.subplots(1, 2)
    for number, scale in enumerate(SCALES):
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKS[number]}
        left.plot(WIDTHS, mean_series(measured, f"entropy {scale}"), label=NAMES[scale], **look)
        means = mean_series(measured, f"losses {scale}")
        right.plot([100 * (n + 1) / len(means) for n in range(len(means))], means, markevery=4, **look)
    left.set_xscale("log", base=2)
    left.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    left.set_ylim(0, 1.05)
    left.set_xlabel("head width d_k")
    left.set_ylabel("entropy of the weights (1: all alike)")
    right.set_xlabel("training done, %")
    right.set_ylabel("loss of a decoder with d_k = 128")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)


LAB = Lab(
    name="scale",
    question="Why are the scores divided by the square root of d_k?",
    usual="Because dot products grow with the width and softmax would saturate.",
    answer="Dot products of unit-variance vectors have a deviation of √d_k; undivided, softmax saturates where d_k is "
    "large, and its gradient vanishes. Divided by d_k itself, attention is flat.",
    paragraphs=(
        "A dot product sums d_k products of two numbers of variance 1, so its variance is d_k and its deviation √d_k. "
        "With d_k = 64 scores of 8 or -8 are nothing unusual, and e^8 is 3,000 times e^0: a few keys get everything. "
        "The weights then hardly react to the scores, and what should be learnt has no gradient (see the lab "
        "`softmax`). Divided by √d_k the scores have a deviation of 1 whatever the width.",
        "With small heads it hardly matters: at d_k = 4 the undivided scores have a deviation of 2. And dividing "
        "twice, by d_k, is as wrong in the other direction: the scores are then so small that all keys get nearly the "
        "same weight, and attention is a mean. The last measurement trains a decoder with one head of 128 on real text "
        "each way.",
    ),
    formula="attention(Q, K, V) = softmax(Q K^T / √d_k) V",
    claims=(
        Claim(
            "growth",
            "Dot products of unit-variance vectors grow like √d_k.",
            "Vaswani et al. 2017, section 3.2.1, note 4",
            "largest relative distance of their deviation from √d_k, d_k = 4 to 1,024",
            Rule(high=0.03),
        ),
        Claim(
            "saturates",
            "Unscaled, softmax saturates at large d_k: attention sits on few positions.",
            "Vaswani et al. 2017, section 3.2.1",
            "entropy of unscaled weights at d_k = 1,024, as a share of scaled ones",
            Rule(high=0.3),
        ),
        Claim(
            "vanishes",
            "Its gradient then vanishes.",
            "Vaswani et al. 2017, section 3.2.1",
            "gradient of unscaled softmax at d_k = 1,024, as a share of that of the scaled one",
            Rule(high=0.5),
        ),
        Claim(
            "small",
            "At small d_k it hardly does.",
            "Vaswani et al. 2017, section 3.2.1",
            "the same at d_k = 4",
            Rule(low=0.8),
        ),
        Claim(
            "training",
            "A decoder with a wide head learns worse without the division.",
            "Vaswani et al. 2017, section 3.2.1",
            "loss without, less loss with it (nats a word, held-out text)",
            Rule(low=0.0),
        ),
        Claim(
            "twice",
            "The scores are divided by √d_k twice.",
            "found in print",
            "entropy of the weights divided by d_k = 1,024, as a share of the largest possible",
            Rule(low=0.99),
            correction="Divided once. Twice is 1/d_k, and all keys get nearly the same weight.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/attention.py",),
    tries=("qkv lab softmax", "qkv train reviews-quick --set model.scale=none -o runs/unscaled"),
)
