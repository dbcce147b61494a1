"""Held-out accuracy on one split of the movie reviews: a linear model, a tutorial's Transformer, and finished runs.

    .venv/bin/python benchmarks/review_quality.py runs/reviews runs/reviews-quick [--data reviews.csv] [--skip keras]

All are tested on the same rows, those that a hash of the text holds out from every training here.

- linear: words and word pairs that occur twice (TF-IDF, sublinear), logistic regression. C is chosen by accuracy on the
  validation rows, and on them its logits get a temperature, as the logits of our runs do. Of scikit-learn.
- Keras tutorial: the size of "Text classification with Transformer" (keras.io), trained by qkv for 2 epochs: 1 block,
  post-norm, 32 wide, 2 heads of 32, feed-forward 32, ReLU, learned positions, 200 tokens, a vocabulary of 20,000, mean
  of all tokens, dropout 0.1, Adam at 0.001, about 32 whole reviews a step. Unlike there, tokens are parts of words, a
  long text keeps its beginning and not its end, the mean leaves padding out, and the layer before the last is 32 wide
  and not 20.
- runs: folders given, by `qkv eval`.

Seconds are of the training alone: for the linear model all values of C, for runs as their metrics have it.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from table import head, row, run_main, say

from qkv import api, calibration, metrics
from qkv.config.presets import expand
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.corpus import open_corpus
from qkv.corpus.split import SPLITS, Split
from qkv.metrics import ClassificationMetrics
from qkv.run.folder import Run
from qkv.schema import UserError

CS = (1.0, 3.0, 10.0, 30.0)
LABELS = ("negative", "positive")
GROUPS = {"imdb": "IMDB", "all": "all"}  # what is shown apart, and how it is called


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


def linear(splits: dict[Split, Rows]) -> tuple[str, dict[str, ClassificationMetrics], float]:
    """Name, metrics and seconds of the linear model."""
    start = time.perf_counter()
    train, validation, test = (splits[split] for split in SPLITS)
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    train_x = vectors.fit_transform(train.texts)
    validation_x = vectors.transform(validation.texts)
    models = {c: LogisticRegression(C=c, max_iter=1000).fit(train_x, train.labels) for c in CS}
    accuracy = {c: float(model.score(validation_x, validation.labels)) for c, model in models.items()}
    best = max(CS, key=accuracy.__getitem__)
    temperature = calibration.fit_temperature(logits(models[best], validation_x), np.array(validation.labels))
    seconds = time.perf_counter() - start
    probabilities_NC = calibration.softmax(logits(models[best], vectors.transform(test.texts)) / temperature)
    labels_N, groups_N = np.array(test.labels), np.array(test.groups)
    found = {"all": metrics.classification_metrics(probabilities_NC, labels_N, LABELS)}
    for group in sorted(set(test.groups) - {""}):
        own = groups_N == group
        found[group] = metrics.classification_metrics(probabilities_NC[own], labels_N[own], LABELS)
    return f"linear, {train_x.shape[1]:,} words and pairs, C = {best:g}", found, seconds


def logits(model: LogisticRegression, rows: object) -> calibration.Floats:
    positive_N = model.decision_function(rows)
    return np.stack([np.zeros_like(positive_N), positive_N], 1)


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


def of_run(folder: Path) -> tuple[dict[str, ClassificationMetrics], float]:
    lines = Run(folder).metrics()
    found = {group: one for group, one in api.evaluate(folder).items() if isinstance(one, ClassificationMetrics)}
    if not found:
        raise UserError(f"{folder}: is no classifier; accepted: runs with task = 'classify'")
    return found, lines[-1]["seconds"] if lines else 0.0


def models(
    options: argparse.Namespace, data: DataConfig
) -> Iterator[tuple[str, dict[str, ClassificationMetrics], float]]:
    """Name, metrics and seconds of each, as they come."""
    if "linear" not in options.skip:
        say("the linear model")
        yield linear(read(data))
    if "keras" not in options.skip:
        say("the Keras tutorial's size")
        with tempfile.TemporaryDirectory() as temporary:
            folder = options.folder or Path(temporary) / "keras-tutorial"
            api.train(keras_recipe(data), folder)
            yield "Keras tutorial's size, trained by qkv", *of_run(folder)
    for run in options.runs:
        yield str(run), *of_run(run)


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
