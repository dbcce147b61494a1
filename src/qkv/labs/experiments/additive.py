"""Dot product or additive: two ways to score a pair, the same quality, and a difference in speed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.labs import texts
from qkv.labs.arms import bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting, mean_series
from qkv.model.attention import SCORES, Additive, Attention, View, plain
from qkv.plots import COLOURS, DASHES, MARKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, WIDE_HEAD = 128, 128
ROWS, LENGTH, ROUNDS = 4, 128, 7
ARMS = {"dot, scaled": ("dot", "sqrt"), "dot, unscaled": ("dot", "none"), "additive": ("additive", "sqrt")}


def layer(score: str) -> Attention:
    return Attention(
        width=WIDTH, heads=4, kv_heads=4, head_width=WIDTH // 4, score=score, scale="sqrt", bias=False, dropout=0.0
    )


def times_faster() -> float:
    """Time of additive attention, forward and backward, in units of dot-product attention; both as they are written
    (`plain`), taken in turns, the median."""
    x_BLD, view, ratios = torch.randn(ROWS, LENGTH, WIDTH), View(attend=plain), []
    parts = {score: layer(score) for score in ("additive", "dot")}
    with torch.no_grad():
        for weight in parts["additive"].score.parameters():  # type: ignore[attr-defined]
            weight.normal_()
    for _ in range(ROUNDS):
        seconds = []
        for part in parts.values():
            start = time.perf_counter()
            part(x_BLD, view)[0].sum().backward()
            seconds.append(time.perf_counter() - start)
        ratios.append(seconds[0] / seconds[1])
    return median(ratios)


def gradient_error(seed: int) -> float:
    """The gradient of additive scores by automatic differentiation against differences of the scores themselves:
    largest disagreement, in units of the gradient."""
    dice = torch.Generator().manual_seed(seed)
    score = SCORES["additive"](1, 8)
    assert isinstance(score, Additive)
    score = score.double()
    with torch.no_grad():
        score.vector_HK.normal_(generator=dice)
    q, k = (torch.randn(1, 1, 3, 8, dtype=torch.float64, generator=dice) for _ in range(2))
    q.requires_grad_()
    (exact,) = torch.autograd.grad(score(q, k).sum(), q)
    step, rough = 1e-6, torch.zeros_like(q)
    with torch.no_grad():
        for place in range(q.numel()):
            moved: list[Tensor] = []
            for sign in (1, -1):
                other = q.detach().clone()
                other.view(-1)[place] += sign * step
                moved.append(score(other, k).sum())
            rough.view(-1)[place] = (moved[0] - moved[1]) / (2 * step)
    return float((exact - rough).abs().max() / exact.abs().max())


def measure(setting: Setting) -> Measured:
    losses, curves = {}, {}
    with bench(setting.tick) as place:
        corpus = place.text("help", texts.paragraphs())
        for name, (score, scale) in ARMS.items():
            parts: dict[str, Any] = {
                "width": WIDE_HEAD, "heads": 1, "feedforward": 256, "positions": "sinusoidal", "score": score,
                "scale": scale,
            }  # fmt: skip
            train = settings(400 if setting.full else 200, tokens=512, rate=3e-3)
            arm = place.decoder(name, corpus, setting, train, length=32, **parts)
            losses[name], curves[name] = arm.loss, arm.losses
    return Measured(
        effects={
            "faster": times_faster(),
            "quality": losses["additive"] - losses["dot, scaled"],
            "unscaled": losses["dot, unscaled"] - losses["additive"],
            "differentiable": gradient_error(setting.seed),
        },
        figures={f"loss, {name}": loss for name, loss in losses.items()},
        series=curves,
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    for number, name in enumerate(ARMS):
        means = mean_series(measured, name)
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKS[number]}
        axes.plot([100 * (n + 1) / len(means) for n in range(len(means))], means, label=name, markevery=3, **look)
    axes.set_xlabel("training done, %")
    axes.set_ylabel("loss of a decoder with one head of 128")
    axes.legend(frameon=False)


LAB = Lab(
    name="additive",
    question="Why dot products, when additive attention was there before?",
    usual="Dot products are faster; additive attention is not differentiable.",
    answer="They are faster at equal quality if scaled; unscaled they fall behind at large d_k. Additive attention is "
    "differentiable like any network.",
    paragraphs=(
        "Bahdanau's attention scores a pair by a small network: add query and key, bend the sum by tanh, weigh its "
        "features. The dot product multiplies and adds. Both use the same projections, so their number of weights is "
        "nearly the same. But additive attention must make a vector for every pair of words before it can sum, while "
        "all dot products together are one matrix product, the thing that computers do best.",
        "The paper says that the two are about equally good, and that dot products fall behind at large d_k unless "
        "they are scaled. The lab trains decoders with one head of 128 each way. And it compares the gradient of the "
        "additive score with differences of the score itself: it was trained by gradients from the start.",
    ),
    formula="dot: q · k / √d_k        additive: w · tanh(q + k)",
    claims=(
        Claim(
            "faster",
            "Dot-product attention is faster than additive attention.",
            "Vaswani et al. 2017, section 3.2.1",
            "time of additive attention in units of dot-product attention",
            Rule(low=1.5),
        ),
        Claim(
            "quality",
            "Their quality is about equal.",
            "Vaswani et al. 2017, section 3.2.1",
            "loss with additive, less loss with scaled dot products (nats a word)",
            Rule(-0.15, 0.15),
        ),
        Claim(
            "unscaled",
            "Unscaled dot products fall behind at large d_k.",
            "Britz et al. 2017; Vaswani et al. 2017",
            "loss with unscaled dot products, less loss with additive (nats a word)",
            Rule(low=0.0),
        ),
        Claim(
            "differentiable",
            "Additive attention is not differentiable.",
            "found in print",
            "distance of its gradient from differences of its scores, in units of the gradient",
            Rule(high=1e-4),
            correction="It is; its gradient is exact.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/attention.py",),
    tries=("qkv lab scale", "qkv train reviews-quick --set model.score=additive -o runs/additive"),
)
