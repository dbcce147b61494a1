"""What a ladder measures and which baselines it has, for classes and for numbers.

R rows · C classes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from qkv import calibration, metrics
from qkv.training.comparison import Rung

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Labels = NDArray[Any]  # class ids, or numbers
STRATA = 5  # of numbers: folds have as many small ones as large ones


class Scoring(Protocol):
    """How models of one kind are compared."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the rungs: two baselines, frozen encoder, fine-tuned encoder."""
        ...

    @property
    def metric(self) -> str: ...

    @property
    def outputs(self) -> int: ...

    def strata(self, labels_R: Labels) -> Ints:
        """Classes whose rows are spread evenly over the folds."""
        ...

    def numbered(self, labels: Sequence[str]) -> Labels:
        """Labels as they are stored."""
        ...

    def baselines(self, texts: list[str], labels_R: Labels, others: list[str]) -> list[Floats]:
        """Outputs of each baseline for other texts."""
        ...

    def rung(self, name: str, outputs_RC: Floats, labels_R: Labels, weights_R: Floats) -> Rung: ...

    def figures(self, outputs_RC: Floats, labels_R: Labels, weights_R: Floats) -> tuple[float, dict[str, Any]]:
        """The temperature of the best model, and its metrics."""
        ...


class ClassScoring:
    """Accuracy; outputs are logits."""

    names = ("most frequent label", "TF-IDF + logistic regression", "frozen encoder + logistic regression",
             "fine-tuned encoder")  # fmt: skip
    metric = "accuracy"

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels, self.outputs = tuple(labels), len(labels)

    def strata(self, labels_R: Labels) -> Ints:
        return labels_R.astype(np.int64)

    def numbered(self, labels: Sequence[str]) -> Labels:
        number = {label: n for n, label in enumerate(self.labels)}
        return np.array([number[label] for label in labels])

    def baselines(self, texts: list[str], labels_R: Labels, others: list[str]) -> list[Floats]:
        return [self._frequencies(labels_R, len(others)), self._tfidf(texts, labels_R, others)]

    def _frequencies(self, labels_R: Labels, rows: int) -> Floats:
        """Log-frequencies of the labels, with one more row of each."""
        counts_C = np.bincount(labels_R.astype(np.int64), minlength=self.outputs) + 1
        return np.tile(np.log(counts_C / counts_C.sum()), (rows, 1))

    def _tfidf(self, texts: list[str], labels_R: Labels, others: list[str]) -> Floats:
        from sklearn.linear_model import LogisticRegression

        if len(np.unique(labels_R)) < 2:
            return self._frequencies(labels_R, len(others))
        vectors = _vectorizer(len(texts))
        model = LogisticRegression(C=10.0, max_iter=1000).fit(vectors.fit_transform(texts), labels_R)
        found_RC = np.full((len(others), self.outputs), np.log(1e-6))
        found_RC[:, model.classes_] = model.predict_log_proba(vectors.transform(others))
        return found_RC

    def rung(self, name: str, outputs_RC: Floats, labels_R: Labels, weights_R: Floats) -> Rung:
        right = int((outputs_RC.argmax(1) == labels_R).sum())
        classes_R = labels_R.astype(np.int64)
        temperature = calibration.fit_temperature(outputs_RC, classes_R, weights_R)
        loss = calibration.cross_entropy(outputs_RC, classes_R, temperature, weights_R)
        return Rung(name, right / len(labels_R), loss, metrics.wilson(right, len(labels_R)))

    def figures(self, outputs_RC: Floats, labels_R: Labels, weights_R: Floats) -> tuple[float, dict[str, Any]]:
        classes_R = labels_R.astype(np.int64)
        enough = len(classes_R) >= calibration.FEWEST_TO_CALIBRATE
        temperature = float(calibration.fit_temperature(outputs_RC, classes_R, weights_R)) if enough else 1.0
        probabilities_RC = calibration.softmax(outputs_RC / temperature)
        return temperature, metrics.classification_metrics(probabilities_RC, classes_R, self.labels).to_json()


class NumberScoring:
    """Pearson's correlation; the output is the number."""

    names = ("mean of the labels", "TF-IDF + ridge regression", "frozen encoder + ridge regression",
             "fine-tuned encoder")  # fmt: skip
    metric = "Pearson correlation"
    outputs = 1

    def __init__(self, labels: Sequence[str]) -> None:
        pass

    def strata(self, labels_R: Labels) -> Ints:
        edges = np.quantile(labels_R, np.linspace(0, 1, STRATA + 1)[1:-1])
        return np.searchsorted(edges, labels_R).astype(np.int64)

    def numbered(self, labels: Sequence[str]) -> Labels:
        return np.array([float(label) for label in labels])

    def baselines(self, texts: list[str], labels_R: Labels, others: list[str]) -> list[Floats]:
        from sklearn.linear_model import Ridge

        vectors = _vectorizer(len(texts))
        linear = Ridge(alpha=1.0).fit(vectors.fit_transform(texts), labels_R)
        mean_R = np.full(len(others), float(labels_R.mean()))
        return [mean_R[:, None], linear.predict(vectors.transform(others))[:, None]]

    def rung(self, name: str, outputs_RC: Floats, labels_R: Labels, weights_R: Floats) -> Rung:
        error, found = metrics.regression_metrics(outputs_RC[:, 0], labels_R)
        pearson = 0.0 if name == self.names[0] else found["pearson"]  # of the means of the folds it is an artefact
        return Rung(name, pearson, error, metrics.fisher_interval(pearson, len(labels_R)))

    def figures(self, outputs_RC: Floats, labels_R: Labels, weights_R: Floats) -> tuple[float, dict[str, Any]]:
        found = metrics.number_metrics(outputs_RC[:, 0], labels_R)
        return 1.0, {"rows": found.rows, "values": found.values}


def _vectorizer(rows: int) -> Any:
    """TF-IDF of words and pairs of words; with many rows, those that occur more than once."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    fewest = 2 if rows > 1000 else 1
    return TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=fewest, token_pattern=r"(?u)\w+|[^\w\s]")


MEASURED: dict[str, Callable[[Sequence[str]], Scoring]] = {
    "classification": ClassScoring, "regression": NumberScoring,
}  # fmt: skip
