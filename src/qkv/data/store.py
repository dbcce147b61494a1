"""Rows tokenised once, as arrays on the disk that are memory-mapped, not read: a corpus may be larger than memory, and
several processes share one copy.

A row of a store is a text or a pair with its label, a whole document, or a sentence, whose label is then the number of
its document.
"""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from qkv.corpus.files import Row
from qkv.corpus.sentences import splitter
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Tokenizer

Ints = NDArray[np.int64]
CHUNK = 1000  # rows tokenised at a time, on all cores


@dataclass(frozen=True)
class Store:
    """One split of a corpus: texts one after the other, without special tokens; pairs as first text, second text."""

    tokens: NDArray[np.uint32]
    starts_R: Ints  # one more than there are rows
    middles_R: Ints  # where the second text of a pair begins
    labels_R: NDArray[np.int32] | NDArray[np.float32]  # class ids, or numbers
    pairs: bool

    def __len__(self) -> int:
        return len(self.labels_R)

    def bounds(self) -> tuple[Ints, Ints, Ints]:
        """Of each row: where its first text begins, where its second begins (the end without pairs), where it ends."""
        return self.starts_R[:-1], self.middles_R if self.pairs else self.starts_R[1:], self.starts_R[1:]

    def slice(self, span: Sequence[int]) -> Ints:
        """The tokens from span[0] to span[1]."""
        return self.tokens[span[0] : span[1]].astype(np.int64)

    def take(self, rows: Ints) -> Store:
        """Some rows, in their order."""
        if len(rows) == len(self):
            return self
        start, middle, end = self.bounds()
        starts = np.concatenate([[0], np.cumsum((end - start)[rows])])
        tokens = np.concatenate([self.tokens[a:z] for a, z in zip(start[rows], end[rows], strict=True)])
        middles = starts[:-1] + (middle - start)[rows] if self.pairs else self.middles_R
        return Store(tokens, starts, middles, self.labels_R[rows], self.pairs)


class Writer:
    """Writes one split of a corpus, row by row, without keeping it in memory."""

    def __init__(self, folder: Path, name: str, *, pairs: bool, numbers: bool = False) -> None:
        self._files: dict[str, BinaryIO] = {}
        self._label_type = np.float32 if numbers else np.int32
        self.pairs, self._end, self.rows = pairs, 0, 0
        for kind in ("tokens", "starts", "labels", *(("middles",) if pairs else ())):
            self._files[kind] = (folder / f"{name}.{kind}").open("wb")
        self._put("starts", [0], np.int64)

    def add(self, texts: Sequence[Sequence[int]], seconds: Sequence[Sequence[int]], labels: Sequence[float]) -> None:
        """Some rows: ids of each text, of each second text (none without pairs), and class ids or numbers."""
        starts, middles, flat = [], [], list[int]()
        for number, text in enumerate(texts):
            flat += text
            middles.append(self._end + len(flat))
            if self.pairs:
                flat += seconds[number]
            starts.append(self._end + len(flat))
        self._end += len(flat)
        self.rows += len(texts)
        self._put("tokens", flat, np.uint32)
        self._put("starts", starts, np.int64)
        self._put("labels", labels, self._label_type)
        if self.pairs:
            self._put("middles", middles, np.int64)

    def _put(self, kind: str, values: Sequence[float], dtype: Any) -> None:
        self._files[kind].write(np.array(values, dtype).tobytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for file in self._files.values():
            file.close()


def write_rows(
    rows: Iterable[Row], tokenizer: Tokenizer, target: Tokenizer | None, label: Callable[[Row], float], writer: Writer
) -> None:
    """Tokenise rows, in their order. `target` is the tokenizer of second texts, where they have their own."""
    remaining = iter(rows)
    while chunk := list(itertools.islice(remaining, CHUNK)):
        texts = tokenizer.ids([row.text for row in chunk])
        seconds = (target or tokenizer).ids([row.pair or "" for row in chunk]) if writer.pairs else []
        writer.add(texts, seconds, [label(row) for row in chunk])


def write_sentences(rows: Iterable[Row], tokenizer: Tokenizer, sentences: str, writer: Writer) -> None:
    """Tokenise documents, a row for each sentence, numbered by its document. A space stays before all but the first
    sentence: to some tokenizers a word after a space is another token."""
    split = splitter(sentences)
    numbered = (
        (number, sentence if first == 0 else f" {sentence}")
        for number, row in enumerate(row for row in rows if row.text.strip())
        for first, sentence in enumerate(split(row.text))
        if sentence.strip()
    )
    while chunk := list(itertools.islice(numbered, 10 * CHUNK)):
        writer.add(tokenizer.ids([sentence for _, sentence in chunk]), [], [number for number, _ in chunk])


def temporary_store(write: Callable[[Writer], None]) -> Store:
    """A store in memory, without pairs."""
    with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
        with Writer(Path(folder), "rows", pairs=False) as writer:
            write(writer)
        store = open_store(Path(folder), "rows", pairs=False)
        copies = {name: getattr(store, name).copy() for name in ("tokens", "starts_R", "middles_R", "labels_R")}
        return replace(store, **copies)


def open_store(folder: Path, name: str, *, pairs: bool, numbers: bool = False) -> Store:
    """One split of a corpus, memory-mapped."""
    arrays: dict[str, Any] = {}
    labels = np.float32 if numbers else np.int32
    for kind, dtype in {"tokens": np.uint32, "starts": np.int64, "labels": labels, "middles": np.int64}.items():
        file = folder / f"{name}.{kind}"
        if (kind == "middles" and not pairs) or file.stat().st_size == 0:
            arrays[kind] = np.zeros(0, dtype)
        else:
            arrays[kind] = np.memmap(file, dtype, mode="r")
    return Store(arrays["tokens"], arrays["starts"], arrays["middles"], arrays["labels"], pairs)


def read_facts(folder: Path) -> dict[str, Any]:
    """What was recorded when the stores of a folder were made."""
    try:
        return json.loads((folder / "facts.json").read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / 'facts.json'}: cannot be read: {error}; delete {folder} to rebuild it") from None
