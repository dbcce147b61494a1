"""How far probabilities can be trusted: reliability, expected calibration error, temperature scaling. numpy, float64.

N rows · C classes
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from qkv.schema import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
COLDEST, HOTTEST = 0.05, 20.0  # the last resort, should logits be huge or tiny
# By benchmarks/calibration_rows.py: with 20 prior rows, a temperature that is fitted on 50 rows lowers the loss on
# other rows on average, whether a model is far too sure or just a little. Probabilities that are perfectly calibrated
# show an ECE of 0.11 on 50 rows and of 0.05 on 300, where it should be 0.
PRIOR_ROWS = 20
FEWEST_TO_CALIBRATE = 50  # validation rows
FEWEST_TO_JUDGE = 300  # rows to measure calibration on


@dataclass(frozen=True)
class Bin:
    """Predictions of similar confidence: above `low`, at most `high`. An empty bin has confidence and accuracy 0."""

    low: float
    high: float
    count: int
    confidence: float  # mean probability of the predicted class
    accuracy: float


def softmax(logits_NC: ArrayLike) -> Floats:
    """Probabilities. The largest logit of a row is subtracted first, so that no exponential can overflow."""
    logits = np.asarray(logits_NC, np.float64)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shares / shares.sum(-1, keepdims=True), np.float64)


def uncalibrated(probabilities_NC: ArrayLike, temperature: float) -> Floats:
    """The probabilities before temperature scaling."""
    return softmax(np.log(np.maximum(np.asarray(probabilities_NC, np.float64), 1e-300)) * temperature)


def cross_entropies(logits_NC: ArrayLike, labels_N: ArrayLike, temperature: float = 1.0) -> Floats:
    """-log p(label) of each row in nats, of logits divided by the temperature."""
    scaled = _margins(logits_NC, labels_N) / temperature
    largest = scaled.max(1)
    return np.asarray(largest + np.log(np.exp(scaled - largest[:, None]).sum(1)), np.float64)


def cross_entropy(
    logits_NC: ArrayLike, labels_N: ArrayLike, temperature: float = 1.0, weights_N: ArrayLike | None = None
) -> float:
    """Mean of -log p(label) in nats, of logits divided by the temperature; a weighted mean where there are weights."""
    losses = cross_entropies(logits_NC, labels_N, temperature)
    return float(np.average(losses, weights=None if weights_N is None else _weights(weights_N, len(losses))))


def reliability(probabilities_NC: ArrayLike, labels_N: ArrayLike, bins: int = 15) -> list[Bin]:
    """Predictions in bins of equal width by the confidence of the predicted class, empty bins included.

    Of calibrated predictions with confidence 0.8, 80% are right: accuracy equals confidence.
    """
    if bins < 1:
        raise UserError(f"bins = {bins}: must be at least 1")
    probabilities, labels = check_probabilities(probabilities_NC, labels_N)
    sure, right = probabilities.max(1), probabilities.argmax(1) == labels
    edges = [i / bins for i in range(bins + 1)]
    place = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    counts, sums, hits = (np.bincount(place, weight, bins) for weight in (None, sure, right.astype(np.float64)))
    full = np.maximum(counts, 1)
    columns = (edges[:-1], edges[1:], counts.tolist(), (sums / full).tolist(), (hits / full).tolist())
    return [Bin(*row) for row in zip(*columns, strict=True)]


def ece(bins: Sequence[Bin]) -> float:
    """Expected calibration error: mean distance of confidence from accuracy over all rows (Guo et al., 2017)."""
    rows = sum(one.count for one in bins)
    return sum(one.count * abs(one.accuracy - one.confidence) for one in bins) / max(rows, 1)


def fit_temperature(
    logits_NC: ArrayLike,
    labels_N: ArrayLike,
    weights_N: ArrayLike | None = None,
    *,
    prior_rows: float = PRIOR_ROWS,
) -> float:
    """Temperature scaling: the divisor of the logits, from 0.05 to 20, that minimises cross-entropy (Guo et al., 2017).

    It is shrunk towards 1, as if `prior_rows` more rows had come out as the model's own probabilities say: ten right
    predictions do not make every later one certain, and thousands of rows decide by themselves. With weights, rows
    count as many as give a mean of the same variance (Kish, 1965).

    Where all temperatures are equally good, or there are no rows, it is 1. The order of a row's classes never changes,
    and the cross-entropy of these rows never grows. It is convex in 1 / temperature: its slope has one zero, found by
    Newton's method, and by halving the interval where Newton would leave it. No random numbers, so the same rows give
    the same bits.
    """
    if np.size(labels_N) == 0:
        return 1.0
    margins = _margins(logits_NC, labels_N)
    weights = _weights(weights_N, len(margins))
    rows = weights.sum() ** 2 / (weights**2).sum()
    start = _slope(margins, weights, 1.0)[0]
    goal = start * prior_rows / (rows + prior_rows)  # the slope of the prior rows is 0 at 1, and moves as that of ours
    low, high = 1 / HOTTEST, 1 / COLDEST
    if start == 0:
        return 1.0
    if _slope(margins, weights, high)[0] <= goal:
        temperature = COLDEST
    elif _slope(margins, weights, low)[0] >= goal:
        temperature = HOTTEST
    else:
        temperature = min(max(1 / _level(margins, weights, goal, low, high), COLDEST), HOTTEST)
    before, after = (cross_entropy(logits_NC, labels_N, t, weights_N) for t in (1.0, temperature))
    return 1.0 if after > before else temperature  # by rounding


def _level(margins_NC: Floats, weights_N: Floats, goal: float, low: float, high: float) -> float:
    """The sharpness between `low` and `high` at which the slope of cross-entropy is `goal`."""
    sharpness = 1.0
    for _ in range(200):
        slope, curvature = _slope(margins_NC, weights_N, sharpness)
        newton = sharpness - (slope - goal) / curvature if curvature > 0 else math.inf
        if abs(newton - sharpness) <= 1e-9 * sharpness:
            return newton  # the error is the square of the step: nothing that a float64 shows
        low, high = (sharpness, high) if slope < goal else (low, sharpness)
        sharpness = newton if low < newton < high else math.sqrt(low * high)
    return sharpness


def _slope(margins_NC: Floats, weights_N: Floats, sharpness: float) -> tuple[float, float]:
    """First and second derivative of cross-entropy with respect to the sharpness, 1 / temperature."""
    shares = softmax(margins_NC * sharpness)
    means = (shares * margins_NC).sum(1)
    variances = (shares * (margins_NC - means[:, None]) ** 2).sum(1)
    return float(np.average(means, weights=weights_N)), float(np.average(variances, weights=weights_N))


def _weights(weights_N: ArrayLike | None, rows: int) -> Floats:
    weights = np.ones(rows) if weights_N is None else np.asarray(weights_N, np.float64)
    if weights.shape != (rows,) or not (weights >= 0).all() or not weights.sum() > 0:
        raise UserError(f"weights have shape {weights.shape} for {rows} rows; must be one each, at least 0, not all 0")
    return weights


def _margins(logits_NC: ArrayLike, labels_N: ArrayLike) -> Floats:
    """How far each logit lies above that of the label."""
    logits, labels = check_scores(logits_NC, labels_N)
    return logits - logits[np.arange(len(labels)), labels][:, None]


def check_probabilities(probabilities_NC: ArrayLike, labels_N: ArrayLike) -> tuple[Floats, Ints]:
    probabilities, labels = check_scores(probabilities_NC, labels_N)
    wrong = (probabilities < 0).any(1) | (abs(probabilities.sum(1) - 1) > 1e-3)
    if wrong.any():
        row = int(wrong.argmax())
        found = ", ".join(f"{value:.4g}" for value in probabilities[row, :4])
        raise UserError(f"row {row} of the probabilities is {found}; must be at least 0 and sum to 1")
    return probabilities, labels


def check_scores(scores_NC: ArrayLike, labels_N: ArrayLike) -> tuple[Floats, Ints]:
    """Finite numbers, a row of them for each label."""
    scores = np.ascontiguousarray(scores_NC, np.float64)
    if scores.ndim != 2 or not scores.size:
        raise UserError(f"scores have shape {scores.shape}; must be (rows, classes), at least one of each")
    labels = check_classes("labels", labels_N, scores.shape[1])
    if len(labels) != len(scores):
        raise UserError(f"{len(scores)} rows of scores for {len(labels)} labels; there must be one each")
    finite = np.isfinite(scores).all(1)
    if not finite.all():
        raise UserError(f"row {int(finite.argmin())} of the scores holds a number that is not finite")
    return scores, labels


def check_classes(what: str, numbers_N: ArrayLike, classes: int) -> Ints:
    numbers = np.asarray(numbers_N)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise UserError(f"{what} have shape {numbers.shape} and dtype {numbers.dtype}; must be whole numbers, a row")
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < classes:
        raise UserError(f"{what} are {numbers.min()} to {numbers.max()}; must be 0 to {classes - 1}")
    return numbers.astype(np.int64)
