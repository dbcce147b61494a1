"""Relative positions against absolute ones: learning, longer texts than trained on, and words far apart."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qkv.labs import texts
from qkv.labs.arms import Arm, Bench, bench, loss_by_place, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.pictures import BLUE, COLOURS, DASHES, MARKS, PALE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ABSOLUTE, RELATIVE = ("sinusoidal", "learned"), ("relative", "t5", "alibi", "rotary")
TRAINED, LONG, HELD_OUT = 32, 128, 5
LETTERS, PLACES, FAR = "abcdefghijklmnopqrst", 48, 16


def parts(positions: str, family: str, **changes: Any) -> dict[str, Any]:
    """The same small model with each scheme. Weights differ by the scheme's own table only: below 3%."""
    model: dict[str, Any] = {
        "family": family, "width": 64, "heads": 4, "layers": 2, "feedforward": 128, "positions": positions,
        "context": LONG + 1, **changes,
    }  # fmt: skip
    return {**model, "embedding_scale": True} if positions == "sinusoidal" else model


# --- masked words: who leaves the plateau first


def masked_words(place: Bench, corpus: str, positions: str, setting: Setting) -> Arm:
    model = parts(positions, "encoder", output_bias=True, head="auto")
    return place.train(
        f"masked words, {positions}, seed {setting.seed}",
        {
            "task": "fill",
            "seed": setting.seed,
            "data": {"corpus": corpus, "length": 64},
            "tokenizer": {"kind": "wordpiece", "vocab_size": 1000},
            "model": model,
            "train": {
                **settings(1000 if setting.full else 250, tokens=2048, rate=3e-3),
                "next_sentence": False,
                "mask_words": 0.2,
            },
        },
    )


# --- train short, read long


def next_words(place: Bench, corpus: str, positions: str, setting: Setting) -> Arm:
    return place.train(
        f"next words, {positions}, seed {setting.seed}",
        {
            "task": "complete",
            "seed": setting.seed,
            "data": {"corpus": corpus, "length": TRAINED + 1},
            "tokenizer": {"kind": "wordpiece", "vocab_size": 1000},
            "model": parts(positions, "decoder", norm_place="pre"),
            "train": settings(600 if setting.full else 120, rate=3e-3),
        },
    )


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
    arm = place.train(
        f"distance {gap}, {positions}, seed {setting.seed}",
        {
            "task": "complete",
            "seed": setting.seed,
            "data": {"corpus": corpus, "length": PLACES + 2},
            "tokenizer": {"kind": "wordpiece", "vocab_size": 64},
            "model": parts(positions, "decoder", norm_place="pre"),
            "train": settings(400 if setting.full else 120, tokens=2048, rate=3e-3),
        },
    )
    curve = loss_by_place(arm, repeated(gap, 100, setting.seed + 1000), PLACES)
    return sum(curve[gap:]) / (PLACES - gap)


def weights_of(arm: Arm) -> int:
    return sum(weight.numel() for weight in arm.model.parameters())


def measure(setting: Setting) -> Measured:
    documents, schemes = texts.documents(), (*ABSOLUTE, *RELATIVE)
    gaps = (4, 8, FAR) if setting.full else (4, FAR)
    with bench(setting.tick) as place:
        corpus, held = place.text("help", documents[HELD_OUT:]), documents[:HELD_OUT]
        filled = {name: masked_words(place, corpus, name, setting) for name in ("learned", "rotary")}
        arms = {name: next_words(place, corpus, name, setting) for name in schemes}
        rises = {name: rise(arm, held) for name, arm in arms.items()}
        far = {(name, gap): at_a_distance(place, name, gap, setting) for name in schemes for gap in gaps}
    sizes = [weights_of(arm) for name, arm in arms.items() if name != "learned"]  # its table is as long as wanted

    def mean_of(table: dict[str, float], names: Sequence[str]) -> float:
        return sum(table[name] for name in names) / len(names)

    furthest = {name: far[name, FAR] for name in schemes}
    return Measured(
        effects={
            "plateau": filled["learned"].loss - filled["rotary"].loss,
            "long": mean_of(rises, ABSOLUTE) - mean_of(rises, RELATIVE),
            "distance": mean_of(furthest, ABSOLUTE) - mean_of(furthest, RELATIVE),
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
            "far": [furthest[name] for name in schemes],
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
        axes.invert_yaxis()


LAB = Lab(
    name="long-range",
    question="Are relative positions better than absolute ones?",
    usual="Relative positions generalise to longer texts and see far dependencies better.",
    answer="At equal size they learn hidden words far earlier, lose less beyond the trained length, and find what "
    "stands a fixed distance back much sooner. They are not all alike in it: alibi reads on best, rotary less.",
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
            "Masked-word training leaves its plateau far earlier with rotary than with learned positions.",
            "measured while the bundled encoder was made",
            "loss with learned, less loss with rotary, equal steps",
            Rule(low=0.2),
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
            "Relative positions find a word at a fixed distance sooner.",
            "Shaw et al. 2018",
            "loss on letters that stood 16 places before, absolute less relative, equal steps",
            Rule(low=0.0),
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
