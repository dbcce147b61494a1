"""What attention knows of the order of words when nobody tells it: without positions and without a mask, nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.labs.arms import bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.attention import How, dot
from qkv.model.build import build_model
from qkv.model.transformer import Encoder
from qkv.plots import BLUE, PALE, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORDS, LENGTH = 50, 12
LETTERS = "abcdefghijklmnopqrst"


def encoder(seed: int, **changes: Any) -> Encoder:
    """A fresh encoder of two layers in float64, so that rounding is no excuse."""
    parts: dict[str, Any] = {"positions": "none", **changes}
    config = ModelConfig(family="encoder", vocabulary=WORDS, width=32, heads=4, layers=2, **parts)
    model = build_model(config, seed=seed)
    assert isinstance(model, Encoder)
    return model.double().eval()


@torch.no_grad()
def shuffled_difference(model: Encoder, seed: int) -> float:
    """Read the same words in another order: the largest difference of any word's vector, in units of their size."""
    dice = torch.Generator().manual_seed(seed)
    tokens_1L = torch.randperm(WORDS, generator=dice)[None, :LENGTH]
    order_L = torch.randperm(LENGTH, generator=dice)
    one, other = model(tokens_1L), model(tokens_1L[:, order_L])
    return float((one[:, order_L] - other).abs().max() / one.abs().mean())


@torch.no_grad()
def pooled_difference(model: Encoder) -> float:
    """Two words, and the same two the other way round: the difference of the means of their vectors."""
    one, other = (model(torch.tensor([pair])).mean(1) for pair in ([3, 7], [7, 3]))
    return float((one - other).abs().max() / one.abs().mean())


@torch.no_grad()
def asymmetry(model: Encoder, seed: int) -> float:
    """How much the score of a pair changes when query and key change places, in units of the scores' size."""
    scores: list[Tensor] = []

    def look(q_BHLK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, how: How) -> Tensor:
        scores.append(dot(q_BHLK, k_BHSK))
        return how.drop(scores[-1].softmax(-1)) @ v_BHSK

    model(torch.randperm(WORDS, generator=torch.Generator().manual_seed(seed))[None, :LENGTH], attend=look)
    return float((scores[0] - scores[0].transpose(-1, -2)).abs().mean() / scores[0].abs().mean())


def which_first(rows: int, seed: int) -> Iterator[dict[str, str]]:
    """Letters in a random order, and whether a comes before b. Half of the rows each; only order tells."""
    dice = random.Random(seed)
    for _ in range(rows):
        letters = ["a", "b", *dice.sample(LETTERS[2:], 8)]
        dice.shuffle(letters)
        yield {"text": " ".join(letters), "label": "a" if letters.index("a") < letters.index("b") else "b"}


def measure(setting: Setting) -> Measured:
    blind, seeing = encoder(setting.seed), encoder(setting.seed, positions="sinusoidal")
    additive = encoder(setting.seed, score="additive")
    with bench(setting.tick) as place:
        corpus = place.table("letters", which_first(4000, setting.seed))

        def accuracy(family: str, positions: str) -> float:
            model = {"family": family, "width": 32, "heads": 4, "layers": 2, "positions": positions, "pooler": "none"}
            arm = place.train(
                f"{family}, positions {positions}",
                {
                    "task": "classify",
                    "seed": setting.seed,
                    "data": {"corpus": corpus, "length": 16},
                    "tokenizer": {"kind": "wordpiece", "vocab_size": 64, "lowercase": True},
                    "model": model,
                    "train": settings(600 if setting.full else 300, rate=3e-3),
                },
            )
            return arm.accuracy

        arms = {
            "encoder, none": accuracy("encoder", "none"),
            "encoder, rotary": accuracy("encoder", "rotary"),
            "decoder, none": accuracy("decoder", "none"),
        }
    return Measured(
        effects={
            "equivariant": shuffled_difference(blind, setting.seed),
            "pooled": pooled_difference(blind),
            "positions": shuffled_difference(seeing, setting.seed),
            "commutes": asymmetry(blind, setting.seed),
            "additive": shuffled_difference(additive, setting.seed),
            "guess": arms["encoder, none"],
            "causal": arms["decoder, none"],
        },
        figures={f"accuracy: {name}": value for name, value in arms.items()},
        series={"arms": list(arms.values())},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    names = [name.removeprefix("accuracy: ") for name in measured[0].figures]
    for number, name in enumerate(names):
        values = [one.series["arms"][number] for one in measured]
        axes.bar(name, sum(values) / len(values), color=PALE, edgecolor=BLUE, width=0.6)
        axes.plot([number] * len(values), values, color=BLUE, marker="o", linestyle="")
    axes.axhline(0.5, color=RED, linestyle="--")
    axes.text(0.5, 0.515, "guessing", color=RED, ha="center")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("does a come before b? share of right answers")
    axes.set_xlabel("family, positions (points: seeds)")


LAB = Lab(
    name="order",
    question="Why does a Transformer need positions?",
    usual="Because a dot product commutes, attention cannot tell the order of words.",
    answer="Because every pair of words is scored alike wherever it stands, an encoder without positions gives the "
    "same vectors in any order. A causal decoder is not blind: its mask tells it what came before.",
    paragraphs=(
        "Self-attention compares every word with every other, and nothing in the comparison says where they stand. "
        "Read the words in another order, and every word gets the vector it had before, only the vectors stand in the "
        "other order too. That is called permutation equivariance. Take the mean, and 'machine translating' is exactly "
        "'translating machine'.",
        "It is often explained by the dot product, which commutes. But the score of a pair is not symmetric at all: "
        "one word gives the query, the other the key, by different tables. An additive score, which is no dot product, "
        "is just as blind. And a decoder that may only look back does see order without any positions: the first word "
        "sees one word, the second two, and that is enough to count.",
    ),
    formula="attention(P x) = P attention(x)   for every permutation P",
    claims=(
        Claim(
            "equivariant",
            "Without positions and without a causal mask, self-attention is permutation-equivariant.",
            "Vaswani et al. 2017, section 3.5",
            "largest change of a word's vector when the order changes",
            Rule(high=1e-6),
        ),
        Claim(
            "pooled",
            "Once pooled, 'machine translating' is 'translating machine'.",
            "follows from the first",
            "largest difference of the two means",
            Rule(high=1e-6),
        ),
        Claim(
            "positions",
            "With positions the order matters.",
            "Vaswani et al. 2017, section 3.5",
            "the same change with sinusoidal positions",
            Rule(low=0.01),
        ),
        Claim(
            "guess",
            "An encoder without positions can only guess which of two words came first.",
            "follows from the first",
            "its share of right answers after training",
            Rule(0.4, 0.6),
        ),
        Claim(
            "commutes",
            "It is blind because a dot product commutes.",
            "often written",
            "how much a score changes when query and key change places, in units of its size",
            Rule(low=0.5),
            correction="The scores are not symmetric: query and key come from different tables. It is blind because "
            "no score depends on where the words stand.",
        ),
        Claim(
            "additive",
            "An additive score, which is no dot product, would see order.",
            "follows from the erratum",
            "largest change of a word's vector when the order changes, with the additive score",
            Rule(high=1e-6),
            correction="The additive score is just as blind.",
        ),
        Claim(
            "causal",
            "Every Transformer without positions is blind to order.",
            "often written",
            "share of right answers of a causal decoder without positions",
            Rule(low=0.8),
            correction="A causal decoder without positions learns order: its mask shows each word only what came "
            "before it (Haviv et al. 2022).",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/positions.py", "model/masks.py"),
    tries=("qkv lab positions", "qkv train reviews-quick --set model.positions=none -o runs/no-positions"),
    seeds=5,
)
