"""Beam search: the textbook's chain of two words, and a real translator with wider and wider beams."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from qkv.corpus.corpus import open_corpus
from qkv.hub import path_of
from qkv.labs import phrases
from qkv.labs.lab import Claim, Lab, Measured, Rule, Setting, mean_series
from qkv.metrics import translation_metrics
from qkv.plots import COLOURS, MARKS
from qkv.predict.decode import beam, greedy, ranked
from qkv.predict.predictor import Predictor, load_predictor
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tasks import TASKS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUNDLED = "bundled-en-fr"
GREEDY, NARROW, USUAL, WIDE = 1, 2, 5, 20  # widths that claims speak of
WIDTHS = (GREEDY, NARROW, USUAL, WIDE)
FULL_WIDTHS = (GREEDY, NARROW, 3, USUAL, 10, WIDE, 50)
SENTENCES, FULL_SENTENCES = 300, 600
A, B, WORDS, END = 10, 11, 12, 12  # A, B and ten other words, and the end


# --- the chain


def chain() -> tuple[Tensor, list[Tensor]]:
    """Scores of the first word, and of the next by the word before: A (0.7) is followed by ten words of 0.1 each, B
    (0.3) by one of 0.9 and one of 0.1; then comes the end."""
    first, end = torch.full((WORDS + 1,), -torch.inf), torch.full((WORDS + 1,), -torch.inf)
    first[A], first[B], end[END] = math.log(0.7), math.log(0.3), 0.0
    after_a, after_b = torch.full((WORDS + 1,), -torch.inf), torch.full((WORDS + 1,), -torch.inf)
    after_a[:10], after_b[0], after_b[1] = math.log(0.1), math.log(0.9), math.log(0.1)
    return first, [*[end] * 10, after_a, after_b, end]


def of_the_chain() -> tuple[float, float]:
    """Probability of what greedy search ends with, and of what a beam of two does."""
    first, after = chain()

    def step(tokens_N: Tensor, origin_N: Tensor, cache: None) -> tuple[Tensor, None]:
        return torch.stack([after[token] for token in tokens_N.tolist()]), cache

    taken = greedy(step, first[None], None, end=(END,), limit=4)
    alone = math.exp(sum(float(one.log_probabilities_N[0]) for one in taken))
    trace = beam(step, first[None], None, width=2, end=(END,), limit=4, alpha=0.0)
    ((answer,),) = ranked(trace, texts=1, limit=4, alpha=0.0)
    return alone, math.exp(answer.log_probability)


# --- the translator


def sentences(setting: Setting) -> tuple[Predictor, list[tuple[str, str]]]:
    """The translator and what it is asked: sentences of ours, or a run's own test rows."""
    count = FULL_SENTENCES if setting.full else SENTENCES
    if setting.run is None or setting.run == path_of(BUNDLED):
        return load_predictor(path_of(BUNDLED)), phrases.pairs(count, setting.seed)
    predictor, recipe = load_predictor(setting.run), Run(setting.run).recipe
    if predictor.config.family != "encoder-decoder" or recipe is None:
        raise UserError(f"{setting.run}: the lab beam looks at runs that translate")
    rows = open_corpus(recipe.data, TASKS[recipe.task].format(recipe)).rows(["test"])
    found = [(row.text, row.pair) for _, row in rows if row.text.strip() and row.pair]
    return predictor, random.Random(setting.seed).sample(found, min(count, len(found)))


def measure(setting: Setting) -> Measured:
    alone, found = of_the_chain()
    predictor, asked = sentences(setting)
    texts, references = [text for text, _ in asked], [reference for _, reference in asked]
    widths = FULL_WIDTHS if setting.full else WIDTHS
    likely, bleu = dict[int, list[float]](), dict[int, float]()
    for width in widths:
        setting.tick(f"beam {width}, seed {setting.seed}")
        answers = predictor.predict(texts, beam=width, length_penalty=0.0)
        likely[width] = [one.log_probability or 0.0 for one in answers]
        bleu[width] = translation_metrics([one.output or "" for one in answers], references)[0]["bleu"]
    means = {width: sum(values) / len(values) for width, values in likely.items()}
    missed = sum(wide > narrow + 1e-4 for narrow, wide in zip(likely[NARROW], likely[WIDE], strict=True))
    return Measured(
        effects={
            "greedy": alone,
            "beam": found,
            "likelier": means[USUAL] - means[GREEDY],
            "better": bleu[USUAL] - bleu[GREEDY],
            "wider": bleu[WIDE] - bleu[USUAL],
            "best": missed / len(texts),
        },
        figures={
            **{f"mean log-probability, beam {width}": value for width, value in means.items()},
            **{f"BLEU, beam {width}": value for width, value in bleu.items()},
        },
        series={"widths": list(widths), "likely": list(means.values()), "bleu": list(bleu.values())},
    )


def draw(figure: Figure, measured: Sequence[Measured]) -> None:
    widths = measured[0].series["widths"]
    names = (("likely", "log-probability of the answer, mean"), ("bleu", "BLEU"))
    for number, (axes, (name, label)) in enumerate(zip(figure.subplots(1, 2), names, strict=True)):
        for one in measured:
            axes.plot(widths, one.series[name], color=COLOURS[number], alpha=0.35, linewidth=1)
        axes.plot(widths, mean_series(measured, name), color=COLOURS[number], marker=MARKS[number])
        axes.set_xscale("log")
        far_apart = [a for a, b in pairwise([*widths, math.inf]) if b / a > 1.4]
        axes.set_xticks(far_apart, [f"{width:.0f}" for width in far_apart])
        axes.minorticks_off()
        axes.set_xlabel("width of the beam; 1 is greedy (thin: seeds)")
        axes.set_ylabel(label)


LAB = Lab(
    name="beam",
    question="Why search with a beam, and how wide?",
    usual="Greedy search takes the likeliest word each time and can miss the best sentence; a beam finds it.",
    answer="Greedy search ends with 0.07 where a beam finds 0.27. On a real translator a beam finds likelier answers "
    "and better ones, but wider ones soon find likelier answers that are no better; and none is sure to find the best.",
    paragraphs=(
        "A model gives the probability of the next word. What is wanted is the likeliest sentence, and there are too "
        "many to try. Greedy search takes the likeliest word each time. Say A has 0.7 and B 0.3, but ten words are "
        "equally likely after A and one has 0.9 after B: greedy search ends with 0.7 x 0.1 = 0.07, and never sees "
        "0.3 x 0.9 = 0.27. A beam holds several beginnings at once and drops the unlikeliest.",
        "Then the same on a real translator: how likely are the answers found with wider and wider beams, and how "
        "near to a human translation (BLEU)? Likelier is what the search is for; better is what the reader is for. "
        "The two part company, since the model is not the truth. No penalty for length is used here: it would rank the "
        "answers by something else than their probability.",
    ),
    formula="log P(y | x) = Σ_t log P(y_t | y_1 ... y_{t-1}, x)",
    claims=(
        Claim(
            "greedy",
            "Greedy decoding takes A (0.7) and ends with 0.07.",
            "textbook",
            "probability of its answer",
            Rule(0.07 - 1e-6, 0.07 + 1e-6),
        ),
        Claim(
            "beam",
            "A beam of two finds B (0.3) with 0.27.",
            "textbook",
            "probability of its answer",
            Rule(0.27 - 1e-6, 0.27 + 1e-6),
        ),
        Claim(
            "likelier",
            "On a real model, too, a beam finds likelier answers.",
            "Sutskever et al. 2014",
            "mean log-probability with a beam of 5, less that of greedy search",
            Rule(low=0.001),
        ),
        Claim(
            "better",
            "and better translations.",
            "Sutskever et al. 2014, table 1",
            "BLEU with a beam of 5, less that of greedy search",
            Rule(low=0.0),
        ),
        Claim(
            "wider",
            "The wider the beam, the better the translation.",
            "often thought",
            "BLEU with a beam of 20, less that with 5",
            Rule(high=1.0),
            correction="Likelier, yes; better, hardly: a beam of 5 has nearly all of it.",
        ),
        Claim(
            "best",
            "A beam search finds the likeliest answer.",
            "often thought",
            "share of sentences for which a beam of 20 finds a likelier answer than one of 2",
            Rule(low=0.001),
            correction="It may miss it: wider ones find likelier answers still.",
        ),
    ),
    measure=measure,
    draw=draw,
    read=("predict/decode.py", "predict/generate.py"),
    tries=("qkv predict bundled-en-fr 'Where is the station?' --show-beams", "qkv lab beam RUN"),
    looks_at=("encoder-decoder",),
)
