"""What LayerNorm does for training, and why not BatchNorm: a text must not depend on its neighbours."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.labs import texts
from qkv.labs.arms import Bench, bench, settings
from qkv.labs.baselines import NormedGru
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.build import build_model
from qkv.model.transformer import Encoder
from qkv.plots import COLOURS, DASHES, MARKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Norm = Literal["layer", "batch", "none"]
WORDS = 50
LARGE, SMALL = 1024, 128  # tokens of a step
SHALLOW, DEEP, RATES = 4, 16, (4e-3, 2e-3)
LETTERS, LONGEST = 12, 16


@torch.no_grad()
def neighbours_matter(norm: Norm, seed: int) -> float:
    """How much a text's vectors change, in training, with the texts beside it and their length, in units of their
    size."""
    config = ModelConfig(family="encoder", vocabulary=WORDS, width=32, heads=4, layers=2, norm=norm,
                         positions="rotary", embedding_scale=True)  # fmt: skip
    model = build_model(config, seed=seed)
    assert isinstance(model, Encoder)
    model.double().train()
    dice = torch.Generator().manual_seed(seed)
    tokens_BL = torch.randint(WORDS, (4, 24), generator=dice)
    keep_BL = torch.ones(4, 24, dtype=torch.bool)
    keep_BL[0, 10:] = False  # the first text is the shortest
    beside, alone = model(tokens_BL, keep_BL)[0, :10], model(tokens_BL[:1, :10])[0]
    return float((beside - alone).abs().max() / alone.abs().mean())


def deep_decoders(place: Bench, corpus: str, setting: Setting) -> dict[str, float]:
    """Held-out loss of decoders of many layers with LayerNorm, and without a norm at the better of two rates."""
    steps, losses = 200 if setting.full else 140, dict[str, float]()
    for norm, rate in (("layer", RATES[0]), *(("none", rate) for rate in RATES)):
        what, train = f"{DEEP} layers, norm {norm}, rate {rate}", settings(steps, tokens=LARGE // 2, rate=rate)
        loss = place.decoder(what, corpus, setting, train, layers=DEEP, norm=norm).loss
        losses[norm] = min(loss, losses.get(norm, loss))
    return losses


def decoders(place: Bench, corpus: str, setting: Setting) -> dict[tuple[str, int], float]:
    """Held-out loss of decoders with each norm, trained in large steps and in small ones, from the same words."""
    losses = {}
    words = 200_000 if setting.full else 100_000
    for norm, tokens in (("layer", LARGE), ("none", LARGE), ("batch", LARGE), ("layer", SMALL), ("batch", SMALL)):
        steps = words // tokens if tokens == LARGE else words // (3 * tokens)
        train = settings(steps, tokens=tokens, rate=4e-3 if tokens == LARGE else 1.5e-3)
        what = f"norm {norm}, {tokens} tokens a step"
        losses[norm, tokens] = place.decoder(what, corpus, setting, train, layers=SHALLOW, norm=norm).loss
    return losses


def ragged(rows: int, dice: random.Random) -> Iterator[tuple[list[int], float]]:
    """Letters of very different number, and whether a (0) comes before b (1)."""
    for _ in range(rows):
        letters = [0, 1, *(dice.randrange(2, LETTERS) for _ in range(dice.randrange(LONGEST - 1)))]
        dice.shuffle(letters)
        yield letters, float(letters.index(0) < letters.index(1))


def padded(rows: Sequence[tuple[list[int], float]]) -> tuple[Tensor, Tensor, Tensor]:
    lengths_B = torch.tensor([len(letters) for letters, _ in rows])
    tokens_BL = torch.zeros(len(rows), int(lengths_B.max()), dtype=torch.long)
    for row, (letters, _) in enumerate(rows):
        tokens_BL[row, : len(letters)] = torch.tensor(letters)
    return tokens_BL, lengths_B, torch.tensor([label for _, label in rows])


def gru_accuracy(norm: Norm, setting: Setting) -> float:
    """Train a recurrent network on batches of two; its share of right answers on new letters."""
    torch.manual_seed(setting.seed)
    dice, model = random.Random(setting.seed), NormedGru(LETTERS, 32, norm)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(1500 if setting.full else 600):
        tokens_BL, lengths_B, labels_B = padded(list(ragged(2, dice)))
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(model(tokens_BL, lengths_B), labels_B).backward()
        optimiser.step()
        if step % 50 == 0:
            setting.tick(f"recurrent, norm {norm}, seed {setting.seed}: step {step}")
    model.eval()
    with torch.no_grad():
        tokens_BL, lengths_B, labels_B = padded(list(ragged(1000, random.Random(setting.seed + 100))))
        return float(((model(tokens_BL, lengths_B) > 0) == (labels_B > 0)).float().mean())


def measure(setting: Setting) -> Measured:
    with bench(setting.tick) as place:
        corpus = place.text("help", texts.paragraphs())
        losses, deep = decoders(place, corpus, setting), deep_decoders(place, corpus, setting)
    gaps = {tokens: losses["batch", tokens] - losses["layer", tokens] for tokens in (LARGE, SMALL)}
    recurrent = {norm: gru_accuracy(norm, setting) for norm in ("layer", "batch")}
    return Measured(
        effects={
            "speed": deep["none"] - deep["layer"],
            "alone": neighbours_matter("layer", setting.seed),
            "beside": neighbours_matter("batch", setting.seed),
            "small": gaps[SMALL] - gaps[LARGE],
            "recurrent": recurrent["layer"] - recurrent["batch"],
        },
        figures={
            **{f"loss, {DEEP} layers, {norm}": loss for norm, loss in deep.items()},
            **{
                f"loss, {SHALLOW} layers, {norm}, {tokens} tokens a step": loss
                for (norm, tokens), loss in losses.items()
            },
            **{f"recurrent, right answers, {norm}": value for norm, value in recurrent.items()},
        },
        series={
            **{norm: [losses[norm, tokens] for tokens in (SMALL, LARGE)] for norm in ("layer", "batch")},
            "deep": [deep["layer"], deep["none"]],
        },
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes, deep = figure.subplots(1, 2, width_ratios=(2, 1))
    for number, norm in enumerate(("layer", "batch")):
        for seed, one in enumerate(measured):
            axes.plot(
                (SMALL, LARGE), one.series[norm], color=COLOURS[number], linestyle=DASHES[number],
                marker=MARKS[number], label=f"{norm} norm" if seed == 0 else None,
            )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_xticks((SMALL, LARGE), [str(SMALL), str(LARGE)])
    axes.set_xlabel("tokens of a training step (lines: seeds)")
    axes.set_ylabel("loss on held-out text")
    axes.legend(frameon=False)
    for number, name in enumerate(("LayerNorm", "no norm")):
        values = [one.series["deep"][number] for one in measured]
        deep.plot([name] * len(values), values, color=COLOURS[0], marker="o", linestyle="", alpha=0.8)
    deep.margins(x=0.4)
    deep.set_xlabel(f"{DEEP} layers (points: seeds)")


LAB = Lab(
    name="norm",
    question="Why LayerNorm, and why not BatchNorm?",
    usual="LayerNorm speeds up training; BatchNorm depends on the batch.",
    answer="LayerNorm speeds up the training of a deep stack and looks at one token alone. BatchNorm makes a "
    "text depend on its neighbours and on padding, and suffers where batches are small and lengths differ, in a "
    "recurrent network too.",
    paragraphs=(
        "A norm sets the size of the features right before they go on, so that no layer has to follow what the layers "
        "below it happen to produce. LayerNorm does it for each token by its own features. BatchNorm does it for each "
        "feature over all tokens of the batch: those of other texts, and padding. The deeper the stack, the more a "
        "norm matters: four layers with residuals can do without (see the figures below), sixteen fall behind.",
        "So with BatchNorm a text gets other vectors when other texts stand beside it. Small batches give a poor guess "
        "of mean and variance, and texts of different length fill up the rest with padding that counts too. At the end "
        "the model is judged with means over the whole training, which fit no batch it has seen. The lab trains "
        "decoders with each norm in large and in small steps, and small recurrent networks on ragged texts, two at a "
        "time.",
    ),
    formula="LayerNorm: (x - mean over features) / deviation over features,   for each token alone",
    claims=(
        Claim(
            "speed",
            "LayerNorm speeds up training.",
            "Ba et al. 2016",
            "loss without a norm, at the better of two rates, less loss with LayerNorm, 16 layers, equal steps (nats)",
            Rule(low=0.0),
        ),
        Claim(
            "alone",
            "LayerNorm does not depend on batch size or length.",
            "Ba et al. 2016",
            "change of a text's vectors with the texts beside it",
            Rule(high=1e-6),
        ),
        Claim(
            "beside",
            "BatchNorm does.",
            "Ba et al. 2016",
            "the same change with BatchNorm, in training",
            Rule(low=0.01),
        ),
        Claim(
            "small",
            "BatchNorm degrades with small batches.",
            "Ioffe and Szegedy 2015; Wu and He 2018",
            "how much further behind LayerNorm it is in small steps than in large ones (nats a word)",
            Rule(low=0.0),
        ),
        Claim(
            "recurrent",
            "and with ragged lengths, in a GRU too.",
            "Ba et al. 2016; Cooijmans et al. 2017",
            "right answers with LayerNorm, less those with BatchNorm, batches of two",
            Rule(low=0.0),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/layers.py", "labs/baselines.py"),
    tries=("qkv train reviews-quick --set model.norm=batch -o runs/batch-norm", "qkv lab residual"),
)
