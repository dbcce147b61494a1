"""Relative positions against absolute ones: learning, longer texts than trained on, and words far apart."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qkv.labs import texts
from qkv.labs.arms import Arm, Bench, bench, loss_by_place, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.plots import BLUE, COLOURS, DASHES, MARKS, PALE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABSOLUTE, RELATIVE = ("sinusoidal", "learned"), ("relative", "t5", "alibi", "rotary")
TRAINED, LONG, HELD_OUT = 32, 128, 5
LETTERS, PLACES, FAR = "abcdefghijklmnopqrst", 48, 16


# --- masked words: who leaves the plateau first


def masked_words(place: Bench, corpus: str, positions: str, setting: Setting) -> Arm:
    model: dict[str, Any] = {
        "family": "encoder", "width": 64, "heads": 4, "layers": 2, "feedforward": 128, "positions": positions,
        "context": LONG + 1,
    }  # fmt: skip
    return place.train(
        f"masked words, {positions}, seed {setting.seed}",
        {
            "task": "fill",
            "seed": setting.seed,
            "data": {"corpus": corpus, "length": 64},
            "tokenizer": {"kind": "wordpiece", "vocab_size": 1000, "lowercase": True},
            "model": model,
            "train": {
                **settings(600 if setting.full else 250, tokens=1536, rate=3e-3),
                "next_sentence": False,
                "mask_rate": 0.2,
            },
        },
    )


# --- train short, read long


def next_words(place: Bench, corpus: str, positions: str, setting: Setting) -> Arm:
    train = settings(400 if setting.full else 160, rate=3e-3)
    length, parts = TRAINED + 1, {"positions": positions, "context": LONG + 1}
    return place.decoder(f"next words, {positions}", corpus, setting, train, length=length, **parts)


def rise(arm: Arm, documents: Sequence[str]) -> float:
    """Loss at 2 to 4 times the trained length, less loss within it."""
    curve = loss_by_place(arm, documents, LONG)
    return sum(curve[LONG // 2 :]) / (LONG // 2) - sum(curve[TRAINED // 2 : TRAINED]) / (TRAINED // 2)


# --- a dependency at a distance


def repeated(gap: int, rows: int, seed: int) -> list[str]:
    """Random letters, repeated after `gap` of them: from there on each is known to who looks exactly so far back."""
    dice = random.Random(seed)
    blocks = (dice.choices(LETTERS, k=gap) for _ in range(rows))
    return [" ".join((block * PLACES)[:PLACES]) for block in blocks]


def at_a_distance(place: Bench, positions: str, gap: int, setting: Setting) -> float:
    """Loss of a decoder on new letters that were all there `gap` places before."""
    corpus = place.text(f"gap-{gap}", repeated(gap, 1500, setting.seed))
    train = settings(250 if setting.full else 150, rate=3e-3)
    length, parts = PLACES + 2, {"positions": positions, "context": LONG + 1}
    arm = place.decoder(f"distance {gap}, {positions}", corpus, setting, train, length=length, **parts)
    curve = loss_by_place(arm, repeated(gap, 100, setting.seed + 1000), PLACES)
    return sum(curve[gap:]) / (PLACES - gap)


def weights_of(arm: Arm) -> int:
    return sum(weight.numel() for weight in arm.model.parameters())


def ahead(losses: dict[str, float]) -> float:
    """How much less a relative scheme has than an absolute one, on average."""
    absolute, relative = ([losses[name] for name in names] for names in (ABSOLUTE, RELATIVE))
    return sum(absolute) / len(absolute) - sum(relative) / len(relative)


def measure(setting: Setting) -> Measured:
    documents, schemes = texts.documents(), (*ABSOLUTE, *RELATIVE)
    gaps = (4, 8, FAR) if setting.full else (FAR,)
    with bench(setting.tick) as place:
        corpus, held = place.text("help", documents[HELD_OUT:]), documents[:HELD_OUT]
        filled = {name: masked_words(place, corpus, name, setting) for name in ("learned", "rotary")}
        arms = {name: next_words(place, corpus, name, setting) for name in schemes}
        rises = {name: rise(arm, held) for name, arm in arms.items()}
        seeing = schemes if setting.full else (*ABSOLUTE, "alibi", "rotary")
        far = {(name, gap): at_a_distance(place, name, gap, setting) for name in seeing for gap in gaps}
    sizes = [weights_of(arm) for name, arm in arms.items() if name != "learned"]  # its table is as long as wanted
    furthest = {name: far[name, FAR] for name in seeing}
    return Measured(
        effects={
            "plateau": filled["learned"].loss - filled["rotary"].loss,
            "sooner": ahead({name: sum(arm.losses) / len(arm.losses) for name, arm in arms.items()}),
            "long": ahead(rises),
            "distance": sum(furthest[name] for name in ABSOLUTE) / len(ABSOLUTE) - furthest["rotary"],
            "alike": furthest["alibi"] - furthest["rotary"],
            "matched": max(sizes) / min(sizes) - 1,
        },
        figures={
            **{f"masked words, loss, {name}": arm.loss for name, arm in filled.items()},
            **{f"next words, loss, {name}": arm.loss for name, arm in arms.items()},
            **{f"rise beyond the trained length, {name}": value for name, value in rises.items()},
            **{f"letters {gap} back, loss, {name}": value for (name, gap), value in far.items()},
        },
        series={
            **{f"masked {name}": list(arm.losses) for name, arm in filled.items()},
            "rises": [rises[name] for name in schemes],
            "far": [furthest.get(name, math.nan) for name in schemes],
        },
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, middle, right = figure.subplots(1, 3)
    schemes = (*ABSOLUTE, *RELATIVE)
    for number, name in enumerate(("learned", "rotary")):
        rows = [one.series[f"masked {name}"] for one in measured]
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKS[number]}
        left.plot([100 * (n + 1) / len(means) for n in range(len(means))], means, label=name, markevery=4, **look)
    left.set_xlabel("training done, %")
    left.set_ylabel("loss of masked words")
    left.legend(frameon=False)
    panels = ((middle, "rises", "rise beyond the trained length"), (right, "far", f"loss, {FAR} letters back"))
    for axes, key, label in panels:
        for number, name in enumerate(schemes):
            values = [one.series[key][number] for one in measured]
            axes.barh(name, sum(values) / len(values), color=PALE, edgecolor=BLUE)
            axes.plot(values, [number] * len(values), color=BLUE, marker="o", markersize=4, linestyle="")
        axes.set_xlabel(label)
        axes.margins(x=0.1)
        axes.invert_yaxis()


LAB = Lab(
    name="long-range",
    question="Are relative positions better than absolute ones?",
    usual="Relative positions generalise to longer texts and see far dependencies better.",
    answer="At equal size they learn sooner, hidden words far sooner, and lose less beyond the trained length. What "
    "stands a fixed distance back only those find that tell far distances apart: rotary does, alibi hardly.",
    paragraphs=(
        "An absolute position is a vector added to a word: what is near or far has to be found out from pairs of such "
        "vectors, for every place anew. A relative scheme puts the distance into the comparison itself: a trained "
        "vector or number for each distance (relative, t5), a penalty (alibi), a turn of query and key (rotary). "
        "Distance then means the same wherever the words stand.",
        "Three measurements with the same small model. Hidden words: with learned positions the loss sits on a "
        "plateau, where the model has learnt how often words occur and little else; with rotary ones it leaves it "
        "early. Longer texts: trained on 32 words, read 128. And a dependency at a distance: random letters that "
        "repeat after a fixed number, so that one look exactly so far back tells the next.",
    ),
    formula="score(i, j) = f(q_i, k_j, j - i)   instead of   f(q_i + p_i, k_j + p_j)",
    claims=(
        Claim(
            "plateau",
            "Masked-token training leaves its plateau far earlier with rotary than with learned positions.",
            "measured while the bundled encoder was made",
            "loss with learned, less loss with rotary, equal steps",
            Rule(low=0.2),
        ),
        Claim(
            "sooner",
            "At equal steps and size, relative positions learn sooner.",
            "Shaw et al. 2018, table 1",
            "loss of next words, mean over the training, absolute less relative (means of the schemes)",
            Rule(low=0.0),
        ),
        Claim(
            "long",
            "Relative positions cope better with longer texts than trained on.",
            "Shaw et al. 2018; Press et al. 2022",
            "rise of the loss at 2 to 4 times the trained length, absolute less relative (means of the schemes)",
            Rule(low=0.0),
        ),
        Claim(
            "distance",
            "Rotary positions find a word at a fixed distance sooner than absolute ones.",
            "Su et al. 2021",
            "loss on letters that stood 16 places before, absolute (mean) less rotary, equal steps",
            Rule(low=0.2),
        ),
        Claim(
            "alike",
            "All relative positions see far dependencies well.",
            "often thought",
            "loss on letters that stood 16 places before, alibi less rotary",
            Rule(low=0.2),
            correction="A scheme must tell far distances apart: alibi only fades with them, t5 has few numbers there.",
        ),
        Claim(
            "matched",
            "The models compared have the same size.",
            "by construction",
            "largest difference of the number of weights, as a share (learned has a longer table)",
            Rule(high=0.03),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("model/positions.py",),
    tries=("qkv lab positions", "qkv train shakespeare-chars --set model.positions=alibi -o runs/alibi"),
)
