"""Rows tokenised once, as arrays on the disk that are mapped, not read: a corpus may be larger than memory, and several
processes share one copy.

A store is a folder under a name that is a hash of all that went into it (texts, columns, tokenizer), so a stale one is
never met. It appears complete or not at all, and its manifest is checked whenever it is opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from qkv.schema import UserError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Store:
    """One part of a corpus: texts one after the other, without special tokens; of a pair the first, then the second."""

    tokens: NDArray[np.uint32]
    starts_R: Ints  # one more than there are rows
    middles_R: Ints  # where the second text of a pair begins
    labels_R: NDArray[np.int32] | NDArray[np.float32]  # numbers of labels, or grades
    pairs: bool

    def __len__(self) -> int:
        return len(self.labels_R)

    def bounds(self) -> tuple[Ints, Ints, Ints]:
        """Of each row: where its first text begins, where its second begins (the end without pairs), where it ends."""
        return self.starts_R[:-1], self.middles_R if self.pairs else self.starts_R[1:], self.starts_R[1:]


class Writer:
    """Writes one part of a corpus, row after row, without keeping it in memory."""

    def __init__(self, folder: Path, name: str, *, pairs: bool, grades: bool = False) -> None:
        self._files: dict[str, BinaryIO] = {}
        self._label_type = np.float32 if grades else np.int32
        self._pairs, self._end, self.rows = pairs, 0, 0
        for kind in ("tokens", "starts", "labels", *(("middles",) if pairs else ())):
            self._files[kind] = (folder / f"{name}.{kind}").open("wb")
        self._put("starts", [0], np.int64)

    def add(self, texts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]], labels: Sequence[float]) -> None:
        """Some rows: ids of each text, of each second text (none without pairs), and numbers of labels or grades."""
        starts, middles, flat = [], [], list[int]()
        for number, text in enumerate(texts):
            flat += text
            middles.append(self._end + len(flat))
            if self._pairs:
                flat += seconds[number]
            starts.append(self._end + len(flat))
        self._end += len(flat)
        self.rows += len(texts)
        self._put("tokens", flat, np.uint32)
        self._put("starts", starts, np.int64)
        self._put("labels", labels, self._label_type)
        if self._pairs:
            self._put("middles", middles, np.int64)

    def _put(self, kind: str, values: Sequence[float], dtype: Any) -> None:
        self._files[kind].write(np.array(values, dtype).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()


def open_store(folder: Path, name: str, *, pairs: bool, grades: bool = False) -> Store:
    """One part of a corpus, mapped."""
    arrays: dict[str, Any] = {}
    labels = np.float32 if grades else np.int32
    for kind, dtype in {"tokens": np.uint32, "starts": np.int64, "labels": labels, "middles": np.int64}.items():
        file = folder / f"{name}.{kind}"
        if (kind == "middles" and not pairs) or file.stat().st_size == 0:
            arrays[kind] = np.zeros(0, dtype)
        else:
            arrays[kind] = np.memmap(file, dtype, mode="r")
    return Store(arrays["tokens"], arrays["starts"], arrays["middles"], arrays["labels"], pairs)


def read_facts(folder: Path) -> dict[str, Any]:
    """What was noted when a store was made."""
    try:
        return json.loads((folder / "facts.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'facts.json'}: cannot be read: {error}; delete {folder} to make it anew") from None
