"""Metrics against scikit-learn, hand numbers and slow loops; and the properties a temperature must have."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qkv import metrics
from qkv.metrics import Bin
from qkv.schema import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def drawn(rows: int, classes: int, sharpness: float = 1.0, seed: int = 5) -> tuple[Floats, Ints]:
    """ClassificationMetrics, and labels drawn from the probabilities of scores x sharpness."""
    random = np.random.default_rng(seed)
    logits = random.normal(0.0, 2.0, (rows, classes))
    levels = metrics.softmax(logits * sharpness).cumsum(1)
    return logits, (random.random((rows, 1)) > levels[:, :-1]).sum(1)


@st.composite
def judged(draw: st.DrawFn, largest: float = 50.0) -> tuple[Floats, Ints]:
    rows, classes = draw(st.integers(1, 13)), draw(st.integers(1, 5))
    logits = draw(hnp.arrays(np.float64, (rows, classes), elements=st.floats(-largest, largest)))
    return logits, draw(hnp.arrays(np.int64, rows, elements=st.integers(0, classes - 1)))


def test_softmax_of_hand_numbers_and_of_large_ones() -> None:
    """e^2 + e + 1 = 11.107; shares 0.665, 0.245, 0.090. One number added to all scores changes nothing."""
    assert metrics.softmax([[2.0, 1.0, 0.0]]) == pytest.approx(np.array([[0.66524, 0.24473, 0.09003]]), abs=1e-5)
    assert metrics.softmax([[1e4, 1e4, -1e4]]).tolist() == [[0.5, 0.5, 0.0]]
    assert metrics.softmax([[0.0, -math.inf]]).tolist() == [[1.0, 0.0]]


def test_cross_entropy_of_hand_numbers() -> None:
    """Right with odds 3 : 1, then wrong with them: (log 4/3 + log 4) / 2. At temperature 1/2 the odds are 9 : 1."""
    logits, labels = [[math.log(3), 0.0], [math.log(3), 0.0]], [0, 1]
    assert metrics.cross_entropy(logits, labels) == pytest.approx((math.log(4 / 3) + math.log(4)) / 2, abs=1e-15)
    cold = (math.log(10 / 9) + math.log(10)) / 2
    assert metrics.cross_entropy(logits, labels, temperature=0.5) == pytest.approx(cold, abs=1e-15)
    assert metrics.cross_entropy([[1e4, -1e4]], [1], temperature=0.05) == 4e5


@pytest.mark.parametrize(("rows", "classes"), [(1, 2), (31, 2), (997, 7)])
def test_figures_are_those_of_scikit_learn(rows: int, classes: int) -> None:
    logits, labels = drawn(rows, classes)
    probabilities = metrics.softmax(logits)
    names, predicted = [f"label {i}" for i in range(classes)], logits.argmax(1)
    found = metrics.score(probabilities, labels, names)
    everything = {"labels": range(classes)}
    counts = sklearn.metrics.confusion_matrix(labels, predicted, **everything)
    f1 = sklearn.metrics.f1_score(labels, predicted, average=None, zero_division=0, **everything)
    loss = sklearn.metrics.log_loss(labels, probabilities, **everything)
    assert found.confusion == counts.tolist()
    assert found.accuracy == sklearn.metrics.accuracy_score(labels, predicted) == metrics.accuracy(logits, labels)
    assert metrics.f1_scores(found.confusion) == pytest.approx(f1, abs=1e-15)
    assert found.f1 == pytest.approx(f1.mean(), abs=1e-15)
    assert found.loss == pytest.approx(loss, abs=1e-12)
    assert metrics.cross_entropy(logits, labels) == pytest.approx(loss, abs=1e-12)
    assert found.interval[0] <= found.accuracy <= found.interval[1]
    assert (found.rows, found.labels) == (rows, tuple(names))


def test_rows_of_a_confusion_are_the_truth_and_columns_the_answers() -> None:
    assert metrics.confusion([1, 1, 0, 2], [0, 0, 0, 2], 3).tolist() == [[1, 2, 0], [0, 0, 0], [0, 0, 1]]


def test_f1_of_labels_that_are_missing_on_either_side() -> None:
    """Class 1 is predicted and never occurs, 2 occurs and is never predicted, 3 does neither: all 0, none divides."""
    truth, said = [0, 0, 2, 2], [0, 0, 1, 0]
    counts = metrics.confusion(said, truth, 4)
    assert metrics.f1_scores(counts).tolist() == [0.8, 0.0, 0.0, 0.0]
    theirs = sklearn.metrics.f1_score(truth, said, average="macro", zero_division=0, labels=range(4))
    assert metrics.macro_f1(counts) == pytest.approx(0.2, abs=1e-15) == theirs


def test_a_bin_holds_what_is_above_its_lower_edge_and_not_above_its_upper_one() -> None:
    """Ten bins: 0.7 is still of the seventh, 0.75 of the eighth, 1 of the last; 0.7 is right, 0.75 and 1 half."""
    sure, right = np.array([0.7, 0.75, 0.75, 1.0, 1.0]), np.array([1, 1, 0, 0, 1])
    bins = metrics.reliability(np.stack([sure, 1 - sure], 1), 1 - right, bins=10)
    assert [(one.low, one.high) for one in bins] == [(i / 10, (i + 1) / 10) for i in range(10)]
    assert [one.count for one in bins] == [0, 0, 0, 0, 0, 0, 1, 2, 0, 2]
    assert bins[6] == Bin(0.6, 0.7, 1, 0.7, 1.0)
    assert bins[7] == Bin(0.7, 0.8, 2, 0.75, 0.5)
    assert bins[9] == Bin(0.9, 1.0, 2, 1.0, 0.5)
    assert bins[0] == Bin(0.0, 0.1, 0, 0.0, 0.0)
    assert metrics.ece(bins) == pytest.approx((1 * 0.3 + 2 * 0.25 + 2 * 0.5) / 5, abs=1e-15)
    assert metrics.ece([]) == 0.0


@given(judged(8.0), st.integers(1, 20))
def test_calibration_error_equals_a_slow_loop(rows: tuple[Floats, Ints], bins: int) -> None:
    logits, labels = rows
    probabilities = metrics.softmax(logits)
    groups: dict[int, list[tuple[float, bool]]] = {}
    for shares, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        sure = max(shares)
        place = next(i for i in range(bins) if sure <= (i + 1) / bins or i == bins - 1)
        groups.setdefault(place, []).append((sure, shares.index(sure) == label))
    slow = 0.0
    for group in groups.values():
        confidence, right = (sum(column) / len(group) for column in zip(*group, strict=True))
        slow += len(group) / len(labels) * abs(right - confidence)
    found = metrics.reliability(probabilities, labels, bins)
    assert {i: one.count for i, one in enumerate(found) if one.count} == {i: len(g) for i, g in groups.items()}
    assert metrics.ece(found) == pytest.approx(slow, abs=1e-12)


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


@pytest.mark.parametrize("true", [0.2, 0.7, 1.0, 1.9, 7.0])
def test_a_known_temperature_is_found_again(true: float) -> None:
    logits, labels = drawn(20_000, 3, sharpness=1 / true)
    assert metrics.fit_temperature(logits, labels) == pytest.approx(true, rel=0.06)


@pytest.mark.parametrize(("wrong", "rows"), [(1, 4), (1, 10), (499, 1000)])
def test_temperature_of_hand_numbers(wrong: int, rows: int) -> None:
    """ClassificationMetrics that differ by 2, `wrong` of them on the wrong side: best when e^(2 / T) = right / wrong."""
    labels = np.arange(rows) < wrong
    found = metrics.fit_temperature(np.tile([2.0, 0.0], (rows, 1)), labels.astype(np.int64))
    assert found == pytest.approx(min(2 / math.log((rows - wrong) / wrong), 20.0), rel=1e-12)


def test_temperature_is_the_best_of_a_fine_grid() -> None:
    logits, labels = drawn(501, 5, sharpness=0.4)
    best = metrics.cross_entropy(logits, labels, metrics.fit_temperature(logits, labels))
    assert all(best <= metrics.cross_entropy(logits, labels, t) for t in np.geomspace(0.05, 20, 997))


def test_slopes_are_those_of_the_loss() -> None:
    logits, labels = drawn(31, 5)
    margins, small = metrics._margins(logits, labels), 1e-5
    for sharpness in (0.2, 1.0, 3.0):
        slope, curvature = metrics._slope(margins, sharpness)
        ends = [metrics.cross_entropy(logits, labels, 1 / (sharpness + step)) for step in (small, -small)]
        slopes = [metrics._slope(margins, sharpness + step)[0] for step in (small, -small)]
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * small), abs=1e-8)
        assert curvature == pytest.approx((slopes[0] - slopes[1]) / (2 * small), abs=1e-8)


def test_newton_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving the interval alone would take about fifty looks at all rows."""
    looks: list[float] = []
    truly = metrics._slope

    def counted(margins: Floats, sharpness: float) -> tuple[float, float]:
        looks.append(sharpness)
        return truly(margins, sharpness)

    monkeypatch.setattr(metrics, "_slope", counted)
    metrics.fit_temperature(*drawn(1000, 3, sharpness=0.4))
    assert len(looks) < 20


def test_a_second_temperature_never_worsens_the_first_by_rounding() -> None:
    """ClassificationMetrics that have their temperature already: the best is 1, give or take a last bit."""
    for seed in range(300):
        logits, labels = drawn(8, 2, sharpness=0.5, seed=seed)
        logits = logits / metrics.fit_temperature(logits, labels)
        again = metrics.fit_temperature(logits, labels)
        assert metrics.cross_entropy(logits, labels, again) <= metrics.cross_entropy(logits, labels)


def test_how_numbers_lie_in_memory_changes_no_bit() -> None:
    for seed in range(20):
        logits, labels = drawn(97, 23, sharpness=0.5, seed=seed)
        other = logits.copy(order="F")
        assert metrics.fit_temperature(other, labels) == metrics.fit_temperature(logits, labels)
        assert metrics.cross_entropy(other, labels) == metrics.cross_entropy(logits, labels)


@settings(deadline=None)
@given(judged(1e4))
def test_a_temperature_never_worsens_the_loss_nor_leaves_its_bounds(rows: tuple[Floats, Ints]) -> None:
    logits, labels = rows
    temperature = metrics.fit_temperature(logits, labels)
    assert 0.05 <= temperature <= 20.0
    assert metrics.cross_entropy(logits, labels, temperature) <= metrics.cross_entropy(logits, labels)
    assert metrics.fit_temperature(logits.copy(), labels) == temperature, "the same to the bit"


@settings(deadline=None)
@given(judged())
def test_a_temperature_leaves_the_ranking_and_a_shift_of_scores_leaves_the_temperature(
    rows: tuple[Floats, Ints],
) -> None:
    logits, labels = rows
    logits = logits.round()  # so that the shift is exact
    temperature = metrics.fit_temperature(logits, labels)
    assert np.array_equal((logits / temperature).argsort(1, kind="stable"), logits.argsort(1, kind="stable"))
    assert metrics.fit_temperature(logits + np.arange(len(logits))[:, None], labels) == temperature


def test_temperatures_at_the_ends() -> None:
    """All right: as cold as allowed. All wrong: as hot as allowed. Nothing to choose by: 1."""
    scores = [[3.0, 1.0], [2.0, 1.5]]
    assert metrics.fit_temperature(scores, [0, 0]) == 0.05
    assert metrics.fit_temperature(scores, [1, 1]) == 20.0
    assert metrics.fit_temperature([[1e4, -1e4], [1e4, -1e4]], [0, 1]) == 20.0
    assert metrics.fit_temperature([[7.0, 7.0], [1.0, 1.0]], [0, 1]) == 1.0
    assert metrics.fit_temperature([[3.0], [2.0]], [0, 0]) == 1.0
    assert metrics.fit_temperature([[1e4, -1e4]], [0]) == 1.0, "the loss is exactly 0 already"
    assert metrics.fit_temperature(np.zeros((0, 3)), []) == 1.0
    assert metrics.fit_temperature([], []) == 1.0


def test_scores_are_plain_finite_json_also_where_a_label_had_probability_0() -> None:
    found = metrics.score(np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), [1, 0], ["bad", "good"])
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
    ]
    assert (table["rows"], table["accuracy"], table["labels"]) == (2, 0.5, ["bad", "good"])
    assert table["confusion"] == [[1, 0], [1, 0]]
    assert table["interval"] == pytest.approx([0.0945, 0.9055], abs=5e-5)
    assert table["loss"] == pytest.approx((708.396 + math.log(2)) / 2, abs=1e-3)
    assert len(table["bins"]) == 15
    assert table["bins"][-1] == {"low": 14 / 15, "high": 1.0, "count": 1, "confidence": 1.0, "accuracy": 0.0}


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: metrics.accuracy(np.zeros((0, 2)), []), "scores have shape (0, 2); must be (rows, classes)"),
        (lambda: metrics.accuracy([[0.0, 1.0]], [0, 1]), "1 rows of scores for 2 labels"),
        (lambda: metrics.cross_entropy([[0.0, 1.0]], [2]), "labels are 2 to 2; must be 0 to 1"),
        (lambda: metrics.cross_entropy([[0.0, 1.0]], [-1]), "labels are -1 to -1; must be 0 to 1"),
        (lambda: metrics.cross_entropy([[0.0, 1.0]], [0.5]), "dtype float64; must be whole numbers"),
        (lambda: metrics.fit_temperature([[0.0, 1.0], [math.nan, 0.0]], [0, 1]), "row 1 of the scores holds a number"),
        (lambda: metrics.score([[0.5, 0.5], [2.0, -1.0]], [0, 1], "ab"), "row 1 of the probabilities is 2, -1; must"),
        (lambda: metrics.score([[0.5, 0.4]], [0], "ab"), "row 0 of the probabilities is 0.5, 0.4; must be at least 0"),
        (lambda: metrics.score([[0.5, 0.5]], [0], "abc"), "3 label names for 2 columns"),
        (lambda: metrics.reliability([[0.5, 0.5]], [0], bins=0), "bins = 0: must be at least 1"),
        (lambda: metrics.confusion([0], [0, 1], 2), "1 answers for 2 labels"),
        (lambda: metrics.wilson(3, 2), "3 hits of 2 rows"),
    ],
)  # fmt: skip
def test_mistakes_are_named(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(UserError) as error:
        call()
    assert sentence in str(error.value)
