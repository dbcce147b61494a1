"""Language modelling: every token of a document is predicted from those before it, in windows.

A window begins with what the tokenizer puts before a text, so that the model knows a beginning everywhere; where it
puts nothing, with the token before it. Only the last window of a document has its end token. A document that fits is
one window. The windows of a longer one begin elsewhere in each epoch, and together always cover all of it.

N windows · B windows of a batch · R documents
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from qkv.config.recipe import Recipe
from qkv.corpus.corpus import RowFormat
from qkv.data.batch import Ints, Padded
from qkv.data.prepare import Prepared
from qkv.data.sampler import BatchSampler, evenly
from qkv.data.store import Store, temporary_store, write_rows
from qkv.metrics import Metrics, ValidationMetric, per_hundred
from qkv.model.transformer import Model
from qkv.predict.predictor import Predictor
from qkv.schema import Say, UserError
from qkv.streams import stream
from qkv.tasks.next_token import NextTokenBatch, end_ids, evaluate, loss
from qkv.tasks.task import EVALUATION, Labelled, Task, Validation, evaluation_recipe, training_rows
from qkv.tokenizer.tokenizer import Tokenizer

ALL = slice(None)
MANY = 16  # windows from which on a document gets one more, so that all of them can begin anywhere


@dataclass(frozen=True)
class Windows:
    """Where each window lies among the tokens to predict of its document, its end token included."""

    store: Store
    room: int  # tokens to predict in one window, at most
    before: int | None  # id that every window begins with
    end: int | None  # id that ends a document
    pad: int
    seed: int
    documents_N: Ints  # which document
    numbers_N: Ints  # which window of it
    counts_R: Ints  # windows of each document
    sizes_R: Ints  # tokens to predict of each document
    last_shifts: dict[int, Ints] = field(default_factory=dict, repr=False, compare=False)  # by epoch

    @staticmethod
    def of(store: Store, room: int, *, before: int | None, end: int | None, pad: int, seed: int) -> Windows:
        sizes_R = np.diff(store.starts_R) + (end is not None) - (before is None)
        counts_R = -(-np.maximum(sizes_R, 0) // room)
        return Windows(store, room, before, end, pad, seed, *_numbered(counts_R + (counts_R >= MANY)), sizes_R)

    def each_once(self) -> Windows:
        """Windows in which every token is predicted exactly once, for evaluation."""
        documents_N, numbers_N, counts_R = _numbered(-(-np.maximum(self.sizes_R, 0) // self.room))
        return replace(self, documents_N=documents_N, numbers_N=numbers_N, counts_R=counts_R, last_shifts={})

    def lengths(self) -> Ints:
        """Tokens to predict in each window: the same in every epoch."""
        return np.minimum(self.sizes_R[self.documents_N], self.room)

    def begins(self, epoch: int, windows_B: Ints | slice = ALL) -> Ints:
        """Where windows begin in this epoch: side by side from a random offset, the first and the last moved so that
        they are full. In an evaluation, without an offset."""
        documents_B, numbers_B = self.documents_N[windows_B], self.numbers_N[windows_B]
        if epoch == EVALUATION:
            return numbers_B * self.room
        wanted_B = numbers_B * self.room - self._shifts(epoch)[documents_B]
        return np.clip(wanted_B, 0, np.maximum(self.sizes_R[documents_B] - self.room, 0))

    def _shifts(self, epoch: int) -> Ints:
        """The random offset of each document (R). That of the last epoch is kept for speed."""
        if epoch not in self.last_shifts:
            sizes_R, counts_R = self.sizes_R, self.counts_R
            slack_R = np.where(counts_R > MANY, self.room - 1, np.maximum(counts_R * self.room - sizes_R, 0))
            raw_R = stream(self.seed, "windows", epoch).random_raw(len(self.store))
            self.last_shifts.clear()
            self.last_shifts[epoch] = (raw_R % (slack_R + 1).astype(np.uint64)).astype(np.int64)
        return self.last_shifts[epoch]

    def collate(self, examples_B: Ints, epoch: int) -> NextTokenBatch:
        begins_B = self.begins(epoch, examples_B)
        documents_B = self.documents_N[examples_B]
        sizes_B = np.minimum(self.sizes_R[documents_B] - begins_B, self.room)
        spans = [
            self._tokens(*one) for one in zip(documents_B.tolist(), begins_B.tolist(), sizes_B.tolist(), strict=True)
        ]
        padded = Padded.of([tokens[:-1] for tokens in spans], pad=self.pad)
        keep_BL = padded.keep_if_padded
        return NextTokenBatch(
            tokens_BL=padded.tokens_BL,
            keep_BL=keep_BL,
            segments_BL=None,
            examples_B=examples_B,
            real_tokens=padded.real_tokens,
            positions_N=None if keep_BL is None else keep_BL.flatten().nonzero()[:, 0],
            targets_N=torch.from_numpy(np.concatenate([tokens[1:] for tokens in spans])),
        )

    def _tokens(self, document: int, begin: int, size: int) -> Ints:
        """What a window starts from, and the tokens to predict in it."""
        start, stop = int(self.store.starts_R[document]), int(self.store.starts_R[document + 1])
        first = start + begin + (self.before is None)  # of the tokens to predict
        tokens = self.store.slice((first, min(first + size, stop)))
        lead = self.store.slice((first - 1, first)) if self.before is None else [self.before]
        tail = [self.end] if first + size > stop else []
        return np.concatenate([np.asarray(part, np.int64) for part in (lead, tokens, tail)])


def _numbered(counts_R: Ints) -> tuple[Ints, Ints, Ints]:
    """The document of each window, its number in that document, and the counts again."""
    documents_N = np.repeat(np.arange(len(counts_R)), counts_R)
    return documents_N, np.arange(len(documents_N)) - np.repeat(np.cumsum(counts_R) - counts_R, counts_R), counts_R


def packed(store: Store, end: int | None) -> Store:
    """All documents as a single one, with an end token after each, for windows that run across documents."""
    between = np.zeros(0, np.uint32) if end is None else np.array([end], np.uint32)
    pieces = [
        part
        for first, last in zip(store.starts_R[:-1], store.starts_R[1:], strict=True)
        for part in (store.tokens[first:last], between)
    ]
    tokens = np.concatenate(pieces[:-1]) if pieces else np.zeros(0, np.uint32)  # the last end is added by Windows
    return Store(tokens, np.array([0, len(tokens)]), store.middles_R, store.labels_R[:1], False)


@dataclass(frozen=True)
class WindowDataset:
    """Documents to complete."""

    windows: Windows
    sampler: BatchSampler
    batch_tokens: int
    eval_tokens: int
    text_bytes: int  # of the documents; 0: unknown

    def __len__(self) -> int:
        return int(np.count_nonzero(self.windows.counts_R))

    def collate(self, examples_B: Ints, epoch: int) -> NextTokenBatch:
        return self.windows.collate(examples_B, epoch)

    def evaluation_batches(self) -> Iterator[NextTokenBatch]:
        """Every token once, or an even choice of about `eval_tokens`."""
        windows = self.windows.each_once()
        sizes_N = np.minimum(windows.sizes_R[windows.documents_N] - windows.begins(EVALUATION), windows.room)
        batches = BatchSampler(sizes_N, self.batch_tokens, 0).in_order()
        chosen = evenly(batches, int(sizes_N.sum()), self.eval_tokens)
        return (windows.collate(examples_B, EVALUATION) for examples_B in chosen)


def window_dataset(recipe: Recipe, store: Store, tokenizer: Tokenizer, text_bytes: int = 0) -> WindowDataset:
    """Windows over the documents of a store, as a recipe says, and their order."""
    before, end, train = tokenizer.template(pair=False).before, tokenizer.end, recipe.train
    if len(before) > 1:
        raise UserError(f"task = 'complete': this tokenizer puts {len(before)} tokens before a text; accepted: 0 or 1")
    store = packed(store, end) if recipe.data.pack_documents else store
    windows = Windows.of(
        store, recipe.data.length, before=before[0] if before else None, end=end, pad=tokenizer.pad, seed=recipe.seed
    )
    sampler = BatchSampler(windows.lengths(), train.batch_tokens, recipe.seed)
    return WindowDataset(windows, sampler, train.batch_tokens, train.eval_tokens, text_bytes)


def datasets(recipe: Recipe, prepared: Prepared) -> tuple[WindowDataset, WindowDataset]:
    store, tokenizer = training_rows(prepared.train, recipe), prepared.tokenizer
    train = window_dataset(recipe, store, tokenizer)
    if not train.sampler.batches:
        raise UserError(f"{recipe.data.corpus}: its texts have no tokens, so there is nothing to train on")
    return train, window_dataset(recipe, prepared.validation, tokenizer, prepared.text_bytes.get("validation", 0))


def validate(model: Model, dataset: WindowDataset) -> Validation:
    """Perplexity and token accuracy; and bits per byte where all tokens were predicted, which does not depend on the
    tokenizer."""
    found, tokens, total = evaluate(model, dataset.evaluation_batches())
    if dataset.text_bytes and tokens == int(dataset.windows.sizes_R.sum()):
        found.metrics["bits_per_byte"] = total / math.log(2) / dataset.text_bytes
    return found


def test(predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say) -> dict[str, Metrics]:
    """The metrics of `validate` on raw documents."""
    whole = [row for _, row in rows if row.text.strip()]
    if not whole:
        raise UserError("no documents with text to evaluate on")
    recipe = evaluation_recipe(recipe, "complete", predictor)
    recipe = recipe.replace(train=recipe.train.replace(eval_tokens=0).model_dump())
    tokenizer, text_bytes = predictor.tokenizer, sum(len(row.text.encode()) for row in whole)
    store = temporary_store(lambda writer: write_rows(whole, tokenizer, None, lambda row: -1, writer))
    found = validate(predictor.model, window_dataset(recipe, store, tokenizer, text_bytes))
    return {"all": Metrics(len(whole), {"loss": found.loss, **found.metrics}, "documents")}


def summary(found: Mapping[str, Metrics], rows: str) -> list[str]:
    one = found["all"]
    perplexity = f"{one.values['perplexity']:,.1f}"
    return [
        f"Perplexity {perplexity} on {one.rows:,} {rows}: as hard as a choice among {perplexity} equal tokens.",
        f"Its first guess of the next token is right {per_hundred(one.values['token_accuracy'])} times in 100.",
    ]


def token_ids(prepared: Prepared) -> dict[str, Any]:
    before = prepared.tokenizer.template(pair=False).before
    ids = end_ids(prepared)
    return {**ids, "bos_token_id": before[0]} if ids and before else ids


COMPLETE = Task(
    name="complete",
    format=lambda recipe: RowFormat(
        "documents", labels="none", documents="files", split_long=True, special_tokens="begin"
    ),
    head=lambda recipe: "tokens",
    fits=lambda config: config.family == "decoder" and config.head == "tokens",
    datasets=datasets,
    loss=loss,
    validate=validate,
    test=test,
    title=lambda prepared, found: "A language model that completes text",
    summary=summary,
    metrics=(
        ValidationMetric("perplexity", "perplexity"),
        ValidationMetric("token_accuracy", "token accuracy", curve=True),
        ValidationMetric("bits_per_byte", "bits per byte"),
    ),
    token_ids=token_ids,
)
