"""200 short sentences, half of them with a negation: does a classifier of reviews read them, or only count words?

    .venv/bin/python benchmarks/template_sentences.py runs/reviews runs/reviews-quick

The sentences are made here from small lists, 50 each of positive and negative, plain and negated; a label follows from
how a sentence is made, and nothing was chosen by what any model says. A negated sentence of one label is a pattern's
negation around a word of the other: "The film was not boring." is positive.

Then the probability of positive for two sentences of another kind, as the model ships them (calibrated) and before its
temperature T was divided out (raw): p to the power of T, made to sum to 1 again.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from table import head, row, run_main

from qkv import api
from qkv.predict.prediction import Text
from qkv.predict.predictor import Predictor
from qkv.schema import UserError, listed

PATTERNS = [  # plain, negated, which kind of word
    ("The {s} was {w}.", "The {s} was not {w}.", "adjective"),
    ("I found the {s} {w}.", "I did not find the {s} {w}.", "adjective"),
    ("The {s} is really {w}.", "The {s} is not {w} at all.", "adjective"),
    ("The {s} is {w} from start to finish.", "The {s} is far from {w}.", "adjective"),
    ("There is something {w} about the {s}.", "There is nothing {w} about the {s}.", "adjective"),
    ("I was {w} by the {s}.", "I was not {w} by the {s}.", "participle"),
    ("I really {w} the {s}.", "I did not {w} the {s}.", "verb"),
]
SUBJECTS = ["film", "movie", "acting", "story", "ending", "script", "dialogue", "direction"]
WORDS = {
    ("adjective", "positive"): [
        "wonderful",
        "brilliant",
        "excellent",
        "superb",
        "great",
        "good",
        "delightful",
        "enjoyable",
        "impressive",
        "beautiful",
    ],
    ("adjective", "negative"): [
        "terrible",
        "boring",
        "awful",
        "dreadful",
        "bad",
        "poor",
        "tedious",
        "disappointing",
        "dull",
        "ridiculous",
    ],
    ("participle", "positive"): ["impressed", "moved", "thrilled", "charmed", "delighted"],
    ("participle", "negative"): ["bored", "annoyed", "disappointed", "insulted", "disgusted"],
    ("verb", "positive"): ["enjoy", "love", "like", "admire", "appreciate"],
    ("verb", "negative"): ["hate", "dislike", "despise", "regret", "loathe"],
}
EACH = 50  # sentences of each label and form
OTHER = {"positive": "negative", "negative": "positive"}
STORIES = ("Christopher Nolan's Inception is an awesome film", "The film I watched yesterday is a horrible one")


@dataclass(frozen=True)
class Sentence:
    text: str
    label: str
    negated: bool


@dataclass(frozen=True)
class Story:
    """Probability of positive for one of the two sentences."""

    raw: float
    calibrated: float


def sentences() -> list[Sentence]:
    """All of them. Patterns (7), subjects (8) and words (10 or 5) turn at their own pace, so no two are alike."""
    made = []
    for label in OTHER:
        for negated in (False, True):
            for number in range(EACH):
                plain, negation, kind = PATTERNS[number % len(PATTERNS)]
                words = WORDS[kind, OTHER[label] if negated else label]
                word = words[number % len(words)]
                text = (negation if negated else plain).format(s=SUBJECTS[number % len(SUBJECTS)], w=word)
                made.append(Sentence(text, label, negated))
    assert len({sentence.text for sentence in made}) == len(made) == 4 * EACH
    return made


def positive_of(predictor: Predictor) -> str:
    """What a model calls positive."""
    names = predictor.labels
    for name in ("positive", "1"):
        if name in names and len(names) == 2:
            return name
    raise UserError(f"labels are {listed(names) or 'none'}; must be two, one of them positive (or 1)")


def stories(predictor: Predictor) -> list[Story]:
    """Both sentences, raw and calibrated."""
    positive, power = positive_of(predictor), predictor.input_options.temperature
    found = []
    for answer in predictor.predict(list[Text](STORIES)):
        assert answer.probabilities is not None
        raw = {label: share**power for label, share in answer.probabilities.items()}
        found.append(Story(raw[positive] / sum(raw.values()), answer.probabilities[positive]))
    return found


def right(predictor: Predictor, asked: list[Sentence]) -> dict[tuple[str, bool], int]:
    """How many sentences of each label and form were read rightly."""
    positive = positive_of(predictor)
    hits = {(label, negated): 0 for label in OTHER for negated in (False, True)}
    for sentence, answer in zip(asked, predictor.predict([one.text for one in asked]), strict=True):
        said = "positive" if answer.label == positive else "negative"
        hits[sentence.label, sentence.negated] += said == sentence.label
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="*", metavar="RUN", help="folders of trained classifiers")
    parser.add_argument("--list", action="store_true", help="print the sentences")
    options = parser.parse_args()
    asked = sentences()
    if options.list:
        head("sentence", "label", "negated")
        for sentence in asked:
            row(sentence.text, sentence.label, "yes" if sentence.negated else "no")
    predictors = {run: api.load(run) for run in options.runs}
    head("run", "plain", "negated", "plain +", "plain -", "negated +", "negated -")
    for run, predictor in predictors.items():
        hits = right(predictor, asked)
        forms = [sum(hits[label, negated] for label in OTHER) / (2 * EACH) for negated in (False, True)]
        each = [hits[label, negated] / EACH for negated in (False, True) for label in OTHER]
        row(run, *(f"{share:.2f}" for share in (*forms, *each)))
    print()
    head("run", "temperature", *(f"{story} ({kind})" for story in STORIES for kind in ("raw", "calibrated")))
    for run, predictor in predictors.items():
        shares = [share for one in stories(predictor) for share in (one.raw, one.calibrated)]
        row(run, f"{predictor.input_options.temperature:.3f}", *(f"{share:.4f}" for share in shares))


if __name__ == "__main__":
    run_main(main)
