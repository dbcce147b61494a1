"""One part of the data in the form the loop asks for it: batch number in, Batch out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qkv.config import Recipe
from qkv.data.batch import Batch
from qkv.data.examples import Examples, Hide, collate, cut_to, windows_of
from qkv.data.sampler import Sampler
from qkv.data.store import Store
from qkv.schema import UserError
from qkv.text.tokenizer import Frame, Tokenizer


@dataclass(frozen=True)
class Material:
    """Rows, the examples made of them, and the sampler that orders them."""

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

    @property
    def classes(self) -> int:
        return len(self.weights_C)

    def collate(self, numbers_B: NDArray[np.int64], hide: Hide | None = None) -> Batch:
        return collate(
            self.store, self.examples, numbers_B, self.frame, pad=self.pad, weights_C=self.weights_C, hide=hide
        )

    def step(self, number: int) -> tuple[int, list[Batch]]:
        """The epoch of step `number` (from 0) and its batch, in micro-batches. A function of the number alone."""
        epoch, numbers_B = self.sampler.batch(number)
        hide = None
        if self.hide_tokens and self.mask is not None:
            hide = Hide(self.hide_tokens, self.mask, self.seed, epoch)
        pieces = np.array_split(numbers_B, self.micro_batches)
        return epoch, [self.collate(piece, hide) for piece in pieces if len(piece)]


def build_material(recipe: Recipe, store: Store, tokenizer: Tokenizer, classes: int) -> Material:
    """Cut or window the rows of a store as a recipe says, and order them."""
    frame = tokenizer.frame(pair=store.pairs)
    room = recipe.data.length - len(frame.before) - len(frame.between) - len(frame.after)
    if room < 1:
        raise UserError(f"data.length = {recipe.data.length}: leaves no room for text beside the special tokens")
    examples = windows_of(store, room) if recipe.data.long == "windows" else cut_to(store, room)
    mask = tokenizer.unknown if tokenizer.mask is None else tokenizer.id_of(tokenizer.mask)
    if recipe.train.hide_tokens and mask is None:
        raise UserError("train.hide_tokens needs a tokenizer with a mask token; this one has none; accepted: 0")
    return Material(
        store=store,
        examples=examples,
        sampler=Sampler(examples.lengths(frame), recipe.train.batch_tokens, recipe.seed),
        frame=frame,
        pad=tokenizer.pad,
        mask=mask,
        weights_C=_weights(store.labels_R[examples.rows_N], classes, recipe.data.balance),
        seed=recipe.seed,
        hide_tokens=recipe.train.hide_tokens,
        micro_batches=recipe.train.micro_batches,
    )


def _weights(labels_N: NDArray[np.int32], classes: int, balance: str) -> NDArray[np.float32]:
    """How much an example of each label counts: alike, or so that every label counts alike in all. Examples, not rows:
    a long row may be read in many windows."""
    if balance == "none":
        return np.ones(classes, np.float32)
    counts_C = np.bincount(labels_N, minlength=classes)
    return (len(labels_N) / (classes * np.maximum(counts_C, 1))).astype(np.float32)
