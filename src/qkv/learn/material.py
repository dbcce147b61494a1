"""One part of the data in the form the loop asks for it: batch number in, Batch out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.config import Recipe
from qkv.data.batch import Batch, LabelBatch, WordBatch
from qkv.data.examples import Examples, Hide, collate, cut_to, ends_of, windows_of
from qkv.data.masking import Masking
from qkv.data.passages import Strangers, passages_of
from qkv.data.sampler import Sampler
from qkv.data.store import Store
from qkv.data.words import Words
from qkv.schema import UserError
from qkv.streams import permutation, stream
from qkv.text.tokenizer import Frame, Tokenizer

JUDGED = 2**63  # the "epoch" of an evaluation: the same words are hidden each time, and never those of a training epoch


class Material(Protocol):
    """What the loop needs of the data of any task."""

    @property
    def sampler(self) -> Sampler: ...
    @property
    def cut(self) -> int:
        """Texts that did not fit in one piece."""
        ...

    def step(self, number: int) -> tuple[int, Sequence[Batch]]:
        """The epoch of step `number` (from 0) and its batch, in micro-batches. A function of the number alone."""
        ...

    def __len__(self) -> int:
        """Rows, or documents."""
        ...


@dataclass(frozen=True)
class Standard:
    """Grades are learnt with mean 0 and variance 1; the last layer is changed back before it is written."""

    mean: float
    deviation: float

    @staticmethod
    def of(labels_R: NDArray[np.generic], *, centred: bool) -> Standard:
        grades = labels_R.astype(np.float64)
        return Standard(float(grades.mean()) if centred else 0.0, float(grades.std()) or 1.0)


@dataclass(frozen=True)
class Texts:
    """Labelled rows, the examples made of them, and the sampler that orders them."""

    store: Store
    examples: Examples
    sampler: Sampler
    frame: Frame
    pad: int
    mask: int | None
    weights_C: NDArray[np.float32]
    seed: int
    hide_tokens: float
    micro_batches: int
    standard: Standard | None  # None: labels are classes

    @property
    def classes(self) -> int:
        return len(self.weights_C)

    @property
    def cut(self) -> int:
        return self.examples.cut

    def __len__(self) -> int:
        return len(self.store)

    def collate(self, numbers_B: NDArray[np.int64], hide: Hide | None = None) -> LabelBatch:
        batch = collate(
            self.store, self.examples, numbers_B, self.frame, pad=self.pad, weights_C=self.weights_C, hide=hide
        )
        if self.standard is None:
            return batch
        grades_B = (batch.labels_B.double() - self.standard.mean) / self.standard.deviation
        return replace(batch, labels_B=grades_B.to(torch.float32))

    def step(self, number: int) -> tuple[int, list[LabelBatch]]:
        epoch, numbers_B = self.sampler.batch(number)
        hide = None
        if self.hide_tokens and self.mask is not None:
            hide = Hide(self.hide_tokens, self.mask, self.seed, epoch)
        pieces = np.array_split(numbers_B, self.micro_batches)
        return epoch, [self.collate(piece, hide) for piece in pieces if len(piece)]


@dataclass(frozen=True)
class Documents:
    """Documents without labels: words to be guessed, pairs to be judged."""

    words: Words
    sampler: Sampler
    micro_batches: int
    eval_tokens: int

    @property
    def cut(self) -> int:
        return 0

    def __len__(self) -> int:
        return len(np.unique(self.words.examples.rows_N))

    @property
    def pairs(self) -> tuple[int, int]:
        """Passages that have a next text and a stranger of its length, and all passages."""
        strangers = self.words.strangers
        able = (strangers.count_N > strangers.kin_N) & (np.diff(self.words.examples.b_N2)[:, 0] > 0)
        return int(np.count_nonzero(able)), len(able)

    def step(self, number: int) -> tuple[int, list[WordBatch]]:
        epoch, numbers_B = self.sampler.batch(number)
        pieces = np.array_split(numbers_B, self.micro_batches)
        return epoch, [self.words.collate(piece, epoch) for piece in pieces if len(piece)]

    def judged(self) -> list[NDArray[np.int64]]:
        """The examples of an evaluation, in batches of like length: all, or an even choice of `eval_tokens`."""
        return evenly(self.sampler.in_order(), int(self.words.lengths().sum()), self.eval_tokens)


def evenly(batches: list[NDArray[np.int64]], tokens: int, wanted: int) -> list[NDArray[np.int64]]:
    """Some of these batches, which have so many tokens in all: about as many as `wanted`, evenly chosen; 0: all."""
    share = wanted / max(1, tokens)
    if wanted == 0 or share >= 1:
        return batches
    chosen = np.unique(np.floor(np.arange(0.5, len(batches), max(1.0, 1 / share))).astype(int))
    return [batches[number] for number in chosen]


def build_texts(recipe: Recipe, store: Store, tokenizer: Tokenizer, classes: int, standard: Standard | None) -> Texts:
    """Cut or window the rows of a store as a recipe says, and order them."""
    frame = tokenizer.frame(pair=store.pairs)
    room = recipe.data.length - len(frame.before) - len(frame.between) - len(frame.after)
    if room < 1:
        raise UserError(f"data.length = {recipe.data.length}: leaves no room for text beside the special tokens")
    examples = {"cut": cut_to, "ends": ends_of, "windows": windows_of}[recipe.data.long](store, room)
    mask = tokenizer.unknown if tokenizer.mask is None else tokenizer.id_of(tokenizer.mask)
    if recipe.train.hide_tokens and mask is None:
        raise UserError("train.hide_tokens needs a tokenizer with a mask token; this one has none; accepted: 0")
    weights_C = np.ones(1, np.float32)
    if standard is None:
        weights_C = _weights(store.labels_R[examples.rows_N], classes, recipe.data.balance)
    return Texts(
        store=store,
        examples=examples,
        sampler=Sampler(examples.lengths(frame), recipe.train.batch_tokens, recipe.seed),
        frame=frame,
        pad=tokenizer.pad,
        mask=mask,
        weights_C=weights_C,
        seed=recipe.seed,
        hide_tokens=recipe.train.hide_tokens,
        micro_batches=recipe.train.micro_batches,
        standard=standard,
    )


def drawn(count: int, rows: int, seed: int) -> NDArray[np.int64]:
    """Which of `count` rows are learnt from: so many, drawn by the seed, in their order; 0: all."""
    if rows == 0 or rows >= count:
        return np.arange(count)
    return np.sort(permutation(stream(seed, "order", 0, 2), count)[:rows])


def some_rows(store: Store, chosen: NDArray[np.int64]) -> Store:
    """Some rows of a store, in their order."""
    if len(chosen) == len(store):
        return store
    start, middle, end = store.bounds()
    lengths = (end - start)[chosen]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    tokens = np.concatenate([store.tokens[a:z] for a, z in zip(start[chosen], end[chosen], strict=True)])
    middles = starts[:-1] + (middle - start)[chosen] if store.pairs else store.middles_R
    return Store(tokens, starts, middles, store.labels_R[chosen], store.pairs)


def build_documents(recipe: Recipe, store: Store, tokenizer: Tokenizer) -> Documents:
    """Passages of the documents in a store, as a recipe says, and their order."""
    train = recipe.train
    single, pair = tokenizer.frame(pair=False), tokenizer.frame(pair=True)
    frame = pair if train.next_sentence else single
    room = recipe.data.length - len(frame.before) - len(frame.between) - len(frame.after)
    if room < 2:
        raise UserError(f"data.length = {recipe.data.length}: leaves no room for text beside the special tokens")
    if tokenizer.mask is None:
        raise UserError("task = 'fill' needs a tokenizer with a mask token; this one has none")
    inside = np.array(tokenizer.inside_words()) if train.whole_words else None
    special = np.array(tokenizer.specials())
    mask = tokenizer.id_of(tokenizer.mask)
    assert mask is not None, "it has one"
    examples = passages_of(store, room, pairs=train.next_sentence, seed=recipe.seed)
    words = Words(
        store=store,
        examples=examples,
        strangers=Strangers.of(store, examples, recipe.seed),
        masking=Masking(train.mask_words, mask, special, inside, recipe.seed),
        single=single,
        pair=pair,
        pad=tokenizer.pad,
    )
    sampler = Sampler(words.lengths(), train.batch_tokens, recipe.seed)
    return Documents(words, sampler, train.micro_batches, train.eval_tokens)


def _weights(labels_N: NDArray[np.generic], classes: int, balance: str) -> NDArray[np.float32]:
    """How much an example of each label counts: alike, or so that every label counts alike in all. Examples, not rows:
    a long row may be read in many windows."""
    if balance == "none":
        return np.ones(classes, np.float32)
    counts_C = np.bincount(labels_N, minlength=classes)
    return (len(labels_N) / (classes * np.maximum(counts_C, 1))).astype(np.float32)
