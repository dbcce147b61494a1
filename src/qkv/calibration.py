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
COLDEST, HOTTEST = 0.05, 20.0  # where every prediction is right the best temperature would be 0


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


def cross_entropy(logits_NC: ArrayLike, labels_N: ArrayLike, temperature: float = 1.0) -> float:
    """Mean of -log p(label) in nats, of logits divided by the temperature."""
    scaled = _margins(logits_NC, labels_N) / temperature
    largest = scaled.max(1)
    return float(np.mean(largest + np.log(np.exp(scaled - largest[:, None]).sum(1))))


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


def fit_temperature(logits_NC: ArrayLike, labels_N: ArrayLike) -> float:
    """Temperature scaling: the divisor of the logits, from 0.05 to 20, that minimises cross-entropy (Guo et al., 2017).

    Where all temperatures are equally good, or there are no rows, it is 1. The order of a row's classes never changes.
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
    """The sharpness between `low` and `high` at which cross-entropy is least."""
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
