"""What a model was compared with before it was trained: simpler models on the same rows. A file of the run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from qkv.metrics import ClassificationMetrics, TestMetrics, fisher_interval, metrics_from_json
from qkv.run.folder import COMPARISON
from qkv.schema import UserError


@dataclass(frozen=True)
class Rung:
    """One model of the ladder, from simple to large."""

    name: str
    score: float
    loss: float  # with the best temperature of its own, or the squared error
    interval: tuple[float, float]  # of the score, 95%


@dataclass(frozen=True)
class BaselineComparison:
    """Models on the same rows, the simplest first."""

    rungs: tuple[Rung, ...]
    rows: int
    metric: str  # what the score is: "accuracy", "Pearson correlation"
    how: str  # which rows: "5-fold cross-validation", "test set"
    figures: dict[str, Any] | None = None  # of a cross-validation: the metrics of the model that is trained

    def to_json(self) -> bytes:
        return (json.dumps(asdict(self), indent=1) + "\n").encode()

    def sentences(self) -> list[str]:
        """For the model card."""
        return [f"{one.name}: {self.metric} {one.score:.3f}" for one in self.rungs]

    def verdict(self, score: float, interval: tuple[float, float]) -> str:
        """One sentence: what a Transformer with this score is worth over the linear model, the second of the rungs."""
        linear = self.rungs[1]
        figures = (
            f"{self.metric} {score:.3f} against {linear.score:.3f} of {linear.name} ({self.how}, {self.rows:,} rows)"
        )
        if interval[0] > linear.score:
            return f"The Transformer is better than a linear model here: {figures}."
        if linear.interval[0] > score:
            return f"A linear model is better than the Transformer here: {figures}."
        return f"No clear difference between the Transformer and a linear model: {figures}."

    def verdict_on(self, found: TestMetrics) -> str | None:
        """The verdict on a model with these test metrics; None where there is no linear model to compare with."""
        whole = found["all"]
        if len(self.rungs) < 2:
            return None
        if isinstance(whole, ClassificationMetrics):
            return self.verdict(whole.accuracy, whole.interval)
        return self.verdict(whole.values["pearson"], fisher_interval(whole.values["pearson"], whole.rows))

    def test_metrics(self) -> TestMetrics | None:
        """The metrics of the cross-validation, if there was one."""
        return None if self.figures is None else metrics_from_json(self.figures)


def read_comparison(folder: Path) -> BaselineComparison | None:
    """The comparison of a run; None where there is none."""
    file = folder / COMPARISON
    if not file.is_file():
        return None
    try:
        table = json.loads(file.read_bytes())
        rungs = tuple(Rung(**{**one, "interval": tuple(one["interval"])}) for one in table["rungs"])
        known = {one.name: table[one.name] for one in fields(BaselineComparison) if one.name != "rungs"}
        return BaselineComparison(rungs, **known)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file}: not the comparison of a run: {str(error)[:200]}; delete it") from None
