"""Held-out accuracy on one split of the movie reviews: a linear model, a tutorial's Transformer, and finished runs.

    .venv/bin/python benchmarks/review_quality.py runs/reviews runs/reviews-quick [--data reviews.csv] [--skip keras]

All are tested on the same rows, those that a hash of the text holds out from every training here. They share their
films with training rows. Where there is $QKV_DATA/imdb/dev.tsv.gz (default ../shared/data), all are tested on it too:
5,000 reviews of films that no training review is about.

- linear: the one of `qkv train TABLE`: words and word pairs that occur twice (TF-IDF, sublinear), logistic regression
  with C = 10. On the validation rows its logits get a temperature, as the logits of our runs do.
- Keras tutorial: the size of "Text classification with Transformer" (keras.io), trained by qkv for 2 epochs: 1 block,
  post-norm, 32 wide, 2 heads of 32, feed-forward 32, ReLU, learned positions, 200 tokens, a vocabulary of 20,000, mean
  of all tokens, dropout 0.1, Adam at 0.001, about 32 whole reviews a step. Unlike there, tokens are parts of words, a
  long text keeps its beginning and not its end, the mean leaves padding out, and the layer before the last is 32 wide
  and not 20.
- runs: folders given, by `qkv eval`.

Seconds are of the training: for the linear model with its predictions, for runs as their metrics have it.
"""

from __future__ import annotations

import argparse
import gzip
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from table import head, row, run_main, say

from qkv import api, calibration, metrics
from qkv.autotrain.scoring import ClassScoring
from qkv.config.presets import expand
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.corpus import open_corpus
from qkv.corpus.split import SPLITS, Split
from qkv.metrics import ClassificationMetrics
from qkv.run.folder import Run
from qkv.schema import UserError

LABELS = ("negative", "positive")
OTHER_FILMS = "imdb/dev.tsv.gz"  # below QKV_DATA
GROUPS = {"imdb": "IMDB", "all": "all", OTHER_FILMS: "IMDB, other films"}  # what is shown apart, and how it is called


@dataclass
class Rows:
    """The rows of one split."""

    texts: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


def data_for(data: str) -> DataConfig:
    return DataConfig(corpus=data, group="source", label_names="0=negative, 1=positive")


def read(data: DataConfig) -> dict[Split, Rows]:
    """All rows, by the split that `qkv.corpus.split.split_of` gives them."""
    corpus = open_corpus(data, say=say)
    splits: dict[Split, Rows] = {split: Rows() for split in SPLITS}
    for split, one in corpus.rows():
        label = corpus.label_of(one)
        if label is not None and one.text.strip():
            splits[split].texts.append(one.text)
            splits[split].labels.append(LABELS.index(label))
            splits[split].groups.append(one.group or "")
    return splits


def read_other_films() -> Rows:
    """Reviews of films that no training review is about; none where the file is not there."""
    path, rows = Path(os.environ.get("QKV_DATA", "../shared/data")) / OTHER_FILMS, Rows()
    if not path.is_file():
        say(f"{path}: not there, so other films are left out; QKV_DATA names the folder of real data")
        return rows
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as lines:
        next(lines)
        for line in lines:
            _, _, label, text = line.rstrip("\n").split("\t", 3)
            rows.texts.append(text.replace("<br />", "\n"))
            rows.labels.append(int(label))
            rows.groups.append(OTHER_FILMS)
    return rows


def by_group(probabilities_NC: calibration.Floats, rows: Rows) -> dict[str, ClassificationMetrics]:
    labels_N, groups_N = np.array(rows.labels), np.array(rows.groups)
    return {
        group: metrics.classification_metrics(probabilities_NC[groups_N == group], labels_N[groups_N == group], LABELS)
        for group in sorted(set(rows.groups) - {""})
    }


def linear(splits: dict[Split, Rows], other: Rows) -> tuple[str, dict[str, ClassificationMetrics], float]:
    """Name, metrics and seconds of the linear model, fitted once for all rows that it predicts."""
    start = time.perf_counter()
    train, validation, test = (splits[split] for split in SPLITS)
    texts = [*validation.texts, *test.texts, *other.texts]
    _, logits_NC = ClassScoring(LABELS).baselines(train.texts, np.array(train.labels), texts)
    seconds = time.perf_counter() - start
    first, second = len(validation.texts), len(validation.texts) + len(test.texts)
    temperature = calibration.fit_temperature(logits_NC[:first], np.array(validation.labels))
    probabilities_NC = calibration.softmax(logits_NC[first:] / temperature)
    tested = probabilities_NC[: second - first]
    found = {"all": metrics.classification_metrics(tested, np.array(test.labels), LABELS), **by_group(tested, test)}
    return "linear, words and pairs, C = 10", found | by_group(probabilities_NC[second - first :], other), seconds


def keras_recipe(data: DataConfig) -> Recipe:
    return expand(
        {
            "data": {**data.model_dump(), "length": 200},
            "tokenizer": {"vocab_size": 20_000, "lowercase": True},
            "model": {
                "context": 200,
                "layers": 1,
                "width": 32,
                "heads": 2,
                "head_width": 32,
                "feedforward": 32,
                "activation": "relu",
                "positions": "learned",
                "norm_eps": 1e-6,
                "pool": "mean",
                "pooler": "relu",
            },
            "train": {
                "epochs": 2,
                "batch_tokens": 32 * 200,
                "learning_rate": 1e-3,
                "schedule": "constant",
                "warmup": 0,
                "weight_decay": 0.0,
                "beta2": 0.999,
                "clip": 0.0,
                "dropout": 0.1,
                "keep": "last",
            },
        }
    )


def of_run(folder: Path, other: Rows) -> tuple[dict[str, ClassificationMetrics], float]:
    lines = Run(folder).metrics()
    found = {group: one for group, one in api.evaluate(folder).items() if isinstance(one, ClassificationMetrics)}
    if not found:
        raise UserError(f"{folder}: is no classifier; accepted: runs with task = 'classify'")
    if other.texts:
        predictions = api.load(folder).predict(other.texts)
        found |= by_group(
            np.array([[(one.probabilities or {})[label] for label in LABELS] for one in predictions]), other
        )
    return found, lines[-1]["seconds"] if lines else 0.0


def models(
    options: argparse.Namespace, data: DataConfig
) -> Iterator[tuple[str, dict[str, ClassificationMetrics], float]]:
    """Name, metrics and seconds of each, as they come."""
    other = read_other_films()
    if "linear" not in options.skip:
        say("the linear model")
        yield linear(read(data), other)
    if "keras" not in options.skip:
        say("the Keras tutorial's size")
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary) / "keras-tutorial"
            api.train(keras_recipe(data), folder)
            yield "Keras tutorial's size, trained by qkv", *of_run(folder, other)
    for run in options.runs:
        yield str(run), *of_run(run, other)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of finished runs")
    parser.add_argument("--data", default="movie-reviews", help="a catalogue name or a file")
    parser.add_argument("--folder", type=Path, help="where the tutorial's size is trained; default: a temporary one")
    parser.add_argument("--skip", action="append", default=[], choices=["linear", "keras"])
    options = parser.parse_args()
    for folder in options.runs:
        if not Run(folder).has_model():  # said before anything is trained
            raise UserError(f"{folder}: is no finished run; `qkv train RECIPE -o {folder}` makes one")
    counts: dict[str, int] = {}
    head("model", "test rows", "count", "accuracy", "95% interval", "macro F1", "ECE", "training s")
    for name, found, seconds in models(options, data_for(options.data)):
        for group, shown in GROUPS.items():
            if group not in found and group == OTHER_FILMS:
                continue
            if group not in found:
                raise UserError(f"{name}: has no test rows of group {group}; its recipe needs data.group = 'source'")
            s = found[group]
            if counts.setdefault(group, s.rows) != s.rows:
                raise UserError(f"{name}: {s.rows} test rows ({shown}), not {counts[group]}: another split or corpus")
            interval = f"{s.interval[0]:.4f} to {s.interval[1]:.4f}"
            row(
                name,
                shown,
                f"{s.rows:,}",
                f"{s.accuracy:.4f}",
                interval,
                f"{s.f1:.4f}",
                f"{s.ece:.4f}",
                f"{seconds:,.0f}",
            )


if __name__ == "__main__":
    run_main(main)
