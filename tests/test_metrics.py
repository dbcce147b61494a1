"""Metrics against scikit-learn, hand numbers and slow loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from qkv import metrics
from qkv.calibration import cross_entropy, softmax
from qkv.schema import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def drawn(rows: int, classes: int) -> tuple[Floats, Ints]:
    """Logits, and labels drawn from their probabilities."""
    random = np.random.default_rng(5)
    logits = random.normal(0.0, 2.0, (rows, classes))
    levels = softmax(logits).cumsum(1)
    return logits, (random.random((rows, 1)) > levels[:, :-1]).sum(1)


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (31, 2), (997, 7)])
def test_metrics_are_those_of_scikit_learn(rows: int, classes: int) -> None:
    logits, labels = drawn(rows, classes)
    probabilities = softmax(logits)
    names, predicted = [f"label {i}" for i in range(classes)], logits.argmax(1)
    found = metrics.classification_metrics(probabilities, labels, names)
    everything = {"labels": range(classes)}
    counts = sklearn.metrics.confusion_matrix(labels, predicted, **everything)
    f1 = sklearn.metrics.f1_score(labels, predicted, average=None, zero_division=0, **everything)
    loss = sklearn.metrics.log_loss(labels, probabilities, **everything)
    assert found.confusion == counts.tolist()
    assert found.accuracy == sklearn.metrics.accuracy_score(labels, predicted) == metrics.accuracy(logits, labels)
    assert [one.f1 for one in found.classes] == pytest.approx(f1, abs=1e-15)
    assert found.f1 == pytest.approx(f1.mean(), abs=1e-15)
    assert found.loss == pytest.approx(loss, abs=1e-12)
    assert cross_entropy(logits, labels) == pytest.approx(loss, abs=1e-12)
    assert found.interval[0] <= found.accuracy <= found.interval[1]
    assert (found.rows, found.labels) == (rows, tuple(names))


def test_rows_of_a_confusion_are_the_truth_and_columns_the_predictions() -> None:
    assert metrics.confusion([1, 1, 0, 2], [0, 0, 0, 2], 3).tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_classes_that_are_missing_on_either_side() -> None:
    """Class b is predicted and never occurs, c occurs and is never predicted, d does neither: all 0, none divides."""
    found = metrics.class_metrics([0, 0, 1, 0], [0, 0, 2, 2], "abcd")
    assert found[0] == metrics.ClassMetrics("a", 2, 3, 2 / 3, 1.0, 0.8)
    assert found[1] == metrics.ClassMetrics("b", 0, 1, 0.0, 0.0, 0.0)
    assert found[2] == metrics.ClassMetrics("c", 2, 0, 0.0, 0.0, 0.0)
    assert found[3] == metrics.ClassMetrics("d", 0, 0, 0.0, 0.0, 0.0)


def certain(predicted: list[int], labels: list[int], names: str) -> metrics.ClassificationMetrics:
    return metrics.classification_metrics(np.eye(len(names))[predicted], labels, names)


def test_majority_balanced_accuracy_and_the_worst_confusion_by_hand() -> None:
    """a 6 rows (5 right, 1 as b), b 3 rows (1 right, 2 as c), c 1 row (right): recalls 5/6, 1/3, 1."""
    found = certain([0, 0, 0, 0, 0, 1, 1, 2, 2, 2], [0, 0, 0, 0, 0, 0, 1, 1, 1, 2], "abc")
    assert (found.majority, found.majority_share, found.accuracy) == ("a", 0.6, 0.7)
    assert found.balanced_accuracy == pytest.approx((5 / 6 + 1 / 3 + 1) / 3)
    assert found.most_confused == metrics.Mistake("b", "c", 2, 3)
    assert [(one.rows, one.predicted) for one in found.classes] == [(6, 5), (3, 2), (1, 3)]
    assert found.warnings() == []


def test_balanced_accuracy_is_of_the_classes_that_occur() -> None:
    found = certain([0, 0, 1], [0, 0, 0], "abc")
    assert found.balanced_accuracy == pytest.approx(2 / 3)
    assert certain([0, 1], [0, 1], "ab").most_confused is None


def test_warnings_of_a_classifier_that_always_says_the_same() -> None:
    found = certain([0] * 10, [0] * 7 + [1] * 3, ["ham", "spam"])  # type: ignore[arg-type]
    assert found.warnings() == ["accuracy is no better than always predicting 'ham': 0.70", "'spam' is never predicted"]
    many = certain([0] * 14, list(range(7)) * 2, "abcdefg")
    assert many.warnings()[1] == "'b', 'c', 'd', 'e', 'f' and 1 more are never predicted"


def test_a_paired_interval_by_hand() -> None:
    """Differences 1, 0, 0, 1: mean 0.5, deviation sqrt(1/3), standard error 0.2887."""
    mean, low, high = metrics.paired_interval([0, 1, 0, 0], [1, 1, 0, 1])
    assert (mean, low, high) == pytest.approx((0.5, 0.5 - 1.95996 * 0.288675, 0.5 + 1.95996 * 0.288675), abs=1e-4)
    assert metrics.paired_interval([1.0], [2.0]) == (1.0, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("hits", "rows", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (900, 1000, 0.8798, 0.9171), (0, 0, 0, 1)],
)
def test_wilson_intervals_of_hand_numbers(hits: int, rows: int, low: float, high: float) -> None:
    """With no hit of ten: z^2 / (10 + z^2) = 3.8415 / 13.8415 = 0.2775."""
    assert metrics.wilson(hits, rows) == pytest.approx((low, high), abs=5e-5)


def test_wilson_intervals_end_exactly_at_0_and_1() -> None:
    for rows in range(1, 100):
        assert metrics.wilson(0, rows)[0] == 0.0
        assert metrics.wilson(rows, rows)[1] == 1.0


@given(st.integers(0, 2000), st.integers(1, 2000))
def test_a_wilson_interval_holds_its_rate_and_stays_within_0_and_1(hits: int, more: int) -> None:
    low, high = metrics.wilson(hits, hits + more)
    assert 0.0 <= low <= hits / (hits + more) <= high <= 1.0


def test_metrics_are_plain_finite_json_also_where_a_label_had_probability_0() -> None:
    found = metrics.classification_metrics(np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), [1, 0], ["bad", "good"])
    table = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert table == found.to_json()
    assert list(table) == [
        "rows",
        "accuracy",
        "f1",
        "loss",
        "ece",
        "interval",
        "labels",
        "confusion",
        "bins",
        "raw_bins",
        "classes",
        "balanced_accuracy",
        "majority",
        "majority_share",
        "most_confused",
    ]
    assert (table["rows"], table["accuracy"], table["labels"]) == (2, 0.5, ["bad", "good"])
    assert table["confusion"] == [[1, 0], [1, 0]]
    assert table["interval"] == pytest.approx([0.0945, 0.9055], abs=5e-5)
    assert table["loss"] == pytest.approx((708.396 + math.log(2)) / 2, abs=1e-3)
    assert len(table["bins"]) == 15
    assert table["classes"][0] == {
        "label": "bad", "rows": 1, "predicted": 2, "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3),
    }  # fmt: skip
    assert table["most_confused"] == {"true": "good", "predicted": "bad", "count": 1, "rows": 1}
    assert table["bins"][-1] == {"low": 14 / 15, "high": 1.0, "count": 1, "confidence": 1.0, "accuracy": 0.0}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: metrics.accuracy(np.zeros((0, 2)), []), "scores have shape (0, 2); must be (rows, classes)"),
        (lambda: metrics.accuracy([[0.0, 1.0]], [0, 1]), "1 rows of scores for 2 labels"),
        (
            lambda: metrics.classification_metrics([[0.5, 0.5], [2.0, -1.0]], [0, 1], "ab"),
            "row 1 of the probabilities is 2, -1; must",
        ),
        (
            lambda: metrics.classification_metrics([[0.5, 0.4]], [0], "ab"),
            "row 0 of the probabilities is 0.5, 0.4; must be at least 0",
        ),
        (lambda: metrics.classification_metrics([[0.5, 0.5]], [0], "abc"), "3 label names for 2 columns"),
        (lambda: metrics.confusion([0], [0, 1], 2), "1 predictions for 2 labels; there must be one each"),
        (lambda: metrics.wilson(3, 2), "3 hits of 2 rows"),
    ],
)
def test_mistakes_are_named(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(UserError) as error:
        call()
    assert sentence in str(error.value)
