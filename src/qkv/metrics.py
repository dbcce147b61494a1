"""Metrics of every task: by scikit-learn and scipy where they have them, BLEU and chrF by sacreBLEU.

These libraries are imported where they are first used, so that commands that measure nothing start at once.

N rows · C classes
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from qkv.calibration import (
    FEWEST_TO_JUDGE,
    Bin,
    Ints,
    check_classes,
    check_probabilities,
    check_scores,
    ece,
    reliability,
)
from qkv.schema import UserError

NORMAL_95 = 1.959963984540054  # 95% of a normal distribution lies within so many standard deviations


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class. A precision, recall or F1 whose denominator is 0 is 0."""

    label: str
    rows: int  # with this label: the support
    predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Mistake:
    """`count` of the `rows` with label `true` are predicted as `predicted`."""

    true: str
    predicted: str
    count: int
    rows: int


@dataclass(frozen=True)
class ClassificationMetrics:
    """Metrics of a classifier. `f1` is the macro average, `loss` in nats, `interval` the accuracy's 95% interval,
    `balanced_accuracy` the mean recall of the classes that occur, `majority` the most frequent label of these rows."""

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
    classes: list[ClassMetrics] = field(default_factory=list)  # in the order of the labels
    balanced_accuracy: float = 0.0
    majority: str = ""
    majority_share: float = 0.0  # the accuracy of always predicting it
    most_confused: Mistake | None = None  # None where there is no mistake

    def to_json(self) -> dict[str, Any]:
        """Plain lists, names and numbers, all finite."""
        return {**asdict(self), "interval": list(self.interval), "labels": list(self.labels)}

    @staticmethod
    def from_json(table: Mapping[str, Any]) -> ClassificationMetrics:
        """And back."""
        worst = table["most_confused"]
        return ClassificationMetrics(
            **{
                **table,
                "interval": tuple(table["interval"]),
                "labels": tuple(table["labels"]),
                "bins": [Bin(**one) for one in table["bins"]],
                "raw_bins": [Bin(**one) for one in table["raw_bins"]],
                "classes": [ClassMetrics(**one) for one in table["classes"]],
                "most_confused": None if worst is None else Mistake(**worst),
            }
        )

    def warnings(self) -> list[str]:
        """What makes its accuracy worth less than it looks, a sentence each."""
        found = []
        if self.accuracy <= self.majority_share and len(self.labels) > 1:
            found.append(f"accuracy is no better than always predicting {self.majority!r}: {self.majority_share:.2f}")
        never = [repr(one.label) for one in self.classes if one.rows and not one.predicted]
        if never:
            shown = f"{', '.join(never[:5])}{f' and {len(never) - 5} more' if len(never) > 5 else ''}"
            found.append(f"{shown} {'is' if len(never) == 1 else 'are'} never predicted")
        return found

    @property
    def shows_calibration(self) -> bool:
        """Whether there are enough rows to judge calibration by."""
        return self.rows >= FEWEST_TO_JUDGE


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


def per_hundred(share: float) -> str:
    """A share as times in 100: 83. Never 0 or 100 where it is neither."""
    for digits in range(5):
        shown = f"{100 * share:.{digits}f}"
        if float(shown) not in (0.0, 100.0) or share in (0.0, 1.0):
            return shown
    return shown


def metrics_from_json(table: Mapping[str, Any]) -> TestMetrics:
    """Metrics of all rows, as a run keeps them."""
    if "confusion" in table:
        return {"all": ClassificationMetrics.from_json(table)}
    return {"all": Metrics(int(table["rows"]), dict(table["values"]))}


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
    from sklearn.metrics import confusion_matrix

    predicted, labels = check_classes("predicted", predicted_N, classes), check_classes("labels", labels_N, classes)
    if len(predicted) != len(labels):
        raise UserError(f"{len(predicted)} predictions for {len(labels)} labels; there must be one each")
    return np.asarray(confusion_matrix(labels, predicted, labels=range(classes)), np.int64)


def class_metrics(predicted_N: ArrayLike, labels_N: ArrayLike, names: Sequence[str]) -> list[ClassMetrics]:
    """Precision, recall and F1 of each class."""
    from sklearn.metrics import precision_recall_fscore_support

    counts = confusion(predicted_N, labels_N, len(names))
    found = precision_recall_fscore_support(labels_N, predicted_N, labels=range(len(names)), zero_division=0.0)
    columns = (counts.sum(1), counts.sum(0), *found[:3])
    return [ClassMetrics(*row) for row in zip(names, *(column.tolist() for column in columns), strict=True)]


def most_confused(confusion_CC: ArrayLike, names: Sequence[str]) -> Mistake | None:
    """The most frequent mistake; of equally frequent ones the first."""
    counts = np.array(confusion_CC, np.int64)
    rows = counts.sum(1)
    np.fill_diagonal(counts, 0)
    true, predicted = divmod(int(counts.argmax()), len(names))
    count = int(counts[true, predicted])
    return Mistake(names[true], names[predicted], count, int(rows[true])) if count else None


def wilson(hits: int, rows: int) -> tuple[float, float]:
    """Where the true rate of hits lies with 95% confidence (Wilson, 1927); within 0 and 1 also for few rows."""
    from scipy.stats import binomtest

    if not 0 <= hits <= rows:
        raise UserError(f"{hits} hits of {rows} rows; must be 0 to the number of rows")
    if rows == 0:
        return 0.0, 1.0
    found = binomtest(hits, rows).proportion_ci(method="wilson")
    return (0.0 if hits == 0 else float(found.low)), (1.0 if hits == rows else float(found.high))  # exact at the ends


def paired_interval(first_N: ArrayLike, second_N: ArrayLike) -> tuple[float, float, float]:
    """Mean difference second - first of two models on the same rows, and its 95% interval (paired, normal)."""
    gaps = np.asarray(second_N, np.float64) - np.asarray(first_N, np.float64)
    mean = float(gaps.mean())
    reach = NORMAL_95 * float(gaps.std(ddof=1)) / math.sqrt(len(gaps)) if len(gaps) > 1 else math.inf
    return mean, mean - reach, mean + reach


def classification_metrics(
    probabilities_NC: ArrayLike, labels_N: ArrayLike, names: Sequence[str]
) -> ClassificationMetrics:
    """All metrics of these predictions. `names` are the labels, in the order of the columns."""
    probabilities, labels = check_probabilities(probabilities_NC, labels_N)
    classes = probabilities.shape[1]
    if len(names) != classes:
        raise UserError(f"{len(names)} label names for {classes} columns of probabilities; there must be one each")
    predicted, names = probabilities.argmax(1), tuple(names)
    each, counts = class_metrics(predicted, labels, names), confusion(predicted, labels, classes)
    hits, bins = int(counts.trace()), reliability(probabilities, labels)
    theirs = probabilities[np.arange(len(labels)), labels]
    majority = max(each, key=lambda one: one.rows)  # the first of equals
    return ClassificationMetrics(
        rows=len(labels),
        accuracy=hits / len(labels),
        f1=float(np.mean([one.f1 for one in each])),
        loss=float(np.mean(-np.log(np.maximum(theirs, np.finfo(np.float64).tiny)))),  # an exact 0 costs 708 nats
        ece=ece(bins),
        interval=wilson(hits, len(labels)),
        labels=names,
        confusion=counts.tolist(),
        bins=bins,
        classes=each,
        balanced_accuracy=float(np.mean([one.recall for one in each if one.rows])),
        majority=majority.label,
        majority_share=majority.rows / len(labels),
        most_confused=most_confused(counts, names),
    )


def fisher_interval(correlation: float, rows: int) -> tuple[float, float]:
    """The 95% interval of a correlation (Fisher, 1921)."""
    if rows < 4:
        return -1.0, 1.0
    middle = math.atanh(max(-0.999999, min(0.999999, correlation)))
    reach = NORMAL_95 / math.sqrt(rows - 3)
    return math.tanh(middle - reach), math.tanh(middle + reach)


def number_metrics(predictions_N: ArrayLike, targets_N: ArrayLike) -> Metrics:
    """Metrics of predicted numbers, and the error of always predicting the mean of these rows."""
    found = regression_metrics(predictions_N, targets_N)[1]
    return Metrics(len(np.asarray(targets_N)), {**found, "rmse_of_mean": float(np.std(np.asarray(targets_N)))})


def regression_metrics(predictions_N: ArrayLike, targets_N: ArrayLike) -> tuple[float, dict[str, float]]:
    """Mean squared error; its root, Pearson's and Spearman's correlation (0 where all values of a side are equal)."""
    from scipy.stats import pearsonr, spearmanr

    predictions, targets = (np.asarray(values, np.float64) for values in (predictions_N, targets_N))
    error = float(np.mean((predictions - targets) ** 2))
    constant = np.ptp(predictions) == 0 or np.ptp(targets) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scipy warns where values are nearly equal
        found = [0.0 if constant else float(measure(predictions, targets)[0]) for measure in (pearsonr, spearmanr)]
    pearson, spearman = (value if math.isfinite(value) else 0.0 for value in found)
    return error, {"pearson": pearson, "spearman": spearman, "rmse": math.sqrt(error)}
