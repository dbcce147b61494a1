"""[CLS] and [SEP]: what the special tokens of BERT do, before and after they have been given something to do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.hub import path_of
from qkv.labs import texts
from qkv.labs.arms import Arm, bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.transformer import Encoder, text_answers
from qkv.plots import BLUE, COLOURS, PALE
from qkv.predict.predictor import Predictor, load_predictor
from qkv.schema import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LETTERS = "bcdefghijklmnopqrst"
ROWS = 400  # reviews to learn from, and as many to judge


def model_of(setting: Setting) -> Predictor:
    predictor = load_predictor(path_of("bundled-encoder") if setting.run is None else setting.run)
    if not isinstance(predictor.model, Encoder):
        raise UserError(f"{setting.run}: the lab special looks at encoders")
    return predictor


def read_by_a_line(vectors_ND: Tensor, labels_N: Tensor, others_MD: Tensor, truth_M: Tensor, seed: int) -> float:
    """How well a straight line, fitted to some vectors, parts the others."""
    torch.manual_seed(seed)
    mean, deviation = vectors_ND.mean(0), vectors_ND.std(0) + 1e-6
    x, y = (vectors_ND - mean) / deviation, (others_MD - mean) / deviation
    line = torch.nn.Linear(x.shape[1], 1)
    optimiser = torch.optim.Adam(line.parameters(), 0.01, weight_decay=0.05)
    for _ in range(150):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(line(x)[:, 0], labels_N).backward()
        optimiser.step()
    return float(((line(y)[:, 0] > 0) == (truth_M > 0)).float().mean())


def before(predictor: Predictor, pool: str, seed: int) -> float:
    """Reviews judged by a line through the vectors of an encoder that has never judged one."""
    known, new = texts.reviews(ROWS, seed), texts.reviews(ROWS, seed + 500)
    vectors, others = (torch.from_numpy(predictor.embed([r["text"] for r in rows], pool=pool)) for rows in (known, new))
    labels, truth = (torch.tensor([float(r["label"] == "praise") for r in rows]) for rows in (known, new))
    return read_by_a_line(vectors, labels, others, truth, seed)


def after(init: str, pool: str, setting: Setting) -> float:
    """The same once the encoder was fine-tuned on the known reviews, the head reading [CLS] or the mean."""
    with bench(setting.tick) as place:
        known = place.table("known", texts.reviews(ROWS, setting.seed))
        new = place.table("new", texts.reviews(ROWS, setting.seed + 500))
        arm = place.train(
            f"fine-tuning, {pool}, seed {setting.seed}",
            {
                "task": "classify",
                "seed": setting.seed,
                "init": init,
                "data": {"corpus": known, "validation": new, "length": 96},
                "model": {"pool": pool},
                "train": {**settings(300 if setting.full else 200, tokens=512, rate=5e-4), "dropout": 0.1},
            },
        )
    return arm.accuracy


# --- pairs


def which_text(rows: int, seed: int) -> Iterator[dict[str, str]]:
    """Two texts of letters of any length; the letter a is in one of them. Which, tells only the border."""
    dice = random.Random(seed)
    for _ in range(rows):
        one, other = (dice.choices(LETTERS, k=dice.randint(2, 10)) for _ in range(2))
        first = dice.random() < 0.5
        side = one if first else other
        side[dice.randrange(len(side))] = "a"
        yield {"text": " ".join(one), "pair": " ".join(other), "label": "first" if first else "second"}


def pair_arm(setting: Setting, positions: str) -> Arm:
    """An encoder that has learnt it. Without positions [SEP] tells nothing: only segments part the texts."""
    with bench(setting.tick) as place:
        corpus = place.table("pairs", which_text(4000, setting.seed))
        model: dict[str, Any] = {"family": "encoder", "width": 32, "heads": 4, "layers": 2, "positions": positions,
                                 "segments": 2, "embedding_scale": True}  # fmt: skip
        return place.train(
            f"pairs, positions {positions}, seed {setting.seed}",
            {
                "task": "classify",
                "seed": setting.seed,
                "data": {"corpus": corpus, "pair": "pair", "length": 32},
                "tokenizer": {"kind": "wordpiece", "vocab_size": 64, "lowercase": True},
                "model": model,
                "train": settings(600 if setting.full else 300, tokens=512, rate=6e-3),
            },
        )


@torch.no_grad()
def right_if(arm: Arm, setting: Setting, *, swapped: bool = False, separated: bool = True) -> float:
    """Share of right answers about new pairs, with the segments of the two texts exchanged, or with all that parts
    them taken away."""
    assert isinstance(arm.model, Encoder)
    rows = list(which_text(400, setting.seed + 500))
    encoded = arm.tokenizer.encode([(one["text"], one["pair"]) for one in rows])
    labels, right = sorted({one["label"] for one in rows}), 0
    for one, row in zip(encoded, rows, strict=True):
        ids, segments = one.ids, one.segments
        if swapped:
            segments = [1 - segment for segment in segments]
        if not separated:
            middle = ids.index(ids[-1])
            ids, segments = ids[:middle] + ids[middle + 1 :], [0] * (len(ids) - 1)
        answer = text_answers(arm.model, torch.tensor([ids]), None, torch.tensor([segments]))
        right += labels[int(answer.argmax())] == row["label"]
    return right / len(rows)


def measure(setting: Setting) -> Measured:
    predictor = model_of(setting)
    init = "bundled-encoder" if setting.run is None else str(setting.run.resolve())
    read = {pool: before(predictor, pool, setting.seed) for pool in ("first", "mean")}
    tuned = {pool: after(init, pool, setting) for pool in ("first", "mean")}
    arm, unordered = pair_arm(setting, "rotary"), pair_arm(setting, "none")
    pairs = {
        "as trained": right_if(arm, setting),
        "segments exchanged": right_if(arm, setting, swapped=True),
        "[SEP] and segments away": right_if(arm, setting, separated=False),
        "no positions": right_if(unordered, setting),
        "no positions, segments exchanged": right_if(unordered, setting, swapped=True),
    }
    return Measured(
        effects={
            "gathers": tuned["first"] - tuned["mean"],
            "learns": tuned["first"] - read["first"],
            "by-itself": read["mean"] - read["first"],
            "separates": pairs["as trained"] - pairs["[SEP] and segments away"],
            "segments": pairs["no positions"] - pairs["no positions, segments exchanged"],
        },
        figures={
            **{f"{'[CLS]' if pool == 'first' else 'mean'}, before fine-tuning": value for pool, value in read.items()},
            **{f"{'[CLS]' if pool == 'first' else 'mean'}, after": value for pool, value in tuned.items()},
            **{f"pairs right, {name}": value for name, value in pairs.items()},
        },
        series={
            "reviews": [read["first"], read["mean"], tuned["first"], tuned["mean"]],
            "pairs": list(pairs.values()),
        },
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(4, 5))
    of_pairs = ("as\ntrained", "segments\nexchanged", "both\naway", "no\npositions", "the same,\nexchanged")
    panels = (
        (left, "reviews", ("[CLS],\nbefore", "mean,\nbefore", "[CLS],\nafter", "mean,\nafter"), "fine-tuning"),
        (right, "pairs", of_pairs, "pairs of texts"),
    )
    for axes, key, names, title in panels:
        for number, name in enumerate(names):
            values = [one.series[key][number] for one in measured]
            axes.bar(name, sum(values) / len(values), color=PALE, edgecolor=BLUE, width=0.6)
            axes.plot([number] * len(values), values, color=COLOURS[0], marker="o", linestyle="")
        axes.axhline(0.5, color="#777777", linewidth=0.8)
        axes.set_ylim(0, 1.05)
        axes.set_title(title)
    left.set_ylabel("right answers (grey: guessing)")


LAB = Lab(
    name="special",
    question="What do [CLS] and [SEP] do?",
    usual="[CLS] holds the meaning of the sentence; [SEP] separates two sentences.",
    answer="[CLS] gathers the input for a classifier once it is fine-tuned to; before, the mean of all tokens says "
    "more. [SEP] and the segments tell a model which text is which; without them it cannot know.",
    paragraphs=(
        "[CLS] stands before every text and is no word. Being free of a meaning of its own it can gather that of the "
        "others, if something asks it to. The lab takes an encoder that has filled in words but never judged a text, "
        "and texts of five opinions, three against two, so that no sentence alone decides. It draws a straight line "
        "through the vectors of some texts and judges others: by [CLS], and by the mean of all tokens. Then it "
        "fine-tunes the encoder, each way.",
        "[SEP] stands between two texts, and segments number them. For a task that depends on the border, here which "
        "of two texts holds a letter, an encoder is trained with both; then the segments are exchanged, or both are "
        "taken away, and the same model is asked again. A model that has both may come to use either; in a second one "
        "without positions, to which [SEP] can stand anywhere, segments alone say which text is which.",
    ),
    formula="[CLS] text A [SEP] text B [SEP],   segments 0 0 0 0 1 1 1",
    claims=(
        Claim(
            "gathers",
            "[CLS] gathers the input for a classifier.",
            "Devlin et al. 2019, section 3",
            "right answers by [CLS], less those by the mean, after fine-tuning",
            Rule(-0.05, 1.0),
        ),
        Claim(
            "learns",
            "It does so by fine-tuning.",
            "Devlin et al. 2019, section 3.2",
            "right answers by [CLS] after fine-tuning, less before",
            Rule(low=0.0),
        ),
        Claim(
            "by-itself",
            "[CLS] holds the meaning of the sentence by itself.",
            "often written",
            "right answers by the mean, less those by [CLS], before fine-tuning",
            Rule(low=0.02),
            correction="Before fine-tuning the mean of all tokens says more.",
        ),
        Claim(
            "separates",
            "[SEP] and segments separate a pair.",
            "Devlin et al. 2019, section 3",
            "right answers with them, less those with both taken away",
            Rule(low=0.2),
        ),
        Claim(
            "segments",
            "Segments say which text is which.",
            "Devlin et al. 2019, section 3",
            "right answers of an encoder without positions, less those with the segments exchanged",
            Rule(low=0.1),
        ),
    ),
    measure=measure,
    draw=draw,
    read=("data/batch.py", "model/heads.py"),
    tries=("qkv lab context", "qkv lab special RUN"),
    seeds=5,
    full_seeds=6,
    looks_at=("encoder",),
)
