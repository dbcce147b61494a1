"""The output layer that is fitted to frozen vectors is scikit-learn's, in the units of the model."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.tasks.linear_probe import fit_classes, fit_numbers, stratified_folds


def vectors(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return 3.0 + 7.0 * np.random.RandomState(seed).standard_normal((rows, width))


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_separable_classes_are_separated(classes: int, bias: bool) -> None:
    x = vectors(150, 5)
    labels = (x[:, :classes] - x[:, :classes].mean(0)).argmax(1)
    weight, offset = fit_classes(x, labels, np.ones(150, np.float32), classes, bias=bias)
    assert weight.shape == (classes, 5)
    assert ((x @ weight.T + (offset if bias else 0.0)).argmax(1) == labels).mean() > 0.9


def test_a_class_without_rows_is_improbable() -> None:
    x = vectors(60, 4)
    weight, offset = fit_classes(x, (x[:, 0] > 3).astype(np.int64), np.ones(60, np.float32), 3, bias=True)
    logits = x @ weight.T + offset
    assert (logits.argmax(1) < 2).all()


def test_weights_move_the_border() -> None:
    x = vectors(200, 3)
    labels = (x[:, 0] + 4 * np.random.RandomState(1).standard_normal(200) > 12).astype(np.int64)  # about a tenth
    weights = np.where(labels == 1, 9.0, 1.0).astype(np.float32)
    plain, weighted = (
        (x @ weight.T + offset).argmax(1).mean()
        for weight, offset in (fit_classes(x, labels, w, 2, bias=True) for w in (np.ones(200, np.float32), weights))
    )
    assert weighted > 1.5 * plain


def test_numbers_are_fitted() -> None:
    x = vectors(200, 4)
    targets = x @ np.array([1.0, -2.0, 0.5, 0.0]) + 4.0
    weight, offset = fit_numbers(x, targets, bias=True)
    assert (weight.shape, offset.shape) == ((1, 4), (1,))
    assert np.corrcoef((x @ weight.T + offset)[:, 0], targets)[0, 1] > 0.999


def test_folds_have_every_class() -> None:
    labels = np.array([0] * 20 + [1] * 7)
    folds = stratified_folds(labels, 5)
    assert folds is not None
    assert all(set(labels[folds == fold].tolist()) == {0, 1} for fold in range(5))
    assert stratified_folds(np.array([0, 0, 1]), 5) is None
