"""How good answers are, and how far their probabilities may be trusted. numpy only, in float64.

N rows · C classes
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv.schema import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COLDEST, HOTTEST = 0.05, 20.0  # where every answer is right the best temperature would be 0
NORMAL_95 = 1.959963984540054  # 95% of a normal distribution lies within so many standard deviations


@dataclass(frozen=True)
class Bin:
    """Answers of similar confidence: more than `low`, at most `high`. An empty bin has confidence and accuracy 0."""

    low: float
    high: float
    count: int
    confidence: float  # mean probability of the predicted class
    accuracy: float  # share of right answers


@dataclass(frozen=True)
class Scores:
    """What an evaluation found. `f1` is the mean over labels, `loss` in nats, `interval` the accuracy's 95% one."""

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
class Figures:
    """What an evaluation found where there are no classes: of grades, or of hidden words."""

    rows: int
    values: dict[str, float]
    what: str = "rows"  # or documents, or pairs
    said: dict[str, str] = field(default_factory=dict)  # how they were computed, where that has a name

    def to_json(self) -> dict[str, Any]:
        return {self.what: self.rows, **self.values, **self.said}


Findings = Mapping[str, Scores] | Mapping[str, Figures]  # under "all", and by group where rows have one


def translation_figures(outputs: Sequence[str], references: Sequence[str]) -> tuple[dict[str, float], dict[str, str]]:
    """BLEU (Papineni et al., 2002) and chrF (Popovic, 2015) of all translations together, by sacreBLEU (Post, 2018),
    with the signatures without which such figures cannot be compared; and the share that is right to the letter."""
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    values, said = dict[str, float](), dict[str, str]()
    for name, metric in (("bleu", BLEU()), ("chrf", CHRF())):
        values[name] = metric.corpus_score(list(outputs), [list(references)]).score
        said[f"{name}_signature"] = str(metric.get_signature())
    values["exact"] = sum(a == b for a, b in zip(outputs, references, strict=True)) / max(1, len(outputs))
    return values, said


def softmax(logits_NC: ArrayLike) -> Floats:
    """Probabilities. The largest score of a row is subtracted first: no exponential can overflow."""
    logits = np.asarray(logits_NC, np.float64)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True), np.float64)


def cross_entropy(logits_NC: ArrayLike, labels_N: ArrayLike, temperature: float = 1.0) -> float:
    """Mean of -log p(label) in nats, of scores divided by the temperature."""
    scaled = _margins(logits_NC, labels_N) / temperature
    largest = scaled.max(1)
    return float(np.mean(largest + np.log(np.exp(scaled - largest[:, None]).sum(1))))


def accuracy(scores_NC: ArrayLike, labels_N: ArrayLike) -> float:
    """Share of rows whose largest score (logit or probability, the first of equals) is the label's."""
    scores, labels = _rows(scores_NC, labels_N)
    return float(np.mean(scores.argmax(1) == labels))


def confusion(predicted_N: ArrayLike, labels_N: ArrayLike, classes: int) -> Ints:
    """How often each true class (row) was taken for each class (column)."""
    predicted, labels = _classes("predicted", predicted_N, classes), _classes("labels", labels_N, classes)
    if len(predicted) != len(labels):
        raise UserError(f"{len(predicted)} answers for {len(labels)} labels; there must be one each")
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


def reliability(probabilities_NC: ArrayLike, labels_N: ArrayLike, bins: int = 15) -> list[Bin]:
    """Answers sorted into bins of equal width by the confidence of the predicted class, empty ones too.

    Where probabilities may be trusted, 80% of the answers given with 0.8 are right: accuracy equals confidence.
    """
    if bins < 1:
        raise UserError(f"bins = {bins}: must be at least 1")
    probabilities, labels = _probabilities(probabilities_NC, labels_N)
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    edges = [i / bins for i in range(bins + 1)]
    place = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    counts, sums, hits = (np.bincount(place, weight, bins) for weight in (None, sure, right.astype(np.float64)))
    full = np.maximum(counts, 1)
    columns = (edges[:-1], edges[1:], counts.tolist(), (sums / full).tolist(), (hits / full).tolist())
    return [Bin(*row) for row in zip(*columns, strict=True)]


def ece(bins: Sequence[Bin]) -> float:
    """Expected calibration error: how far confidence is from accuracy, averaged over all rows (Guo et al., 2017)."""
    rows = sum(one.count for one in bins)
    return sum(one.count * abs(one.accuracy - one.confidence) for one in bins) / max(rows, 1)


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


def score(probabilities_NC: ArrayLike, labels_N: ArrayLike, names: Sequence[str]) -> Scores:
    """Everything there is to say about these answers. `names` are the labels', in the order of the columns."""
    probabilities, labels = _probabilities(probabilities_NC, labels_N)
    classes = probabilities.shape[1]
    if len(names) != classes:
        raise UserError(f"{len(names)} label names for {classes} columns of probabilities; there must be one each")
    counts = confusion(probabilities.argmax(1), labels, classes)
    hits, bins = int(counts.trace()), reliability(probabilities, labels)
    theirs = probabilities[np.arange(len(labels)), labels]
    return Scores(
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


def grade_figures(answers_N: ArrayLike, grades_N: ArrayLike) -> tuple[float, dict[str, float]]:
    """Mean squared error, and how well answers rise and fall with grades: Pearson's and Spearman's correlation. Where
    all answers or all grades are equal there is none to speak of: 0."""
    answers, grades = (np.asarray(values, np.float64) for values in (answers_N, grades_N))
    error = float(np.mean((answers - grades) ** 2))
    return error, {
        "pearson": _correlation(answers, grades),
        "spearman": _correlation(_ranks(answers), _ranks(grades)),
        "error": math.sqrt(error),
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


def fit_temperature(logits_NC: ArrayLike, labels_N: ArrayLike) -> float:
    """The number between 0.05 and 20 to divide all scores by so that cross-entropy is least (Guo et al., 2017).

    Where all temperatures do equally well, or there are no rows, it is 1. The order of a row's classes never changes.
    Cross-entropy is convex in 1 / temperature: its slope has one zero, found by Newton's method, and by halving the
    interval where Newton would leave it. No random numbers, so the same rows give the same bits.
    """
    if np.size(labels_N) == 0:
        return 1.0
    margins = _margins(logits_NC, labels_N)
    low, high = 1 / HOTTEST, 1 / COLDEST
    if _slope(margins, 1.0)[0] == 0:
        return 1.0
    if _slope(margins, high)[0] <= 0:
        temperature = COLDEST
    elif _slope(margins, low)[0] >= 0:
        temperature = HOTTEST
    else:
        temperature = min(max(1 / _level(margins, low, high), COLDEST), HOTTEST)
    worse = cross_entropy(logits_NC, labels_N, temperature) > cross_entropy(logits_NC, labels_N)  # by rounding
    return 1.0 if worse else temperature


def _level(margins_NC: Floats, low: float, high: float) -> float:
    """The sharpness between `low` and `high` at which cross-entropy is level: falling before, rising after."""
    sharpness = 1.0
    for _ in range(200):
        slope, curvature = _slope(margins_NC, sharpness)
        newton = sharpness - slope / curvature if curvature > 0 else math.inf
        if abs(newton - sharpness) <= 1e-9 * sharpness:
            return newton  # the error is the square of the step: nothing that a float64 shows
        low, high = (sharpness, high) if slope < 0 else (low, sharpness)
        sharpness = newton if low < newton < high else math.sqrt(low * high)
    return sharpness


def _slope(margins_NC: Floats, sharpness: float) -> tuple[float, float]:
    """First and second derivative of cross-entropy with respect to the sharpness, 1 / temperature."""
    shares = softmax(margins_NC * sharpness)
    means = (shares * margins_NC).sum(1)
    variances = (shares * (margins_NC - means[:, None]) ** 2).sum(1)
    return float(means.mean()), float(variances.mean())


def _margins(logits_NC: ArrayLike, labels_N: ArrayLike) -> Floats:
    """How far each score lies above the label's own."""
    logits, labels = _rows(logits_NC, labels_N)
    return logits - logits[np.arange(len(labels)), labels][:, None]


def _probabilities(probabilities_NC: ArrayLike, labels_N: ArrayLike) -> tuple[Floats, Ints]:
    probabilities, labels = _rows(probabilities_NC, labels_N)
    wrong = (probabilities < 0).any(1) | (abs(probabilities.sum(1) - 1) > 1e-3)
    if wrong.any():
        row = int(wrong.argmax())
        found = ", ".join(f"{value:.4g}" for value in probabilities[row, :4])
        raise UserError(f"row {row} of the probabilities is {found}; must be at least 0 and sum to 1")
    return probabilities, labels


def _rows(scores_NC: ArrayLike, labels_N: ArrayLike) -> tuple[Floats, Ints]:
    """Finite numbers, a row of them for each label."""
    scores = np.ascontiguousarray(scores_NC, np.float64)
    if scores.ndim != 2 or not scores.size:
        raise UserError(f"scores have shape {scores.shape}; must be (rows, classes), at least one of each")
    labels = _classes("labels", labels_N, scores.shape[1])
    if len(labels) != len(scores):
        raise UserError(f"{len(scores)} rows of scores for {len(labels)} labels; there must be one each")
    finite = np.isfinite(scores).all(1)
    if not finite.all():
        raise UserError(f"row {int(finite.argmin())} of the scores holds a number that is not finite")
    return scores, labels


def _classes(what: str, numbers_N: ArrayLike, classes: int) -> Ints:
    numbers = np.asarray(numbers_N)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise UserError(f"{what} have shape {numbers.shape} and dtype {numbers.dtype}; must be whole numbers, a row")
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
        raise UserError(f"{what} are {numbers.min()} to {numbers.max()}; must be 0 to {classes - 1}")
    return numbers.astype(np.int64)
