"""What `qkv demo` says about its model beside a linear one, with numbers made by hand."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import qkv
from qkv.autotrain.ladder import _on_test_rows
from qkv.autotrain.scoring import ClassScoring
from qkv.cli.demo import SHARED_FILMS, linear_by_group, show_linear
from qkv.config.recipe import Recipe
from qkv.metrics import ClassificationMetrics, classification_metrics
from tests.support.cli import write_table

TRUTH_R = np.array([0, 1] * 50)
GROUPS = {"all": np.arange(100), "imdb": np.arange(60), "sentences": np.arange(60, 100)}


def logits(right: int) -> np.ndarray:
    """Logits that are right for the first so many rows."""
    predicted_R = np.where(np.arange(100) < right, TRUTH_R, 1 - TRUTH_R)
    return 2.0 * np.eye(2)[predicted_R]


def model(right: int) -> dict[str, ClassificationMetrics]:
    probabilities_RC = np.exp(logits(right)) / np.exp(logits(right)).sum(1, keepdims=True)
    return {
        group: classification_metrics(probabilities_RC[own], TRUTH_R[own], ("no", "yes"))
        for group, own in GROUPS.items()
    }


@pytest.mark.parametrize(
    ("ours", "linear", "said"),
    [
        (95, 70, "The Transformer is better than a linear model here: accuracy 0.950 against 0.700"),
        (70, 95, "A linear model is better than the Transformer here: accuracy 0.700 against 0.950"),
        (90, 91, "No clear difference"),
    ],
)
def test_the_demo_says_which_model_is_better(ours: int, linear: int, said: str) -> None:
    scoring, named = ClassScoring(("no", "yes")), {"most frequent label": logits(50), "TF-IDF": logits(linear)}
    compared = {group: _on_test_rows(scoring, named, TRUTH_R, own) for group, own in GROUPS.items()}
    shown = io.StringIO()
    show_linear(Console(file=shown, width=100), model(ours), compared)
    assert said in shown.getvalue()
    assert SHARED_FILMS in shown.getvalue()
    sentences = next(line.split() for line in shown.getvalue().splitlines() if "sentences " in line)
    assert sentences == ["sentences", "40", f"{(ours - 60) / 40:.4f}", f"{(linear - 60) / 40:.4f}"]


def test_a_finished_run_is_compared_by_group(tmp_path: Path) -> None:
    rows = [[f"{word} film {n}", word, ("long", "short")[n % 2]] for n in range(100) for word in ("good", "dull")]
    write_table(tmp_path / "table.csv", [["text", "label", "source"], *rows])
    data = {"corpus": str(tmp_path / "table.csv"), "group": "source", "length": 16}
    settings = {"steps": 1, "batch_tokens": 64, "warmup": 0}
    recipe = {"init": "bundled-encoder", "data": data, "train": settings, "runtime": {"threads": 1}}
    qkv.train(Recipe.read(recipe), tmp_path / "run")
    compared, found = linear_by_group(tmp_path / "run"), qkv.evaluate(tmp_path / "run")
    assert {group: one.rows for group, one in compared.items()} == {group: one.rows for group, one in found.items()}
    assert set(compared) == {"all", "long", "short"}
    assert compared["all"].rungs[1].score == 1.0
