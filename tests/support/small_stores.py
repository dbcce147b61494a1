"""Stores and datasets made by hand from token ids."""

from __future__ import annotations

import numpy as np

from qkv.data.sampler import BatchSampler
from qkv.data.store import Store
from qkv.data.truncation import Examples
from qkv.tasks.texts import TextDataset, TokenDropout
from qkv.tokenizer.tokenizer import Template


def store_of(firsts: list[list[int]], seconds: list[list[int]] | None = None, labels: list[int] | None = None) -> Store:
    others = seconds if seconds is not None else [[] for _ in firsts]
    flat = [number for first, second in zip(firsts, others, strict=True) for number in first + second]
    ends = np.cumsum([len(first) + len(second) for first, second in zip(firsts, others, strict=True)])
    starts = np.concatenate([[0], ends]).astype(np.int64)
    middles = starts[:-1] + np.array([len(first) for first in firsts], np.int64)
    numbers = np.array([0] * len(firsts) if labels is None else labels, np.int32)
    return Store(np.array(flat, np.uint32), starts, middles, numbers, pairs=seconds is not None)


def dataset_of(
    store: Store,
    examples: Examples,
    template: Template,
    *,
    pad: int = 0,
    dropout: TokenDropout | None = None,
    weights: list[float] | None = None,
) -> TextDataset:
    """Labelled texts for `collate`; `weights` of the rows are 1 unless given."""
    return TextDataset(
        store=store,
        labels_R=store.labels_R.astype(np.int64),
        weights_R=np.array([1.0] * len(store) if weights is None else weights, np.float32),
        examples=examples,
        sampler=BatchSampler(examples.lengths(template), 1000, seed=1),
        template=template,
        pad=pad,
        dropout=dropout,
    )
