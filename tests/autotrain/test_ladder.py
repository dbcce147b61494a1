"""Folds, baselines and the verdict."""

from __future__ import annotations

import numpy as np
import pytest

from qkv.autotrain.ladder import folds_of
from qkv.autotrain.scoring import ClassScoring, NumberScoring
from qkv.metrics import fisher_interval
from qkv.run.folder import COMPARISON
from qkv.training.comparison import BaselineComparison, Rung, read_comparison


def test_folds_are_stratified_and_keep_equal_texts_together() -> None:
    texts = [f"text {n % 70}" for n in range(100)]  # 30 texts are there twice
    labels = np.array([n % 70 % 2 for n in range(100)])
    folds = folds_of(texts, labels, 5)
    for text in set(texts):
        assert len({fold for one, fold in zip(texts, folds.tolist(), strict=True) if one == text}) == 1
    for label in (0, 1):
        different = {text: fold for text, fold, own in zip(texts, folds.tolist(), labels, strict=True) if own == label}
        assert set(np.bincount(list(different.values())).tolist()) == {7}
    assert folds.tolist() == folds_of(texts, labels, 5).tolist()


def test_baselines_of_classes() -> None:
    scoring = ClassScoring(["ham", "spam", "never"])
    texts = [("buy now " if n % 3 == 0 else "see you ") + f"w{n}" for n in range(60)]
    labels = np.array([int(n % 3 == 0) for n in range(60)])
    frequent, linear = scoring.baselines(texts, labels, ["buy now", "see you"])
    assert frequent.shape == linear.shape == (2, 3)
    assert frequent.argmax(1).tolist() == [0, 0]
    assert linear.argmax(1).tolist() == [1, 0]
    np.testing.assert_allclose(np.exp(frequent).sum(1), 1.0)
    assert np.exp(linear[:, 2]).max() < 1e-5  # a label without training rows is improbable, not impossible


def test_one_label_in_a_fold_is_no_error() -> None:
    found = ClassScoring(["a", "b"]).baselines(["x", "y"], np.array([0, 0]), ["z"])
    assert [one.argmax(1).tolist() for one in found] == [[0], [0]]


def test_numbers_are_compared_by_correlation() -> None:
    scoring = NumberScoring(())
    values = np.linspace(0, 5, 40)
    assert sorted(set(scoring.strata(values).tolist())) == [0, 1, 2, 3, 4]
    rung = scoring.rung("x", values[:, None], values, np.ones(40))
    assert rung.score == pytest.approx(1.0)
    assert rung.loss == 0
    temperature, figures = scoring.figures(2 * values[:, None], values, np.ones(40))
    assert temperature == 1.0
    assert (figures["rows"], round(figures["values"]["pearson"], 6)) == (40, 1.0)


def test_the_interval_of_a_correlation() -> None:
    low, high = fisher_interval(0.5, 103)
    assert (round(low, 3), round(high, 3)) == (0.339, 0.632)  # atanh(0.5) -+ 1.96 / 10
    assert fisher_interval(1.0, 3) == (-1.0, 1.0)


@pytest.mark.parametrize(
    ("score", "interval", "said"),
    [
        (0.9, (0.85, 0.94), "The Transformer is better"),
        (0.6, (0.5, 0.7), "A linear model is better"),
        (0.8, (0.7, 0.88), "No clear difference"),
    ],
)
def test_the_verdict_needs_more_than_noise(score: float, interval: tuple[float, float], said: str) -> None:
    rungs = (Rung("most frequent label", 0.5, 0.7, (0.4, 0.6)), Rung("TF-IDF", 0.75, 0.5, (0.67, 0.82)))
    assert said in BaselineComparison(rungs, 100, "accuracy", "test set").verdict(score, interval)


def test_a_comparison_is_read_as_it_was_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    _, figures = ClassScoring(["a", "b"]).figures(
        np.array([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), np.array([0, 1, 1]), np.ones(3)
    )
    written = BaselineComparison((Rung("x", 0.5, 0.7, (0.1, 0.9)),), 3, "accuracy", "5-fold cross-validation", figures)
    (tmp_path / COMPARISON).write_bytes(written.to_json())
    found = read_comparison(tmp_path)
    assert found is not None
    assert found.rungs == written.rungs
    assert found.test_metrics() == written.test_metrics()
    metrics = found.test_metrics()
    assert metrics is not None
    assert metrics["all"].to_json()["accuracy"] == pytest.approx(2 / 3)
