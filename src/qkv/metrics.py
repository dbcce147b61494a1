"""Metrics of every task: by numpy in float64, BLEU and chrF by sacreBLEU.

N rows · C classes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.calibration import Bin, Floats, Ints, check_classes, check_probabilities, check_scores, ece, reliability
from qkv.schema import UserError

NORMAL_95 = 1.959963984540054  # 95% of a normal distribution lies within so many standard deviations


@dataclass(frozen=True)
class ClassificationMetrics:
    """Metrics of a classifier. `f1` is the macro average, `loss` in nats, `interval` the accuracy's 95% interval."""

    rows: int
    accuracy: float
    f1: float
    loss: float
    ece: float
    interval: tuple[float, float]
    labels: tuple[str, ...]
    confusion: list[list[int]]  # a row for each true label, a column for each predicted one
    bins: list[Bin]
    raw_bins: list[Bin] = field(default_factory=list)  # before calibration, where that is known

    def to_json(self) -> dict[str, Any]:
        """Plain lists, names and numbers, all finite."""
        return {**asdict(self), "interval": list(self.interval), "labels": list(self.labels)}


@dataclass(frozen=True)
class Metrics:
    """Metrics of a task without classes: each a number with a name."""

    rows: int
    values: dict[str, float]
    unit: str = "rows"  # or documents, or pairs
    details: dict[str, str] = field(default_factory=dict)  # how they were computed, such as a sacreBLEU signature

    def to_json(self) -> dict[str, Any]:
        return {self.unit: self.rows, **self.values, **self.details}


@dataclass(frozen=True)
class ValidationMetric:
    """A validation metric that people see while a model trains. The first of a task is shown by `qkv compare`."""

    name: str  # as in metrics.jsonl, without `validation_`
    title: str
    curve: bool = False  # it has a learning curve, beside that of the loss


TestMetrics = Mapping[str, ClassificationMetrics] | Mapping[str, Metrics]  # under "all", and by group if there are any


def translation_metrics(outputs: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) of all translations together, by sacreBLEU (Post, 2018),
    with the signatures that make them comparable; and the share of exact matches."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    values, details = dict[str, float](), dict[str, str]()
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        values[name] = metric.corpus_score(list(outputs), [list(references)]).score
        details[f"{name}_signature"] = str(metric.get_signature())
    values["exact"] = sum(a == b for a, b in zip(outputs, references, strict=True)) / max(1, len(outputs))
    return values, details


def accuracy(scores_NC: ArrayLike, labels_N: ArrayLike) -> float:
    """Share of rows whose largest score (logit or probability, the first of equals) is that of the label."""
    scores, labels = check_scores(scores_NC, labels_N)
    return float(np.mean(scores.argmax(1) == labels))


def confusion(predicted_N: ArrayLike, labels_N: ArrayLike, classes: int) -> Ints:
    """Confusion matrix: rows are true classes, columns predicted ones."""
    predicted, labels = check_classes("predicted", predicted_N, classes), check_classes("labels", labels_N, classes)
    if len(predicted) != len(labels):
        raise UserError(f"{len(predicted)} predictions for {len(labels)} labels; there must be one each")
    counts = np.bincount(labels * classes + predicted, minlength=classes * classes)
    return counts.reshape(classes, classes).astype(np.int64)


def f1_scores(confusion_CC: ArrayLike) -> Floats:
    """2 x hits / (true + predicted) of each class: the harmonic mean of precision and recall.

    A class that neither occurs nor is predicted has 0, as with zero_division=0 of scikit-learn; so has one that
    occurs and is never predicted, or is predicted and never occurs.
    """
    counts = np.asarray(confusion_CC, np.float64)
    total = counts.sum(0) + counts.sum(1)
    return np.asarray(2 * counts.diagonal() / np.where(total == 0, 1, total), np.float64)


def macro_f1(confusion_CC: ArrayLike) -> float:
    """Mean of `f1_scores` over all classes: a rare one counts as much as a frequent one."""
    return float(f1_scores(confusion_CC).mean())


def wilson(hits: int, rows: int) -> tuple[float, float]:
    """Where the true rate of hits lies with 95% confidence (Wilson, 1927); within 0 and 1 also for few rows."""
    if not 0 <= hits <= rows:
        raise UserError(f"{hits} hits of {rows} rows; must be 0 to the number of rows")
    if rows == 0:
        return 0.0, 1.0
    share, square = hits / rows, NORMAL_95**2
    middle = share + square / (2 * rows)
    reach = NORMAL_95 * math.sqrt(share * (1 - share) / rows + square / (4 * rows**2))
    low, high = (middle - reach) / (1 + square / rows), (middle + reach) / (1 + square / rows)
    return (0.0 if hits == 0 else low), (1.0 if hits == rows else high)  # exact, whatever the rounding


def classification_metrics(
    probabilities_NC: ArrayLike, labels_N: ArrayLike, names: Sequence[str]
) -> ClassificationMetrics:
    """All metrics of these predictions. `names` are the labels, in the order of the columns."""
    probabilities, labels = check_probabilities(probabilities_NC, labels_N)
    classes = probabilities.shape[1]
    if len(names) != classes:
        raise UserError(f"{len(names)} label names for {classes} columns of probabilities; there must be one each")
    counts = confusion(probabilities.argmax(1), labels, classes)
    hits, bins = int(counts.trace()), reliability(probabilities, labels)
    theirs = probabilities[np.arange(len(labels)), labels]
    return ClassificationMetrics(
        rows=len(labels),
        accuracy=hits / len(labels),
        f1=macro_f1(counts),
        loss=float(np.mean(-np.log(np.maximum(theirs, np.finfo(np.float64).tiny)))),  # an exact 0 costs 708 nats
        ece=ece(bins),
        interval=wilson(hits, len(labels)),
        labels=tuple(names),
        confusion=counts.tolist(),
        bins=bins,
    )


def regression_metrics(predictions_N: ArrayLike, targets_N: ArrayLike) -> tuple[float, dict[str, float]]:
    """Mean squared error; its root, Pearson's and Spearman's correlation (0 where all values of a side are equal)."""
    predictions, targets = (np.asarray(values, np.float64) for values in (predictions_N, targets_N))
    error = float(np.mean((predictions - targets) ** 2))
    return error, {
        "pearson": _correlation(predictions, targets),
        "spearman": _correlation(_ranks(predictions), _ranks(targets)),
        "rmse": math.sqrt(error),
    }


def _correlation(x: Floats, y: Floats) -> float:
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float((x**2).sum() * (y**2).sum()))
    return float((x * y).sum()) / size if size > 0 else 0.0


def _ranks(values: Floats) -> Floats:
    """1 for the smallest; equal values share the mean of their ranks."""
    distinct, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    del distinct
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[place], np.float64)
