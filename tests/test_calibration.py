"""Calibration against hand numbers and slow loops, and the properties a temperature must have."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from qkv import calibration
from qkv.calibration import Bin
from qkv.schema import UserError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def drawn(rows: int, classes: int, sharpness: float = 1.0, seed: int = 5) -> tuple[Floats, Ints]:
    """Logits, and labels drawn from the probabilities of logits x sharpness."""
    random = np.random.default_rng(seed)
    logits = random.normal(0.0, 2.0, (rows, classes))
    levels = calibration.softmax(logits * sharpness).cumsum(1)
    return logits, (random.random((rows, 1)) > levels[:, :-1]).sum(1)


@st.composite
def judged(draw: st.DrawFn, largest: float = 50.0) -> tuple[Floats, Ints]:
    rows, classes = draw(st.integers(1, 13)), draw(st.integers(1, 5))
    logits = draw(hnp.arrays(np.float64, (rows, classes), elements=st.floats(-largest, largest)))
    return logits, draw(hnp.arrays(np.int64, rows, elements=st.integers(0, classes - 1)))


def test_softmax_of_hand_numbers_and_of_large_ones() -> None:
    """e^2 + e + 1 = 11.107; shares 0.665, 0.245, 0.090. One number added to all logits changes nothing."""
    assert calibration.softmax([[2.0, 1.0, 0.0]]) == pytest.approx(np.array([[0.66524, 0.24473, 0.09003]]), abs=1e-5)
    assert calibration.softmax([[1e4, 1e4, -1e4]]).tolist() == [[0.5, 0.5, 0.0]]
    assert calibration.softmax([[0.0, -math.inf]]).tolist() == [[1.0, 0.0]]


def test_cross_entropy_of_hand_numbers() -> None:
    """Right with odds 3 : 1, then wrong with them: (log 4/3 + log 4) / 2. At temperature 1/2 the odds are 9 : 1."""
    logits, labels = [[math.log(3), 0.0], [math.log(3), 0.0]], [0, 1]
    assert calibration.cross_entropy(logits, labels) == pytest.approx((math.log(4 / 3) + math.log(4)) / 2, abs=1e-15)
    cold = (math.log(10 / 9) + math.log(10)) / 2
    assert calibration.cross_entropy(logits, labels, temperature=0.5) == pytest.approx(cold, abs=1e-15)
    assert calibration.cross_entropy([[1e4, -1e4]], [1], temperature=0.05) == 4e5


def test_a_bin_holds_what_is_above_its_lower_edge_and_not_above_its_upper_one() -> None:
    """Ten bins: 0.7 is still of the seventh, 0.75 of the eighth, 1 of the last; 0.7 is right, 0.75 and 1 half."""
    sure, right = np.array([0.7, 0.75, 0.75, 1.0, 1.0]), np.array([1, 1, 0, 0, 1])
    bins = calibration.reliability(np.stack([sure, 1 - sure], 1), 1 - right, bins=10)
    assert [(one.low, one.high) for one in bins] == [(i / 10, (i + 1) / 10) for i in range(10)]
    assert [one.count for one in bins] == [0, 0, 0, 0, 0, 0, 1, 2, 0, 2]
    assert bins[6] == Bin(0.6, 0.7, 1, 0.7, 1.0)
    assert bins[7] == Bin(0.7, 0.8, 2, 0.75, 0.5)
    assert bins[9] == Bin(0.9, 1.0, 2, 1.0, 0.5)
    assert bins[0] == Bin(0.0, 0.1, 0, 0.0, 0.0)
    assert calibration.ece(bins) == pytest.approx((1 * 0.3 + 2 * 0.25 + 2 * 0.5) / 5, abs=1e-15)
    assert calibration.ece([]) == 0.0


@given(judged(8.0), st.integers(1, 20))
def test_calibration_error_equals_a_slow_loop(rows: tuple[Floats, Ints], bins: int) -> None:
    logits, labels = rows
    probabilities = calibration.softmax(logits)
    groups: dict[int, list[tuple[float, bool]]] = {}
    for shares, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
        sure = max(shares)
        place = next(i for i in range(bins) if sure <= (i + 1) / bins or i == bins - 1)
        groups.setdefault(place, []).append((sure, shares.index(sure) == label))
    slow = 0.0
    for group in groups.values():
        confidence, right = (sum(column) / len(group) for column in zip(*group, strict=True))
        slow += len(group) / len(labels) * abs(right - confidence)
    found = calibration.reliability(probabilities, labels, bins)
    assert {i: one.count for i, one in enumerate(found) if one.count} == {i: len(g) for i, g in groups.items()}
    assert calibration.ece(found) == pytest.approx(slow, abs=1e-12)


@pytest.mark.parametrize("true", [0.2, 0.7, 1.0, 1.9, 7.0])
def test_a_known_temperature_is_found_again(true: float) -> None:
    logits, labels = drawn(20_000, 3, sharpness=1 / true)
    assert calibration.fit_temperature(logits, labels) == pytest.approx(true, rel=0.06)


@pytest.mark.parametrize(("wrong", "rows"), [(1, 4), (1, 10), (499, 1000)])
def test_temperature_of_hand_numbers(wrong: int, rows: int) -> None:
    """Logits that differ by 2, `wrong` of them on the wrong side: best when e^(2 / T) = right / wrong."""
    labels = np.arange(rows) < wrong
    logits = np.tile([2.0, 0.0], (rows, 1))
    found = calibration.fit_temperature(logits, labels.astype(np.int64), prior_rows=0)
    assert found == pytest.approx(min(2 / math.log((rows - wrong) / wrong), 20.0), rel=1e-12)


def test_temperature_is_the_best_of_a_fine_grid() -> None:
    logits, labels = drawn(501, 5, sharpness=0.4)
    fitted = calibration.fit_temperature(logits, labels, prior_rows=0)
    best = calibration.cross_entropy(logits, labels, fitted)
    assert all(best <= calibration.cross_entropy(logits, labels, t) for t in np.geomspace(0.05, 20, 997))


def test_slopes_are_those_of_the_loss() -> None:
    logits, labels = drawn(31, 5)
    margins, small, weights = calibration._margins(logits, labels), 1e-5, np.linspace(0.5, 2.0, 31)
    for sharpness in (0.2, 1.0, 3.0):
        slope, curvature = calibration._slope(margins, weights, sharpness)
        around = [sharpness + step for step in (small, -small)]
        ends = [calibration.cross_entropy(logits, labels, 1 / one, weights) for one in around]
        slopes = [calibration._slope(margins, weights, one)[0] for one in around]
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * small), abs=1e-8)
        assert curvature == pytest.approx((slopes[0] - slopes[1]) / (2 * small), abs=1e-8)


def test_newton_is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halving the interval alone would take about fifty looks at all rows."""
    looks: list[float] = []
    truly = calibration._slope

    def counted(margins: Floats, weights: Floats, sharpness: float) -> tuple[float, float]:
        looks.append(sharpness)
        return truly(margins, weights, sharpness)

    monkeypatch.setattr(calibration, "_slope", counted)
    calibration.fit_temperature(*drawn(1000, 3, sharpness=0.4))
    assert len(looks) < 20


def test_a_second_temperature_never_worsens_the_first_by_rounding() -> None:
    """Logits that have their temperature already: the best is 1, give or take a last bit."""
    for seed in range(300):
        logits, labels = drawn(8, 2, sharpness=0.5, seed=seed)
        logits = logits / calibration.fit_temperature(logits, labels, prior_rows=0)
        again = calibration.fit_temperature(logits, labels, prior_rows=0)
        assert calibration.cross_entropy(logits, labels, again) <= calibration.cross_entropy(logits, labels)


def test_how_numbers_lie_in_memory_changes_no_bit() -> None:
    for seed in range(20):
        logits, labels = drawn(97, 23, sharpness=0.5, seed=seed)
        other = logits.copy(order="F")
        assert calibration.fit_temperature(other, labels) == calibration.fit_temperature(logits, labels)
        assert calibration.cross_entropy(other, labels) == calibration.cross_entropy(logits, labels)


@settings(deadline=None)
@given(judged(1e4))
def test_a_temperature_never_worsens_the_loss_nor_leaves_its_bounds(rows: tuple[Floats, Ints]) -> None:
    logits, labels = rows
    temperature = calibration.fit_temperature(logits, labels)
    assert 0.05 <= temperature <= 20.0
    assert calibration.cross_entropy(logits, labels, temperature) <= calibration.cross_entropy(logits, labels)
    assert calibration.fit_temperature(logits.copy(), labels) == temperature, "the same to the bit"


@settings(deadline=None)
@given(judged())
def test_a_temperature_leaves_the_ranking_and_a_shift_of_logits_leaves_the_temperature(
    rows: tuple[Floats, Ints],
) -> None:
    logits, labels = rows
    logits = logits.round()  # so that the shift is exact
    temperature = calibration.fit_temperature(logits, labels)
    assert np.array_equal((logits / temperature).argsort(1, kind="stable"), logits.argsort(1, kind="stable"))
    assert calibration.fit_temperature(logits + np.arange(len(logits))[:, None], labels) == temperature


def test_few_rows_hardly_move_the_temperature() -> None:
    """Ten rows, all right, would make every later prediction certain: cold to the bound. The prior rows prevent that;
    and the more rows, the closer to the temperature of least cross-entropy."""
    logits, labels = np.tile([1.0, 0.0], (10, 1)), np.zeros(10, np.int64)
    assert calibration.fit_temperature(logits, labels, prior_rows=0) == 0.05
    assert 0.5 < calibration.fit_temperature(logits, labels) < 1
    labels[:6] = 1
    assert calibration.fit_temperature(logits, labels, prior_rows=0) == 20.0
    assert 1 < calibration.fit_temperature(logits, labels) < 3
    gaps = []
    for rows in (30, 300, 3000):
        logits, labels = drawn(rows, 2, sharpness=0.5)
        best, shrunk = (calibration.fit_temperature(logits, labels, prior_rows=prior) for prior in (0, 20))
        assert 1 < shrunk < best
        gaps.append((best - shrunk) / (best - 1))
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 0.02


def test_the_prior_rows_are_rows_that_came_out_as_the_model_says() -> None:
    """Three rows of odds 3 : 1, two of them right, and four prior rows, of which 3 are right: 5 of 7, odds 5 : 2."""
    logits, labels = np.tile([math.log(3), 0.0], (3, 1)), np.array([0, 0, 1])
    found = calibration.fit_temperature(logits, labels, prior_rows=4)
    assert found == pytest.approx(math.log(3) / math.log(5 / 2), rel=1e-9)


def test_weights_are_repeated_rows() -> None:
    logits, labels = drawn(40, 3, sharpness=0.6)
    times = np.arange(40) % 3
    again = (np.repeat(logits, times, axis=0), np.repeat(labels, times))
    weighted = calibration.fit_temperature(logits, labels, times, prior_rows=0)
    assert weighted == pytest.approx(calibration.fit_temperature(*again, prior_rows=0), rel=1e-9)
    loss = calibration.cross_entropy(logits, labels, 2.0, times)
    assert loss == pytest.approx(calibration.cross_entropy(*again, 2.0), rel=1e-12)
    with pytest.raises(UserError, match=r"weights have shape \(2,\) for 40 rows"):
        calibration.fit_temperature(logits, labels, [1.0, 1.0])


def test_temperatures_at_the_ends() -> None:
    """All right: as cold as allowed. All wrong: as hot as allowed. Nothing to choose by: 1."""
    scores = [[3.0, 1.0], [2.0, 1.5]]
    assert calibration.fit_temperature(scores, [0, 0], prior_rows=0) == 0.05
    assert calibration.fit_temperature(scores, [1, 1], prior_rows=0) == 20.0
    assert calibration.fit_temperature([[1e4, -1e4], [1e4, -1e4]], [0, 1], prior_rows=0) == 20.0
    assert calibration.fit_temperature([[7.0, 7.0], [1.0, 1.0]], [0, 1]) == 1.0
    assert calibration.fit_temperature([[3.0], [2.0]], [0, 0]) == 1.0
    assert calibration.fit_temperature([[1e4, -1e4]], [0]) == 1.0, "the loss is exactly 0 already"
    assert calibration.fit_temperature(np.zeros((0, 3)), []) == 1.0
    assert calibration.fit_temperature([], []) == 1.0


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: calibration.cross_entropy([[0.0, 1.0]], [2]), "labels are 2 to 2; must be 0 to 1"),
        (lambda: calibration.cross_entropy([[0.0, 1.0]], [-1]), "labels are -1 to -1; must be 0 to 1"),
        (lambda: calibration.cross_entropy([[0.0, 1.0]], [0.5]), "dtype float64; must be whole numbers"),
        (
            lambda: calibration.fit_temperature([[0.0, 1.0], [math.nan, 0.0]], [0, 1]),
            "row 1 of the scores holds a number",
        ),
        (lambda: calibration.reliability([[0.5, 0.5]], [0], bins=0), "bins = 0: must be at least 1"),
    ],
)
def test_mistakes_are_named(call: object, sentence: str) -> None:
    assert callable(call)
    with pytest.raises(UserError) as error:
        call()
    assert sentence in str(error.value)


def test_uncalibrated_undoes_the_temperature() -> None:
    raw_NC = calibration.uncalibrated([[0.8, 0.2]], 2.0)
    assert raw_NC[0, 0] == pytest.approx(0.64 / 0.68)
    assert np.allclose(calibration.uncalibrated([[0.8, 0.2], [1.0, 0.0]], 1.0), [[0.8, 0.2], [1.0, 0.0]])
