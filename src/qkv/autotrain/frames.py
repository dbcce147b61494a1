"""Tables in memory: a DataFrame of pandas or polars, or a list of texts and a list of labels. Training reads files, so
that a run can resume: the rows are written beside the run, once."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qkv import disk
from qkv.schema import UserError


def rows_of(table: Any) -> list[dict[str, Any]]:
    """The rows of a DataFrame, or of (texts, labels)."""
    if isinstance(table, tuple) and len(table) == 2:
        texts, labels = (list(part) for part in table)
        if len(texts) != len(labels):
            raise UserError(f"{len(texts):,} texts and {len(labels):,} labels; must be equally many")
        rows: Iterable[Mapping[str, Any]] = [{"text": a, "label": b} for a, b in zip(texts, labels, strict=True)]
    elif hasattr(table, "to_dicts"):  # polars
        rows = table.to_dicts()
    elif hasattr(table, "to_dict") and hasattr(table, "columns"):  # pandas
        rows = table.to_dict("records")
    else:
        accepted = "a file, a recipe, a DataFrame of pandas or polars, or (texts, labels)"
        raise UserError(f"cannot train on {type(table).__name__}; accepted: {accepted}")
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    """A cell as JSON holds it; None where it is missing."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("NaT", "<NA>"):
        return None
    if isinstance(value, float) and value.is_integer():
        return int(value)  # a column of whole numbers with a gap is one of floats
    return value if isinstance(value, str | int | float) else str(value)


def write_rows(file: Path, rows: Sequence[Mapping[str, Any]], output: Path) -> None:
    """Rows as JSON lines. Those of another training are not overwritten: a run belongs to its data."""
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            disk.replace_file(file, content)
        elif file.read_bytes() != content:
            raise UserError(
                f"output: {output} was begun with other texts or labels; choose another folder, or delete it"
            )
    except OSError as error:
        raise UserError(f"output: {file} cannot be written: {error.strerror}; choose another folder") from None
