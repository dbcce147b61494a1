"""Linear probing: the output layer fitted to the vectors of a frozen model, by scikit-learn.

Fine-tuning that starts from a fitted output layer changes the pre-trained vectors less than one that starts from a
random layer (Kumar et al., 2022). With few rows the fitted layer alone is hard to beat.

N examples · D width · C classes
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qkv import calibration

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
STRENGTHS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)  # C of logistic regression on vectors of mean square 1
PENALTIES = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)  # alpha of ridge regression on the same
FOLDS = 5
MOST_TO_CHOOSE = 3000  # rows that choose the strength; all rows are fitted with it
ITERATIONS = 1000
UNSEEN = -10.0  # the logit of a class without examples
MOST_TO_FIT = 20_000  # examples; more would take minutes and teach a linear map nothing


class Scaler:
    """Vectors with mean 0 and mean square 1 over all features, so that one grid of penalties fits every model. Without
    a bias in the output layer, the mean stays."""

    def __init__(self, vectors_ND: Floats, *, centred: bool) -> None:
        self.mean_D = vectors_ND.mean(0) if centred else np.zeros(vectors_ND.shape[1])
        self.scale = float(np.sqrt(np.mean((vectors_ND - self.mean_D) ** 2))) or 1.0

    def __call__(self, vectors_ND: Floats) -> Floats:
        return (vectors_ND - self.mean_D) / self.scale

    def unscaled(self, weight_CD: Floats, bias_C: Floats) -> tuple[Floats, Floats]:
        """A map of scaled vectors as a map of vectors."""
        weight_CD = weight_CD / self.scale
        return weight_CD, bias_C - weight_CD @ self.mean_D


def fit_classes(
    vectors_ND: Floats, labels_N: Ints, weights_N: NDArray[np.float32], classes: int, *, bias: bool
) -> tuple[Floats, Floats]:
    """Logistic regression: the weight (C, D) and bias (C) of an output layer. Cross-validation chooses its strength and
    its temperature."""
    if len(np.unique(labels_N)) < 2:
        return _always(int(labels_N[0]), classes, vectors_ND.shape[1])
    scaler = Scaler(vectors_ND, centred=bias)
    scaled_ND = scaler(vectors_ND)
    strength, temperature = _chosen(scaled_ND, labels_N, weights_N, bias=bias)
    chosen = _logistic(strength, bias).fit(scaled_ND, labels_N, weights_N)
    known = chosen.classes_
    weight_CD, bias_C = np.zeros((classes, scaled_ND.shape[1])), np.full(classes, UNSEEN)
    if len(known) == 2:  # one logit, that of the second class: half of it for each
        weight_CD[known] = np.concatenate([-chosen.coef_, chosen.coef_]) / 2
        bias_C[known] = np.concatenate([-chosen.intercept_, chosen.intercept_]) / 2 if bias else 0.0
    else:
        weight_CD[known], bias_C[known] = chosen.coef_, chosen.intercept_
    return scaler.unscaled(weight_CD / temperature, bias_C / temperature)


def _always(label: int, classes: int, width: int) -> tuple[Floats, Floats]:
    """An output layer that predicts one class, the only one that has examples."""
    bias_C = np.full(classes, UNSEEN)
    bias_C[label] = 0.0
    return np.zeros((classes, width)), bias_C


def fit_numbers(vectors_ND: Floats, targets_N: Floats, *, bias: bool) -> tuple[Floats, Floats]:
    """Ridge regression: the weight (1, D) and bias (1) of an output layer; leave-one-out chooses the penalty."""
    from sklearn.linear_model import RidgeCV

    scaler = Scaler(vectors_ND, centred=bias)
    fitted = RidgeCV(alphas=PENALTIES, fit_intercept=bias).fit(scaler(vectors_ND), targets_N)
    return scaler.unscaled(np.atleast_2d(fitted.coef_), np.atleast_1d(np.float64(fitted.intercept_)))


def _chosen(scaled_ND: Floats, labels_N: Ints, weights_N: NDArray[np.float32], *, bias: bool) -> tuple[float, float]:
    """Strength and temperature with the lowest cross-validated log loss. Each strength is judged with a temperature of
    its own: a strong penalty gives the better order of texts, but probabilities that are too close to each other."""
    some = np.random.RandomState(0).permutation(len(labels_N))[:MOST_TO_CHOOSE]
    folds_N = stratified_folds(labels_N[some], FOLDS)
    if folds_N is None:
        return STRENGTHS[len(STRENGTHS) // 2], 1.0
    own_N, own_weights_N = labels_N[some], weights_N[some]
    known, place_N = np.unique(own_N, return_inverse=True)
    losses = dict[float, tuple[float, float]]()
    for strength in STRENGTHS:
        logits_NC = np.zeros((len(some), len(known)))
        for fold in range(int(folds_N.max()) + 1):
            inside, outside = folds_N != fold, folds_N == fold
            fitted = _logistic(strength, bias).fit(scaled_ND[some[inside]], own_N[inside], own_weights_N[inside])
            columns = np.searchsorted(known, fitted.classes_)
            logits_NC[np.ix_(outside, np.setdiff1d(np.arange(len(known)), columns))] = UNSEEN
            logits_NC[np.ix_(outside, columns)] = fitted.predict_log_proba(scaled_ND[some[outside]])
        temperature = float(calibration.fit_temperature(logits_NC, place_N, own_weights_N))
        losses[strength] = calibration.cross_entropy(logits_NC, place_N, temperature, own_weights_N), temperature
    best = min(losses, key=lambda strength: losses[strength][0])
    return best, losses[best][1]


def stratified_folds(labels_N: Ints, folds: int) -> Ints | None:
    """The fold of each row, every class spread evenly; fewer folds where a class has fewer rows. None where fewer than
    two classes have two rows."""
    counts = np.bincount(labels_N)
    common = counts[counts > 1]
    folds = min(folds, int(common.min())) if len(common) > 1 else 1
    if folds < 2:
        return None
    found_N = np.zeros(len(labels_N), np.int64)
    for label in np.flatnonzero(counts):
        own = np.flatnonzero(labels_N == label)
        found_N[np.random.RandomState(int(label)).permutation(own)] = (np.arange(len(own)) + label) % folds
    return found_N


def _logistic(strength: float, bias: bool) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, fit_intercept=bias, max_iter=ITERATIONS)
