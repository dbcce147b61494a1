"""Sinusoidal positions: what is true of them, and what is hoped of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from qkv.config.recipe import ModelConfig
from qkv.labs import texts
from qkv.labs.arms import Arm, Bench, bench, loss_by_place, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting, mean_series
from qkv.model.build import build_model
from qkv.model.positions import Sinusoidal
from qkv.model.transformer import Encoder
from qkv.plots import COLOURS, DASHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, MANY, SHIFT = 128, 512, 7
TRAINED, LONG = 32, 128
HELD_OUT = 5  # documents


def waves(count: int, width: int = WIDTH) -> Tensor:
    """The vectors that the model adds to the words at the first positions (count, width), in float64."""
    empty = torch.zeros(1, count, width, dtype=torch.float64)
    return Sinusoidal().embed(empty, torch.arange(count)[None])[0]


def by_the_formula(position: int, feature: int) -> float:
    """sin(pos / 10000^(2i/d)), then cos of the same angles."""
    half = WIDTH // 2
    angle = position / 10000 ** (2 * (feature % half) / WIDTH)
    return math.sin(angle) if feature < half else math.cos(angle)


def formula_error() -> float:
    found = waves(MANY)
    places = [(0, 0), (1, 0), (3, 5), (100, 63), (100, 64), (511, 127), (200, 100), (77, 20)]
    return max(abs(float(found[position, feature]) - by_the_formula(position, feature)) for position, feature in places)


def likeness(distance: int) -> float:
    """Mean cosine of the vectors of positions so far apart."""
    found = torch.nn.functional.normalize(waves(MANY), dim=1)
    return float((found[distance:] * found[: MANY - distance]).sum(1).mean())


def shift_error() -> float:
    """Fit one matrix that takes every position below 256 to the one SHIFT later; try it on those above. It has a block
    for each wave, which takes the sine and the cosine of that wave to the later ones."""
    found, half, errors = waves(MANY), WIDTH // 2, []
    for wave in range(half):
        pairs = found[:, [wave, wave + half]]
        block = torch.linalg.lstsq(pairs[:256], pairs[SHIFT : 256 + SHIFT]).solution
        errors.append((pairs[256 : MANY - SHIFT] @ block - pairs[256 + SHIFT :]).abs().max())
    return float(torch.stack(errors).max())


@torch.no_grad()
def moved(positions: str, seed: int) -> float:
    """How much words' vectors change when the whole text stands 50 places later, in units of their size."""
    config = ModelConfig(family="encoder", vocabulary=50, width=32, heads=4, layers=2, embedding_scale=True,
                         positions=positions)  # type: ignore[arg-type]  # fmt: skip
    model = build_model(config, seed=seed)
    assert isinstance(model, Encoder)
    tokens_1L = torch.randint(50, (1, 20), generator=torch.Generator().manual_seed(seed))
    places = torch.arange(20)[None]
    one, other = (model.double()(tokens_1L, pos=pos) for pos in (places, places + 50))
    return float((one - other).abs().max() / one.abs().mean())


def trained(place: Bench, corpus: str, positions: str, setting: Setting) -> Arm:
    train = settings(800 if setting.full else 250, rate=3e-3)
    parts: dict[str, Any] = {"positions": positions, "context": LONG + 1}
    return place.decoder(f"positions {positions}", corpus, setting, train, length=TRAINED + 1, **parts)


def measure(setting: Setting) -> Measured:
    documents = texts.documents()
    with bench(setting.tick) as place:
        corpus = place.text("help", documents[HELD_OUT:])
        arms = {name: trained(place, corpus, name, setting) for name in ("sinusoidal", "learned", "alibi")}
    curves = {name: loss_by_place(arms[name], documents[:HELD_OUT], LONG) for name in ("sinusoidal", "alibi")}
    within = {name: _mean(curve[TRAINED // 2 : TRAINED]) for name, curve in curves.items()}
    beyond = {name: _mean(curve[LONG // 2 :]) for name, curve in curves.items()}
    table = dict(arms["learned"].model.named_parameters())["stack.positions.table"]
    fresh = dict(build_model(arms["learned"].recipe.model, seed=setting.seed).named_parameters())[
        "stack.positions.table"
    ]
    changed = (table - fresh)[: TRAINED + 1].norm() / fresh[: TRAINED + 1].norm()
    return Measured(
        effects={
            "formula": formula_error(),
            "near": likeness(1) - likeness(50),
            "shift": shift_error(),
            "generalise": (beyond["sinusoidal"] - within["sinusoidal"]) - (beyond["alibi"] - within["alibi"]),
            "absolute": moved("sinusoidal", setting.seed),
            "fixed": float(changed.detach()),
        },
        figures={
            "likeness of neighbours": likeness(1),
            "likeness at distance 50": likeness(50),
            "change when moved, rotary": moved("rotary", setting.seed),
            **{f"loss within the trained length, {name}": value for name, value in within.items()},
            **{f"loss at 2 to 4 times, {name}": value for name, value in beyond.items()},
        },
        series=curves,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, right = figure.subplots(1, 2)
    left.imshow(waves(64).T.tolist(), aspect="auto", cmap="cividis")
    left.set_xlabel("position")
    left.set_ylabel("feature (above sines, below cosines)")
    left.grid(visible=False)
    for number, name in enumerate(measured[0].series):
        means = mean_series(measured, name)
        smooth = [_mean(means[max(0, n - 4) : n + 5]) for n in range(len(means))]
        right.plot(range(len(smooth)), smooth, color=COLOURS[number], linestyle=DASHES[number], label=name)
    right.axvline(TRAINED, color="#777777", linewidth=0.8)
    right.set_xlabel(f"place in the window (trained up to the line, {TRAINED})")
    right.set_ylabel("loss of the next word")
    right.legend(frameon=False)


LAB = Lab(
    name="positions",
    question="What do sinusoidal positions give, and do they generalise to longer texts?",
    usual="Sines and cosines of many wave lengths; the model can extrapolate to longer sequences.",
    answer="Near positions are alike and a shift is a linear map, as the paper says. Any position can be encoded, but "
    "a model does not thereby cope with positions it was not trained on.",
    paragraphs=(
        "Each position gets a vector of sines and cosines whose wave lengths grow geometrically, like the hands of "
        "many clocks. Near positions have nearly the same vector. Moving by k positions turns every hand by a fixed "
        "angle, which is one matrix, the same everywhere: the lab fits it on the first half of 512 positions and tries "
        "it on the second.",
        "The paper hoped that this would let a model cope with longer texts than it was trained on. The vectors are "
        "indeed defined for any position, but what the layers do with vectors they have never met was never trained. "
        "The lab trains a decoder on 32 words at a time and reads 128: beyond the line its loss rises, while that of "
        "alibi, which knows distances only, does not. And sinusoids are absolute: move the whole text, and all vectors "
        "change.",
    ),
    formula="p(pos, 2i) = sin(pos / 10000^(2i/d)),   p(pos, 2i+1) = cos(pos / 10000^(2i/d))",
    claims=(
        Claim(
            "formula",
            "The model's waves are those of the formula.",
            "Vaswani et al. 2017, section 3.5",
            "largest difference at eight places",
            Rule(high=1e-9),
        ),
        Claim(
            "near",
            "Near positions are similar.",
            "Vaswani et al. 2017, section 3.5",
            "cosine of neighbours, less cosine at distance 50",
            Rule(low=0.2),
        ),
        Claim(
            "shift",
            "A shift is a linear map.",
            "Vaswani et al. 2017, section 3.5",
            "largest error, on positions above 256, of one matrix fitted below",
            Rule(high=1e-6),
        ),
        Claim(
            "generalise",
            "So the model generalises to longer texts than it was trained on.",
            "Vaswani et al. 2017, section 3.5 (as a hope)",
            "rise of the loss at 2 to 4 times the trained length, less that of alibi on the same words (nats)",
            Rule(low=0.1),
            correction="Longer inputs still get a vector, but the loss rises: encoding a position is not knowing "
            "what to do with it.",
        ),
        Claim(
            "absolute",
            "Sinusoidal positions are relative.",
            "often written",
            "change of words' vectors when the whole text is moved by 50 places",
            Rule(low=0.1),
            correction="They are added to words by their absolute place: move the text, and its vectors change.",
        ),
        Claim(
            "fixed",
            "Learned positions are fixed, like sinusoidal ones.",
            "found in print",
            "change of the table in training, in units of its size",
            Rule(low=0.1),
            correction="They are weights like all others, and change in training.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/positions.py",),
    tries=("qkv lab long-range", "qkv train shakespeare-chars --set model.positions=alibi -o runs/alibi"),
)
