"""How many weights a Transformer has, counted on the real models, not by formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.config import presets
from qkv.config.recipe import ModelConfig
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.attention import Attention
from qkv.model.build import lay_out
from qkv.plots import BLUE, PALE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, HEADS = 768, 12  # of BERT and GPT-2
PAPERS_COUNT, PIECES = 65e6, 37_000  # what Vaswani et al. print for the base model, and their shared vocabulary


def weights_of(config: ModelConfig) -> int:
    """All weights of a model, laid out without memory and counted."""
    return sum(weight.numel() for weight in lay_out(config).parameters())


def attention_of(*, bias: bool) -> Attention:
    """One attention of a real model, 768 wide with 12 heads."""
    config = ModelConfig(family="encoder", vocabulary=100, width=WIDTH, heads=HEADS, layers=1, bias=bias)
    model = lay_out(config)
    return next(part for part in model.modules() if isinstance(part, Attention))


def base_with(pieces: int) -> int:
    config = presets.load("vaswani-base").replace(vocabulary=pieces)
    return weights_of(config)


def measure(setting: Setting) -> Measured:
    plain, biased = attention_of(bias=False), attention_of(bias=True)
    three, out = plain.project.weight.numel(), plain.output.weight.numel()
    with_biases = sum(weight.numel() for weight in biased.parameters())
    base = base_with(PIECES)
    a_piece = base_with(PIECES + 1) - base
    counts = {name: weights_of(presets.load(name)) for name in presets.names()}
    return Measured(
        effects={
            "projection": three / 3,
            "three": three,
            "four": three + out,
            "biases": with_biases,
            "head": plain.head_width,
            "base": base,
            "paper": (PAPERS_COUNT - base) / PAPERS_COUNT,
        },
        figures={
            **{f"weights of {name}": count for name, count in counts.items()},
            "pieces that would make 65 million": PIECES + (PAPERS_COUNT - base) / a_piece,
        },
        series={"counts": list(counts.values())},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    prefix = "weights of "
    counts = {name.removeprefix(prefix): n for name, n in measured[0].figures.items() if name.startswith(prefix)}
    ordered = sorted(counts.items(), key=lambda one: one[1])
    bars = axes.barh([name for name, _ in ordered], [count for _, count in ordered], color=PALE, edgecolor=BLUE)
    axes.bar_label(bars, [f" {count:,.0f}" for _, count in ordered])
    axes.set_xscale("log")
    axes.set_xlim(right=20 * ordered[-1][1])
    axes.set_xlabel("weights")
    axes.grid(axis="y", visible=False)


def _exactly(number: float) -> Rule:
    return Rule(number, number)


LAB = Lab(
    name="count",
    question="How many weights does a Transformer have, and where are they?",
    usual="768 x 768 = 589,824 for one projection; the base model of the paper has 65 million.",
    answer="One projection 768 wide has 589,824 weights, attention 2,359,296, with biases 2,362,368. The base model "
    "with 37,000 shared tokens has 63,082,496, not 65 million.",
    paragraphs=(
        "A projection from 768 features to 768 features is a table of 768 x 768 numbers. Attention has four: for "
        "queries, keys, values and for what the heads found together. Cutting the 768 features into 12 heads of 64 "
        "changes nothing in the count: the heads share the same tables, each uses 64 of their rows.",
        "The lab does not compute formulas. It lays out the real models, without giving them memory, and counts what "
        "is there. The base model of the 2017 paper comes to 63.1 million with its 37,000 tokens; the paper prints "
        "65 million. Every further piece costs 512 weights, so a vocabulary of about 40,700 would give the printed "
        "number.",
    ),
    formula="attention: 4 x width^2 (+ 4 x width biases);  feed-forward: 2 x width x inner (+ inner + width)",
    claims=(
        Claim(
            "projection",
            "One 768 x 768 projection has 589,824 weights.",
            "Devlin et al. 2019 (sizes)",
            "weights of one of the three projections",
            _exactly(589_824),
        ),
        Claim(
            "three",
            "Queries, keys and values together have 1,769,472.",
            "Devlin et al. 2019 (sizes)",
            "weights of the three projections",
            _exactly(1_769_472),
        ),
        Claim(
            "four",
            "With the output projection it is 2,359,296.",
            "Devlin et al. 2019 (sizes)",
            "weights of an attention without biases",
            _exactly(2_359_296),
        ),
        Claim(
            "biases",
            "With biases it is 2,362,368.",
            "Devlin et al. 2019 (sizes)",
            "weights of an attention with biases",
            _exactly(2_362_368),
        ),
        Claim(
            "head",
            "A head is 768 / 12 = 64 wide.",
            "Vaswani et al. 2017, section 3.2.2",
            "width of a head",
            _exactly(64),
        ),
        Claim(
            "base",
            "The base model has 63,082,496 weights with a vocabulary of 37,000 shared tokens.",
            "counted here",
            "weights of vaswani-base",
            _exactly(63_082_496),
        ),
        Claim(
            "paper",
            "The base model has 65 million weights.",
            "Vaswani et al. 2017, table 3",
            "how far the model falls short of 65 million, as a share of it",
            Rule(0.01, 0.05),
            correction="With the 37,000 shared tokens of the paper it has 63.1 million; 65 million would need about "
            "40,700 tokens.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/build.py", "plan.py"),
    tries=("qkv plan vaswani-base", "qkv plan bert-base"),
    seeds=1,
)
