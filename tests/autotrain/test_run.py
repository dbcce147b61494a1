"""Training from tables in memory."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import qkv
from qkv.autotrain.frames import rows_of
from qkv.schema import UserError

SETTINGS = ["train.steps=2", "runtime.threads=1", "init=bundled-encoder"]
TEXTS = [f"{word} {n}" for n in range(15) for word in ("good fine great film", "bad poor awful film")]
LABELS = ["yes", "no"] * 15


class Frame:
    """What pandas gives: columns, and rows with NaN where a cell is missing."""

    columns = ("text", "label")

    def to_dict(self, how: str) -> list[dict[str, Any]]:
        assert how == "records"
        return [
            {"text": text, "label": label}
            for text, label in zip([*TEXTS, "left out"], [*LABELS, math.nan], strict=True)
        ]


@pytest.mark.parametrize("table", [(TEXTS, LABELS), Frame()])
def test_lists_and_frames_are_trained(tmp_path: Path, table: Any) -> None:
    said = list[str]()
    model = qkv.train(table, tmp_path / "run", settings=SETTINGS, say=said.append)
    assert [one.label for one in model.predict(["good great film", "awful poor film"])] == ["yes", "no"]
    assert any("30 rows; text 'text', label 'label' (2 labels): classify" in sentence for sentence in said)
    again = qkv.train(table, tmp_path / "run")
    assert again.labels == ("no", "yes")


def test_a_run_belongs_to_its_rows(tmp_path: Path) -> None:
    qkv.train((TEXTS, LABELS), tmp_path / "run", settings=SETTINGS)
    with pytest.raises(UserError, match="was begun with other texts or labels"):
        qkv.train((TEXTS[1:], LABELS[1:]), tmp_path / "run")


def test_missing_cells_and_whole_numbers() -> None:
    rows = rows_of(([1.0, math.nan, "a"], [None, 2.5, True]))
    assert [list(row.values()) for row in rows] == [[1, None], [None, 2.5], ["a", True]]
    with pytest.raises(UserError, match="3 texts and 2 labels"):
        rows_of((["a", "b", "c"], [1, 2]))
    with pytest.raises(UserError, match="cannot train on int; accepted: a file"):
        rows_of(3)
