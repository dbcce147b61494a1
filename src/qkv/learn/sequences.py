"""Material of the tasks in which every next word is guessed: running text to complete, and pairs to translate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from qkv.config import Recipe
from qkv.data.batch import NextBatch
from qkv.data.sampler import Sampler
from qkv.data.store import Store
from qkv.data.translations import Translations
from qkv.data.windows import Windows, as_one, each_once
from qkv.learn.material import evenly
from qkv.schema import UserError
from qkv.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Running:
    """Running text to be completed: windows of documents."""

    windows: Windows
    sampler: Sampler
    micro_batches: int
    batch_tokens: int
    eval_tokens: int
    text_bytes: int  # of the documents; 0: not known

    @property
    def cut(self) -> int:
        return 0

    def __len__(self) -> int:
        return int(np.count_nonzero(self.windows.counts_R))

    def step(self, number: int) -> tuple[int, list[NextBatch]]:
        epoch, numbers_B = self.sampler.batch(number)
        begins_N = self.windows.begins(epoch)
        pieces = np.array_split(numbers_B, self.micro_batches)
        return epoch, [self.windows.collate(piece, begins_N) for piece in pieces if len(piece)]

    def judged(self) -> Iterator[NextBatch]:
        """Every word once, or an even choice of about `eval_tokens`."""
        windows, begins_N = each_once(self.windows)
        sizes_N = np.minimum(windows.sizes_R[windows.documents_N] - begins_N, windows.room)
        batches = Sampler(sizes_N, self.batch_tokens, 0).in_order()
        return (windows.collate(batch, begins_N) for batch in evenly(batches, int(sizes_N.sum()), self.eval_tokens))


@dataclass(frozen=True)
class Pairs:
    """Sources with their translations."""

    translations: Translations
    sampler: Sampler
    micro_batches: int
    eval_tokens: int

    @property
    def cut(self) -> int:
        return self.translations.too_long

    def __len__(self) -> int:
        return len(self.translations.rows_N)

    def step(self, number: int) -> tuple[int, list[NextBatch]]:
        epoch, numbers_B = self.sampler.batch(number)
        pieces = np.array_split(numbers_B, self.micro_batches)
        return epoch, [self.translations.collate(piece) for piece in pieces if len(piece)]

    def judged(self) -> Iterator[NextBatch]:
        """Every pair once, or an even choice of about `eval_tokens`."""
        tokens = int(self.translations.lengths().sum())
        return (self.translations.collate(one) for one in evenly(self.sampler.in_order(), tokens, self.eval_tokens))


def build_running(recipe: Recipe, store: Store, tokenizer: Tokenizer, text_bytes: int = 0) -> Running:
    """Windows over the documents of a store, as a recipe says, and their order."""
    before, end = tokenizer.frame(pair=False).before, tokenizer.end
    if len(before) > 1:
        raise UserError(f"task = 'complete': this tokenizer puts {len(before)} tokens before a text; accepted: 0 or 1")
    first = before[0] if before else None
    store = as_one(store, end) if recipe.data.across else store
    windows = Windows.of(store, recipe.data.length, before=first, end=end, pad=tokenizer.pad, seed=recipe.seed)
    train = recipe.train
    sampler = Sampler(windows.lengths(), train.batch_tokens, recipe.seed)
    return Running(windows, sampler, train.micro_batches, train.batch_tokens, train.eval_tokens, text_bytes)


def build_pairs(recipe: Recipe, store: Store, tokenizer: Tokenizer, target: Tokenizer | None) -> Pairs:
    """Sources and translations of a store that fit, and their order. A translation begins with the padding token, as
    Marian's do."""
    second = target or tokenizer
    end = second.end
    if end is None:
        raise UserError("task = 'translate' needs a tokenizer with a token for the end; this one has none")
    frame, pads = tokenizer.frame(pair=False), {"pad": tokenizer.pad, "target_pad": second.pad}
    translations = Translations.of(store, recipe.data.length, frame, start=second.pad, end=end, **pads)
    sampler = Sampler(translations.lengths(), recipe.train.batch_tokens, recipe.seed)
    return Pairs(translations, sampler, recipe.train.micro_batches, recipe.train.eval_tokens)
