"""Held-out accuracy on one split of the movie reviews: a linear model, a tutorial's Transformer, and finished runs.

    .venv/bin/python benchmarks/review_quality.py runs/reviews runs/reviews-quick [--data reviews.csv] [--skip keras]

All are judged on the same test rows, those that a hash of the text holds out from every training here.

- linear: words and word pairs that occur twice (TF-IDF, sublinear), logistic regression. C is chosen by accuracy on the
  validation rows, and on them its scores get a temperature, as the scores of our runs do. Of scikit-learn.
- Keras tutorial: the size of "Text classification with Transformer" (keras.io), trained by qkv for 2 epochs: 1 block,
  norm after each part, 32 wide, 2 heads of 32, feed-forward 32, ReLU, learned positions, 200 tokens, 20,000 pieces,
  mean of all tokens, dropout 0.1, Adam at 0.001, about 32 whole reviews a step. Unlike there, pieces are parts of
  words, a long text loses its end and not its beginning, the mean leaves padding out, and the layer before the last is
  32 wide and not 20.
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
from table import head, row, say

from qkv import api
from qkv.config.presets import expand
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.corpus import open_corpus
from qkv.corpus.split import SPLITS
from qkv.metrics import ClassificationMetrics
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv import metrics

CS = (1.0, 3.0, 10.0, 30.0)
LABELS = ("negative", "positive")
GROUPS = {"imdb": "IMDB", "all": "all"}  # what is shown apart, and how it is called


@dataclass
class Rows:
    """The rows of one part."""

    texts: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)


def data_for(data: str) -> DataConfig:
    return DataConfig(corpus=data, group="source", label_names="0=negative, 1=positive")


def read(data: DataConfig) -> dict[str, Rows]:
    """All rows, by the part that `qkv.corpus.split.split_of` gives them."""
    source = open_corpus(data, say)
    parts: dict[str, Rows] = {part: Rows() for part in SPLITS}
    for part, one in source.rows():
        label = source.label_of(one)
        if label is not None and one.text.strip():
            parts[part].texts.append(one.text)
            parts[part].labels.append(LABELS.index(label))
            parts[part].groups.append(one.group or "")
    return parts


def linear(parts: dict[str, Rows]) -> tuple[str, dict[str, ClassificationMetrics], float]:
    """Name, scores and seconds of the linear model."""
    start = time.perf_counter()
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    learnt = words.fit_transform(parts["train"].texts)
    chosen_by = words.transform(parts["validation"].texts)
    models = {c: LogisticRegression(C=c, max_iter=1000).fit(learnt, parts["train"].labels) for c in CS}
    right = {c: float(model.score(chosen_by, parts["validation"].labels)) for c, model in models.items()}
    best = max(CS, key=right.__getitem__)
    temperature = metrics.fit_temperature(logits(models[best], chosen_by), np.array(parts["validation"].labels))
    seconds = time.perf_counter() - start
    test = parts["test"]
    shares_NC = metrics.softmax(logits(models[best], words.transform(test.texts)) / temperature)
    labels_N, groups_N = np.array(test.labels), np.array(test.groups)
    scores = {"all": metrics.score(shares_NC, labels_N, LABELS)}
    for group in sorted(set(test.groups) - {""}):
        chosen = groups_N == group
        scores[group] = metrics.score(shares_NC[chosen], labels_N[chosen], LABELS)
    return f"linear, {learnt.shape[1]:,} words and pairs, C = {best:g}", scores, seconds


def logits(model: LogisticRegression, rows: object) -> metrics.Floats:
    positive_N = model.decision_function(rows)
    return np.stack([np.zeros_like(positive_N), positive_N], 1)


def keras_recipe(data: DataConfig) -> Recipe:
    return expand(
        {
            "data": {**data.model_dump(), "length": 200},
            "tokenizer": {"vocab_size": 20_000},
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
    scores = {group: found for group, found in api.evaluate(folder).items() if isinstance(found, ClassificationMetrics)}
    if not scores:
        raise UserError(f"{folder}: is no classifier; accepted: runs with task = 'classify' and labels")
    return scores, lines[-1]["seconds"] if lines else 0.0


def models(asked: argparse.Namespace, data: DataConfig) -> Iterator[tuple[str, dict[str, ClassificationMetrics], float]]:
    """Name, scores and seconds of each, as they come."""
    if "linear" not in asked.skip:
        say("the linear model")
        yield linear(read(data))
    if "keras" not in asked.skip:
        say("the Keras tutorial's size")
        with tempfile.TemporaryDirectory() as temporary:
            folder = asked.folder or Path(temporary) / "keras-tutorial"
            api.train(keras_recipe(data), folder)
            yield "Keras tutorial's size, trained by qkv", *of_run(folder)
    for run in asked.runs:
        yield str(run), *of_run(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="folders of finished runs")
    parser.add_argument("--data", default="movie-reviews", help="a catalogue name or a file")
    parser.add_argument("--folder", type=Path, help="where the tutorial's size is trained; default: a temporary one")
    parser.add_argument("--skip", action="append", default=[], choices=["linear", "keras"])
    asked = parser.parse_args()
    counts: dict[str, int] = {}
    head("model", "test rows", "count", "accuracy", "95% interval", "macro F1", "ECE", "training s")
    for name, scores, seconds in models(asked, data_for(asked.data)):
        for group, shown in GROUPS.items():
            if group not in scores:
                raise UserError(f"{name}: has no test rows of group {group}; its recipe needs data.group = 'source'")
            s = scores[group]
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
    main()
