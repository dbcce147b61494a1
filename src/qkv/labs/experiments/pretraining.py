"""What pre-training is worth, what of it matters, and what BERT is not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qkv.config.recipe import FAMILIES_OF_TASK, TaskName
from qkv.hub import path_of
from qkv.labs import texts
from qkv.labs.arms import Bench, bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.transformer import Encoder
from qkv.plots import COLOURS, DASHES, MARKS
from qkv.predict.predictor import Predictor, load_predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUNDLED = "bundled-encoder"
FEW, MANY = 20, 300  # labelled rows
PAIRS = 600  # labelled pairs, and scenes
KNOWN, NEW = slice(0, 5), slice(5, 10)  # words of a topic that are learnt with a label, and words to be judged
NONE = "none"
Rows = list[dict[str, str]]
# A sentence, one that goes well with it, and one that contradicts it; all three about the same thing.
LOGIC = (
    ("this film is wonderful .", "i loved every minute of it .", "i hated every minute of it ."),
    ("the acting was terrible .", "nobody in the cast can act .", "everybody in the cast acts very well ."),
    ("it is a very long film .", "it runs for three hours .", "it runs for only ten minutes ."),
    ("the story is set in japan .", "the hero lives in tokyo .", "nobody in it has ever been to japan ."),
    ("i saw it alone at home .", "i watched it on my couch .", "the theater was full of people ."),
    ("the ending was a surprise .", "i did not see it coming .", "everyone knew how it would end ."),
    ("this is her first movie .", "she had never acted before .", "she has been in fifty movies before ."),
    ("the film has no music .", "it is silent all the way through .", "the music is loud all the way through ."),
)
SENTENCES = (
    "this is the best film i have ever seen .",
    "i really want to like this movie .",
    "the acting is very good and the story is great .",
    "it was one of the worst movies of the year .",
)


def labelled(rows: Rows, count: int, seed: int) -> tuple[Rows, Rows]:
    """So many rows to learn from, half of each label, and the same 200 others to be judged by."""
    dice = random.Random(seed)
    mixed = dice.sample(rows, len(rows))
    judged, rest = mixed[:200], mixed[200:]
    by_label: dict[str, Rows] = {}
    for row in rest:
        by_label.setdefault(row["label"], []).append(row)
    each = count // len(by_label)
    return [row for some in by_label.values() for row in some[:each]], judged


def grouped(rows: int, seed: int, words: slice) -> list[dict[str, str]]:
    """Scenes, and to which half of the topics each belongs. Words that were not learnt with a label can only be judged
    by who knows which company they keep."""
    dice, topics = random.Random(seed), list(texts.TOPICS)
    chosen = [dice.choice(topics) for _ in range(rows)]
    return [
        {"text": texts.scene(dice, topic, words), "label": "one" if topics.index(topic) < len(topics) // 2 else "other"}
        for topic in chosen
    ]


def paired(rows: int, seed: int) -> list[dict[str, str]]:
    """Two scenes, of one topic or of two: are they of the same?"""
    dice, made = random.Random(seed), list[dict[str, str]]()
    for number in range(rows):
        one, other = dice.sample(list(texts.TOPICS), 2)
        second = one if number % 2 else other
        label = "same" if number % 2 else "other"
        made.append({"text": texts.scene(dice, one), "pair": texts.scene(dice, second), "label": label})
    return made


def tuned(place: Bench, name: str, rows: Rows, judged: Rows, init: str, setting: Setting) -> float:
    """Right answers after learning from some rows, from the bundled weights or from fresh ones of the same parts."""
    table: dict[str, Any] = {
        "task": "classify",
        "seed": setting.seed,
        "data": {
            "corpus": place.table(name, rows),
            "validation": place.table(f"{name}-judged", judged),
            "length": 48,
        },
        "train": {**settings(120 if setting.full else 50, tokens=512, rate=5e-4), "dropout": 0.1},
    }
    if init == NONE:
        parts = load_predictor(path_of(BUNDLED)).config
        table["model"] = parts.replace(vocabulary=0, head="auto", classes=2).model_dump()
        table["tokenizer"] = {"kind": "wordpiece", "vocab_size": 400, "lowercase": True}
    else:
        table["init"] = init
    return place.train(f"{name}, {init}, seed {setting.seed}", table).accuracy


# --- what BERT is not


def logic_gap(predictor: Predictor) -> float:
    """How much likelier the encoder calls the fitting sentence the next one than the contradicting one, on average."""
    fits = predictor.predict([(a, b) for a, b, _ in LOGIC])
    clashes = predictor.predict([(a, c) for a, _, c in LOGIC])
    gaps = [
        (x.probabilities or {})["next"] - (y.probabilities or {})["next"] for x, y in zip(fits, clashes, strict=True)
    ]
    return sum(gaps) / len(gaps)


@torch.no_grad()
def order_of_filling(predictor: Predictor) -> float:
    """Hide two neighbouring words. The probability of both is the product of two steps, and must not depend on which is
    filled in first, if the model had a probability for texts: the mean difference of the two logarithms, in nats."""
    model, tokenizer = predictor.model, predictor.tokenizer
    assert isinstance(model, Encoder)
    assert tokenizer.mask is not None
    mask, found = tokenizer.id_of(tokenizer.mask), []
    for sentence in SENTENCES:
        ids = tokenizer.encode([sentence])[0].ids
        for place in range(2, len(ids) - 3):

            def chance(given: dict[int, int], asked: int, truth: list[int] = ids, first: int = place) -> float:
                shown = [mask if n in (first, first + 1) else one for n, one in enumerate(truth)]
                for where, word in given.items():
                    shown[where] = word
                logits = model.logits(model(torch.tensor([shown]))[0, asked])
                return float(logits.log_softmax(-1)[truth[asked]])

            forward = chance({}, place) + chance({place: ids[place]}, place + 1)
            backward = chance({}, place + 1) + chance({place + 1: ids[place + 1]}, place)
            found.append(abs(forward - backward))
    return sum(found) / len(found)


# --- what of it matters


def pretrained(place: Bench, task: TaskName, setting: Setting, **train: Any) -> str:
    """Pre-train a small model on stories for a moment; the folder it was written to."""
    corpus = place.text("stories", texts.stories(800, setting.seed))
    family = FAMILIES_OF_TASK[task][0]
    model: dict[str, Any] = {
        "family": family, "width": 64, "heads": 4, "layers": 2, "feedforward": 128, "positions": "rotary",
    }  # fmt: skip
    table: dict[str, Any] = {
        "task": task,
        "seed": setting.seed,
        "data": {"corpus": corpus, "length": 64},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 300, "lowercase": True},
        "model": model,
        "train": {**settings(500 if setting.full else 300, tokens=2048, rate=3e-3), **train},
    }
    name = f"{task}{'-both' if train.get('next_sentence') else ''}"
    return place.keep(name, place.train(f"{name}, seed {setting.seed}", table))


def after(place: Bench, init: str, rows: Rows, judged: Rows, setting: Setting) -> float:
    """Right answers of a small pre-trained model once it was fine-tuned."""
    table: dict[str, Any] = {
        "task": "classify",
        "seed": setting.seed,
        "init": init,
        "data": {
            "corpus": place.table("small", rows),
            "validation": place.table("small-judged", judged),
            "pair": "pair" if "pair" in rows[0] else "none",
            "length": 48,
        },
        "model": {"family": "decoder" if Path(init).name == "complete" else "encoder"},
        "train": settings(150 if setting.full else 100, rate=1e-3),
    }
    return place.train(f"fine-tuning {Path(init).name}, seed {setting.seed}", table).accuracy


def of_the_bundled(place: Bench, setting: Setting) -> dict[tuple[str, str], float]:
    """Right answers by task and by what was begun with."""
    opinions = {count: labelled(texts.opinions(), count, setting.seed) for count in (FEW, MANY)}
    others = labelled(texts.mentions(), FEW, setting.seed)
    tasks = {**{f"opinions, {count} labels": rows for count, rows in opinions.items()}, "people or things": others}
    return {
        (name, init): tuned(place, name, *rows, init, setting)
        for name, rows in tasks.items()
        for init in (BUNDLED, NONE)
    }


def of_the_losses(place: Bench, setting: Setting) -> dict[str, float]:
    """Right answers by what was pre-trained for: on pairs, and on single scenes."""
    begun = {
        "hidden words": pretrained(place, "fill", setting, next_sentence=False),
        "both losses": pretrained(place, "fill", setting, next_sentence=True),
        "next words": pretrained(place, "complete", setting),
    }
    seed = setting.seed
    pairs = paired(PAIRS, seed + 1), paired(300, seed + 2)
    scenes = grouped(PAIRS, seed + 3, KNOWN), grouped(300, seed + 4, NEW)
    on_pairs = {
        f"pairs, {name}": after(place, begun[name], *pairs, setting) for name in ("hidden words", "both losses")
    }
    on_scenes = {
        f"topics, {name}": after(place, begun[name], *scenes, setting) for name in ("hidden words", "next words")
    }
    return {**on_pairs, **on_scenes}


def measure(setting: Setting) -> Measured:
    predictor = load_predictor(path_of(BUNDLED))
    with bench(setting.tick) as place:
        told, small = of_the_bundled(place, setting), of_the_losses(place, setting)
    gains = {name: told[name, BUNDLED] - told[name, NONE] for name, init in told if init == NONE}
    few, many = (gains[f"opinions, {count} labels"] for count in (FEW, MANY))
    return Measured(
        effects={
            "beats": few,
            "few": few - many,
            "both": small["pairs, hidden words"] - small["pairs, both losses"],
            "masked": small["topics, next words"] - small["topics, hidden words"],
            "specific": min(few, gains["people or things"]),
            "logic": logic_gap(predictor),
            "generates": order_of_filling(predictor),
        },
        figures={**{f"{name}, {init}": value for (name, init), value in told.items()}, **small},
        series={init: [told[f"opinions, {count} labels", init] for count in (FEW, MANY)] for init in (BUNDLED, NONE)},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    names = {BUNDLED: "pre-trained", NONE: "from scratch"}
    for number, (init, name) in enumerate(names.items()):
        rows = [one.series[init] for one in measured]
        means = [sum(column) / len(rows) for column in zip(*rows, strict=True)]
        look: dict[str, Any] = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKS[number]}
        axes.plot((FEW, MANY), means, label=name, **look)
        for row in rows:
            axes.plot((FEW, MANY), row, color=COLOURS[number], linestyle="", marker=".", alpha=0.6)
    axes.set_xscale("log")
    axes.set_xticks((FEW, MANY), [str(FEW), str(MANY)])
    axes.minorticks_off()
    axes.set_ylim(0.4, 1.02)
    axes.set_xlabel("opinions with a label (dots: seeds)")
    axes.set_ylabel("right answers about others")
    axes.legend(frameon=False)


LAB = Lab(
    name="pretraining",
    question="What is pre-training worth?",
    usual="Fine-tuning after pre-training beats training from scratch; BERT also learns the logic between sentences.",
    answer="It beats training from scratch, most where labels are few, and the same encoder serves different tasks. "
    "Hidden words are enough of it; next words teach faster. Next sentence asks whether B is the next, not whether it "
    "follows; and an encoder that fills in words does not generate.",
    paragraphs=(
        "The bundled encoder has guessed hidden words of 71,000 reviews and never seen a label. The lab gives it a "
        "handful of labelled opinions, and gives the same to a model of the same parts with fresh weights. With few "
        "labels most words of the opinions to be judged were never labelled: only who has met them before can know "
        "that 'dreadful' goes with 'awful'. Then a second task that has nothing to do with the first: whether a "
        "sentence speaks of a person or of a thing.",
        "Small models pre-trained on the spot, on made-up stories of twelve topics, compare the losses themselves: "
        "hidden words alone or with next sentences, judged on pairs; hidden words or next words, judged on scenes with "
        "words that no label was about. They are hard enough: only the company that words keep tells their topic. And "
        "two things that BERT is not. "
        "Contradictions are called the next sentence about as often as continuations: it was asked what comes next, "
        "not what follows. And filling in two words gives different probabilities by which goes first, so there is no "
        "probability of texts to generate from.",
    ),
    formula="loss = hidden words + (is B the next sentence?)",
    claims=(
        Claim(
            "beats",
            "Fine-tuning a pre-trained model beats training from scratch.",
            "Devlin et al. 2019",
            "right answers with 20 labels, pre-trained less from scratch",
            Rule(low=0.05),
        ),
        Claim(
            "few",
            "most with few labels.",
            "Howard and Ruder 2018",
            "that gain with 20 labels, less that with 300",
            Rule(low=0.0),
        ),
        Claim(
            "both",
            "Next sentence, beside hidden words, helps with pairs.",
            "Devlin et al. 2019, section 5.1",
            "right answers about pairs, hidden words alone less both losses, equal tokens",
            Rule(low=0.0),
            correction="At equal tokens hidden words alone are the better start, for pairs too (Liu et al. 2019).",
        ),
        Claim(
            "masked",
            "Hidden words teach more than next words.",
            "Devlin et al. 2019, section 5.1",
            "right answers about scenes, next words less hidden words, equal tokens",
            Rule(low=0.0),
            correction="Not at first: every next word is a lesson, of hidden ones one in seven (Clark et al. 2020).",
        ),
        Claim(
            "specific",
            "Pre-training is specific to a task.",
            "found in print",
            "smallest gain over two different tasks",
            Rule(low=0.0),
            correction="The same pre-trained encoder helps with different tasks.",
        ),
        Claim(
            "logic",
            "Next sentence asks whether B follows logically from A.",
            "often written",
            "how much likelier a fitting sentence is called the next than a contradicting one",
            Rule(-0.2, 0.2),
            correction="It asks whether B is the next sentence; contradictions are called so about as often.",
        ),
        Claim(
            "generates",
            "BERT generates text.",
            "found in print",
            "difference of the two orders of filling in two words (nats); a model of texts has 0",
            Rule(low=0.1),
            correction="It has no probability of texts: what it says depends on the order of filling in.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("training/pretrained.py", "tasks/masking.py"),
    full_seeds=8,
    tries=("qkv demo", "qkv predict bundled-encoder 'What a [MASK] film!'"),
)
