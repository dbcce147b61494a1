"""What pre-training is worth, what of it matters, and what BERT is not."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from qkv.bundled import path_of
from qkv.labs import texts
from qkv.labs.arms import Bench, bench, settings
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting
from qkv.model.transformer import Encoder
from qkv.pictures import COLOURS, DASHES, MARKS
from qkv.predict import Predictor, load_predictor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUNDLED = "bundled-encoder"
FEW, MANY = 20, 300  # labelled rows
PAIRS = 300  # labelled pairs
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


def labelled(rows: list[dict[str, str]], count: int, seed: int) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """So many rows to learn from, half of each label, and the same 200 others to be judged by."""
    dice = random.Random(seed)
    mixed = dice.sample(rows, len(rows))
    judged, rest = mixed[:200], mixed[200:]
    by_label: dict[str, list[dict[str, str]]] = {}
    for row in rest:
        by_label.setdefault(row["label"], []).append(row)
    each = count // len(by_label)
    return [row for some in by_label.values() for row in some[:each]], judged


def orders(rows: int, seed: int) -> Iterator[dict[str, str]]:
    """Pieces of real sentences, half of them with their words shuffled: in order, or not?"""
    dice = random.Random(seed)
    for number in range(rows):
        words = dice.choice(texts.paragraphs()).lower().split()
        start = dice.randrange(max(1, len(words) - 10))
        piece = words[start : start + 10]
        if number % 2:
            dice.shuffle(piece)
        yield {"text": " ".join(piece), "label": "shuffled" if number % 2 else "in order"}


def tuned(place: Bench, name: str, rows: list[dict[str, str]], count: int, init: str, setting: Setting) -> float:
    """Right answers after learning from so many rows, from pre-trained weights or from fresh ones of the same parts."""
    known, judged = labelled(rows, count, setting.seed)
    known_file, judged_file = place.table(f"{name}-{count}", known), place.table(f"{name}-judged", judged)
    table: dict[str, Any] = {
        "task": "classify",
        "seed": setting.seed,
        "data": {"corpus": known_file, "validation": judged_file, "length": 48},
        "train": {**settings(120 if setting.full else 50, tokens=768, rate=5e-4), "dropout": 0.1},
    }
    if init == "none":
        parts = load_predictor(path_of(BUNDLED)).config
        table["model"] = parts.replace(vocabulary=0, head="auto", classes=2).model_dump()
        table["tokenizer"] = {"kind": "wordpiece", "vocab_size": 400}
    else:
        table["init"] = init
    return place.train(f"{name}, {count} labels, {init}, seed {setting.seed}", table).accuracy


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


def pretrained(place: Bench, task: str, setting: Setting, **train: Any) -> str:
    """Pre-train a small model on real text for a moment; the folder it was written to."""
    corpus = place.text("help", texts.documents())
    family = "encoder" if task == "fill" else "decoder"
    model: dict[str, Any] = {
        "family": family, "width": 64, "heads": 4, "layers": 2, "feedforward": 128, "positions": "rotary",
    }  # fmt: skip
    table: dict[str, Any] = {
        "task": task,
        "seed": setting.seed,
        "data": {"corpus": corpus, "length": 64},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 1000},
        "model": model,
        "train": {**settings(1500 if setting.full else 300, tokens=2048, rate=3e-3), **train},
    }
    name = f"{task}{'-both' if train.get('next_sentence') else ''}"
    return place.keep(name, place.train(f"{name}, seed {setting.seed}", table))


def same_topic(rows: int, seed: int) -> list[dict[str, str]]:
    """Two pieces of real text, from one document or from two: are they from the same?"""
    dice, made = random.Random(seed), []
    for number in range(rows):
        one, other = dice.sample(texts.documents(), 2)
        pieces = []
        for document in (one, one if number % 2 else other):
            words = document.split()
            start = dice.randrange(len(words) - 16)
            pieces.append(" ".join(words[start : start + 16]))
        made.append({"text": pieces[0], "pair": pieces[1], "label": "same" if number % 2 else "other"})
    return made


def after(place: Bench, init: str, rows: list[dict[str, str]], setting: Setting) -> float:
    """Right answers of a small pre-trained model after fine-tuning on pairs or on orders."""
    known, judged = place.table("small", rows[: len(rows) - 300]), place.table("small-judged", rows[-300:])
    pair = "pair" if "pair" in rows[0] else "none"
    table: dict[str, Any] = {
        "task": "classify",
        "seed": setting.seed,
        "init": init,
        "data": {"corpus": known, "validation": judged, "pair": pair, "length": 64},
        "model": {"family": "decoder" if Path(init).name == "complete" else "encoder"},
        "train": settings(200 if setting.full else 60, tokens=2048, rate=1e-3),
    }
    return place.train(f"fine-tuning {Path(init).name}, seed {setting.seed}", table).accuracy


def measure(setting: Setting) -> Measured:
    predictor, seed = load_predictor(path_of(BUNDLED)), setting.seed
    opinions, order_rows = texts.opinions(slice(None)), list(orders(PAIRS + 300, seed))
    with bench(setting.tick) as place:
        told = {
            (count, init): tuned(place, "opinions", opinions, count, init, setting)
            for count in (FEW, MANY)
            for init in (BUNDLED, "none")
        }
        sorted_ = {init: tuned(place, "orders", order_rows, PAIRS, init, setting) for init in (BUNDLED, "none")}
        words = pretrained(place, "fill", setting, next_sentence=False)
        both = pretrained(place, "fill", setting, next_sentence=True)
        next_word = pretrained(place, "complete", setting)
        pairs = same_topic(PAIRS + 300, seed)
        on_pairs = {name: after(place, init, pairs, setting) for name, init in (("words", words), ("both", both))}
        on_orders = {
            name: after(place, init, order_rows, setting) for name, init in (("words", words), ("next", next_word))
        }
    gains = {count: told[count, BUNDLED] - told[count, "none"] for count in (FEW, MANY)}
    return Measured(
        effects={
            "beats": gains[FEW],
            "few": gains[FEW] - gains[MANY],
            "both": on_pairs["both"] - on_pairs["words"],
            "masked": on_orders["words"] - on_orders["next"],
            "specific": min(gains[FEW], sorted_[BUNDLED] - sorted_["none"]),
            "logic": logic_gap(predictor),
            "generates": order_of_filling(predictor),
        },
        figures={
            **{f"opinions, {count} labels, {init}": value for (count, init), value in told.items()},
            **{f"orders, {PAIRS} labels, {init}": value for init, value in sorted_.items()},
            **{f"pairs, pre-trained on {name}": value for name, value in on_pairs.items()},
            **{f"orders, pre-trained on {name}": value for name, value in on_orders.items()},
        },
        series={init: [told[count, init] for count in (FEW, MANY)] for init in (BUNDLED, "none")},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    axes = figure.subplots()
    names = {BUNDLED: "pre-trained", "none": "from nothing"}
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
    usual="Fine-tuning after pre-training beats training from nothing; BERT also learns the logic between sentences.",
    answer="It beats training from nothing, most where labels are few, and the same encoder serves different tasks. "
    "Next sentence asks whether B is the next, not whether it follows; and an encoder that fills in words does not "
    "generate.",
    paragraphs=(
        "The bundled encoder has guessed hidden words of 71,000 reviews and never seen a label. The lab gives it a "
        "handful of labelled opinions, and gives the same to a model of the same parts with fresh weights. With few "
        "labels most words of the opinions to be judged were never labelled: only who has met them before can know "
        "that 'dreadful' goes with 'awful'. Then a second task that has nothing to do with the first: words in order, "
        "or shuffled.",
        "Small models pre-trained on the spot compare the losses themselves: hidden words alone or with next "
        "sentences, judged on pairs; hidden words or next words, judged on order. And two things that BERT is not. "
        "Contradictions are called the next sentence about as often as continuations: it was asked what comes next, "
        "not what follows. And filling in two words gives different probabilities by which goes first, so there is no "
        "probability of texts to generate from.",
    ),
    formula="loss = hidden words + (is B the next sentence?)",
    claims=(
        Claim(
            "beats",
            "Fine-tuning after pre-training beats training from nothing.",
            "Devlin et al. 2019",
            "right answers with 20 labels, pre-trained less from nothing",
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
            "Next sentence helps with pairs, beside hidden words.",
            "Devlin et al. 2019, section 5.1",
            "right answers about pairs, both losses less hidden words alone, equal tokens",
            Rule(low=0.0),
        ),
        Claim(
            "masked",
            "Hidden words are the better pre-training than next words.",
            "Devlin et al. 2019, section 5.1",
            "right answers about the order of words, hidden less next words, equal tokens",
            Rule(low=0.0),
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
    read=("learn/start.py", "data/masking.py"),
    tries=("qkv demo", "qkv predict bundled-encoder 'What a [MASK] film!'"),
)
