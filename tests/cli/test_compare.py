"""`qkv compare` ranks runs only where their validation rows show a difference."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from qkv.cli.compare import _paired
from qkv.metrics import wilson
from tests.support.cli import check_ended, run_qkv, trained, write_table

RECIPE = """
task = "classify"
seed = 1
[data]
corpus = "colours.csv"
length = 12
[tokenizer]
vocab_size = 60
[model]
width = 16
heads = 2
layers = 1
feedforward = 16
positions = "rotary"
embedding_norm = true
pooler = "gelu"
[train]
epochs = 4
batch_tokens = 256
learning_rate = 5e-3
warmup = 5
[runtime]
threads = 1
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("colours"), random.Random(2)
    rows = [["text", "label"]]
    for number in range(1200):
        word = chance.choice(["rose", "sea"])
        rows.append([f"{number} the {word}", "red" if word == "rose" else "blue"])
    write_table(folder / "colours.csv", rows)
    write_table(folder / "half.csv", rows[:600])
    (folder / "my.toml").write_text(RECIPE)
    trained(folder, "good")
    trained(folder, "again")
    trained(folder, "untrained", "train.learning_rate=1e-9")
    trained(folder, "half", "data.corpus=half.csv")
    return folder


def test_a_difference_that_rows_show_is_called_one(place: Path) -> None:
    shown = run_qkv(place, "compare", "good", "untrained")
    assert shown.code == 0, shown.err
    rows = len(json.loads((place / "good/validation.json").read_text())["by_row"]["accuracy"])
    assert "  accuracy: lower (-0." in shown.out
    assert f"on the same {rows} validation rows)" in shown.out
    assert "  log loss: higher (+0." in shown.out
    low, high = wilson(rows, rows)
    assert f"accuracy 1.0000  {low:.4f} to {high:.4f}" in " ".join(shown.out.split(" ")).replace("   ", "  ")


def test_equal_models_have_no_difference(place: Path) -> None:
    shown = run_qkv(place, "compare", "good", "again")
    assert "accuracy: no difference shown (+0.0000, 95% interval +0.0000 to +0.0000" in shown.out
    assert "log loss: no difference shown" in shown.out


def test_other_rows_are_not_compared_one_by_one(place: Path) -> None:
    shown = run_qkv(place, "compare", "good", "half")
    assert "the validation rows are not the same, so losses are not comparable" in shown.out
    assert "accuracy: no difference shown, the intervals overlap" in shown.out
    apart = run_qkv(place, "compare", "half", "untrained")
    assert "accuracy: lower, and the intervals do not overlap" in apart.out


def test_without_metrics_by_row_nothing_is_shown(place: Path) -> None:
    file = place / "again/validation.json"
    whole = json.loads(file.read_text())
    file.write_text(json.dumps({**whole, "step": whole["step"] + 1}))  # of another model than the one that is kept
    shown = run_qkv(place, "compare", "good", "again")
    assert "no difference shown: there are no validation metrics by row of both" in shown.out
    file.write_text("[]")
    check_ended(run_qkv(place, "compare", "good", "again"), 2, "again/validation.json: is not what `qkv train` wrote")


def test_a_paired_verdict_by_hand() -> None:
    """The same rate of hits by chance on other rows, and one that is better wherever they differ."""
    first = np.array([1.0, 0.0] * 50)
    assert _paired("accuracy", first, 1 - first).startswith("accuracy: no difference shown (+0.0000")
    better = np.where(np.arange(100) % 10 == 1, 1.0, first)
    assert _paired("accuracy", first, better).startswith("accuracy: higher (+0.1000, 95% interval +0.0409 to +0.1591")
