"""What pre-training is worth where labels are few: held-out IMDB accuracy from 100, 1,000 and 10,000 labelled rows.

    .venv/bin/python benchmarks/few_labels.py --init bundled-encoder --labels 100 1000 10000 --seeds 3 -o few-labels.png

Rows are drawn from the training rows of the movie reviews by the seed (`data.rows`), the same ones for all three:

- pre-trained: the encoder --init, fine-tuned.
- from nothing: the same parts and sizes with fresh weights, and a fresh tokenizer of as many pieces, which is learnt
  from the texts of all training rows (it needs no labels).
- linear: words and word pairs that occur twice (TF-IDF, sublinear), logistic regression; C by cross-validation on its
  own rows.

Both Transformers read --length tokens of a review, half from its beginning and half from its end. One rule of settings
for all sizes. Pre-trained, every row is seen 3 times at least, and as often as it takes to see
3,000 in all; from nothing, 4 times and 20,000. The learning rate falls linearly after about a tenth of the steps. The
last weights are kept, so no other labels decide when to stop. Only the learning rate is chosen: for each size, of
three, by accuracy on the validation rows, with seed 0, which is not among the seeds shown (--rates gives it instead).
Test rows are looked at with the chosen rate only.

Each training goes to FOLDER/KIND-ROWS-RATE-SEED; the same command goes on where it stopped. Accuracy is of the IMDB
reviews among the test rows.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from review_quality import Rows, data_for, read
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegressionCV
from table import head, row, say

from qkv import api
from qkv.bundled import path_of
from qkv.config.presets import expand
from qkv.config.recipe import Recipe
from qkv.metrics import ClassificationMetrics
from qkv.plots import COLOURS, DASHES, MARKS, STYLE
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tasks.material import drawn
from qkv.train.finish import finish
from qkv.train.pretrained import read_pretrained

GROUP, NEVER = "imdb", 10**9
CS, FOLDS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0), 5
CHOOSING = 0  # the seed of trainings that choose


@dataclass(frozen=True)
class Kind:
    """A way to train, and its rule."""

    name: str
    epochs: int  # at least
    examples: int  # at least, all epochs together
    rates: tuple[float, ...]


PRETRAINED = Kind("pre-trained", epochs=3, examples=3_000, rates=(1e-4, 3e-4, 1e-3))
NOTHING = Kind("from nothing", epochs=4, examples=20_000, rates=(2e-4, 5e-4, 1e-3))


def model_of(init: str) -> tuple[dict[str, Any], int]:
    """The parts of the encoder as a [model] table without weights, and the size of its tokenizer."""
    start = read_pretrained(Recipe(init=init))
    if start is None:
        raise UserError("--init none: there must be an encoder to compare with")
    fresh = start.config.replace(vocabulary=0, head="auto", classes=2)
    return fresh.model_dump(), start.tokenizer.size


def recipe_for(kind: Kind, asked: argparse.Namespace, rows: int, rate: float, seed: int) -> Recipe:
    table: dict[str, Any] = {
        "task": "classify",
        "seed": seed,
        "data": {**data_for(asked.data).model_dump(), "length": asked.length, "truncation": "head+tail", "rows": rows},
        "train": {
            "epochs": max(kind.epochs, math.ceil(kind.examples / rows)),
            "batch_tokens": asked.tokens,
            "learning_rate": rate,
            "warmup": warmup(kind, asked, rows),
            "eval_every": NEVER,
            "report_every": 50,
            "keep": "last",
        },
    }
    if kind is PRETRAINED:
        return expand({**table, "init": str(path_of(asked.init).resolve())})
    model, pieces = model_of(asked.init)
    return expand({**table, "model": model, "tokenizer": {"vocab_size": pieces}})


def warmup(kind: Kind, asked: argparse.Namespace, rows: int) -> int:
    """About a tenth of the steps: how many there are is known only when the texts are tokenised, but a text has at most
    --length tokens, and most have more than half of that."""
    examples = max(kind.epochs * rows, kind.examples)
    return max(1, examples * asked.length * 3 // 4 // asked.tokens // 10)


def trained(recipe: Recipe, folder: Path, *, tested: bool) -> tuple[float, float]:
    """Train, or go on, or only open: accuracy on the validation rows, and on the IMDB test rows if they may be seen."""
    with api.training(recipe, folder, say) as session:
        for report in session.reports():
            if report.evaluation is not None:
                say(f"{folder}: {report.step:,} steps, validation {report.evaluation.figures['accuracy']:.4f}")
        scores = finish(session) if tested else None
    chosen_by = [line["validation_accuracy"] for line in Run(folder).metrics() if "validation_accuracy" in line]
    if scores is None:
        return chosen_by[-1], math.nan
    found = scores.get(GROUP)
    if not isinstance(found, ClassificationMetrics):
        raise UserError(f"{folder}: no test rows of group {GROUP!r}; the corpus needs a column `source`")
    return chosen_by[-1], found.accuracy


def place(asked: argparse.Namespace, kind: Kind, rows: int, rate: float, seed: int) -> Path:
    folder: Path = asked.folder
    return folder / f"{kind.name.replace(' ', '-')}-{rows}-{rate:g}-{seed}"


def best_rate(kind: Kind, asked: argparse.Namespace, rows: int) -> float:
    """By accuracy on the validation rows; of equals, the smallest."""
    if asked.rates:
        return float(asked.rates[0] if kind is PRETRAINED else asked.rates[1])
    found = {}
    for rate in kind.rates:
        recipe = recipe_for(kind, asked, rows, rate, CHOOSING)
        found[rate], _ = trained(recipe, place(asked, kind, rows, rate, CHOOSING), tested=False)
    return max(kind.rates, key=found.__getitem__)


@cache
def parts_of(data: str) -> dict[str, Rows]:
    return read(data_for(data))


def chosen(rows: int, seed: int, available: int) -> list[int]:
    """The numbers of the rows that `data.rows` draws: asked of the same function."""
    return [int(number) for number in drawn(available, rows, seed)]


def linear(asked: argparse.Namespace, rows: int, seed: int) -> float:
    """Accuracy of the linear model."""
    train, test = parts_of(asked.data)["train"], parts_of(asked.data)["test"]
    numbers = chosen(rows, seed, len(train.texts))
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    learnt = words.fit_transform([train.texts[number] for number in numbers])
    model = LogisticRegressionCV(
        Cs=CS, cv=FOLDS, max_iter=1000, scoring="accuracy", l1_ratios=(0,), use_legacy_attributes=False
    )
    model.fit(learnt, [train.labels[number] for number in numbers])
    judged = [number for number, group in enumerate(test.groups) if group == GROUP]
    true = np.array([test.labels[number] for number in judged])
    return float((model.predict(words.transform([test.texts[number] for number in judged])) == true).mean())


def measured(asked: argparse.Namespace) -> Iterator[tuple[str, int, str, list[float]]]:
    """Who, from how many rows, with what, and how often right by each seed."""
    seeds = range(1, asked.seeds + 1)
    for rows in asked.labels:
        for kind in (PRETRAINED, NOTHING):
            rate = best_rate(kind, asked, rows)
            rights = []
            for seed in seeds:
                recipe = recipe_for(kind, asked, rows, rate, seed)
                rights.append(trained(recipe, place(asked, kind, rows, rate, seed), tested=True)[1])
            yield kind.name, rows, f"{recipe.train.epochs} epochs at {rate:g}", rights
        yield "linear", rows, "C by cross-validation", [linear(asked, rows, seed) for seed in seeds]


def draw(path: Path, found: dict[str, dict[int, list[float]]], title: str) -> None:
    """Means as lines, from the lowest to the highest seed as bars; rows on a logarithmic axis."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(7.0, 4.8), layout="constrained")
        figure.suptitle(title, fontsize=13)
        axes = figure.subplots()
        for number, (name, by_rows) in enumerate(found.items()):
            middles = [mean(rights) for rights in by_rows.values()]
            below = [middle - min(rights) for middle, rights in zip(middles, by_rows.values(), strict=True)]
            above = [max(rights) - middle for middle, rights in zip(middles, by_rows.values(), strict=True)]
            beside = [rows * 1.04 ** (number - 1) for rows in by_rows]  # bars must not hide one another
            axes.errorbar(
                beside, middles, [below, above], label=name, capsize=4, linewidth=1.8,
                color=COLOURS[number], linestyle=DASHES[number], marker=MARKS[number],
            )  # fmt: skip
        axes.set_xscale("log")
        axes.set_xticks(sorted({rows for by_rows in found.values() for rows in by_rows}))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.minorticks_off()
        axes.set_xlabel("labelled rows")
        axes.set_ylabel("accuracy on held-out IMDB reviews")
        axes.legend(loc="lower right", frameon=False)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--init", default="bundled-encoder", help="a bundled model, a run or a Hugging Face folder")
    parser.add_argument("--labels", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs=2, metavar=("PRETRAINED", "NOTHING"), help="choose no rates")
    parser.add_argument("--length", type=int, default=256, help="most tokens of a review")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of an optimiser step")
    parser.add_argument("--data", default="movie-reviews", help="a catalogue name or a file")
    parser.add_argument("--folder", type=Path, default=Path("runs/few-labels"), help="where trainings go")
    parser.add_argument("-o", "--picture", type=Path, help="a PNG or SVG to draw")
    asked = parser.parse_args(arguments)
    found: dict[str, dict[int, list[float]]] = {}
    head("model", "labelled rows", "settings", "accuracy (mean)", "lowest", "highest")
    for name, rows, settings, rights in measured(asked):
        found.setdefault(name, {})[rows] = rights
        row(name, f"{rows:,}", settings, *(f"{value:.4f}" for value in (mean(rights), min(rights), max(rights))))
    if asked.picture is not None:
        draw(asked.picture, found, f"What pre-training is worth ({asked.seeds} seeds, lowest to highest)")


if __name__ == "__main__":
    main()
