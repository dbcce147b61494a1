"""Labelled texts and pairs: what `classify` and `regress` have in common.

R rows · N examples · B examples of a batch · C outputs
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.config.recipe import Recipe
from qkv.corpus.files import Row
from qkv.data.batch import Batch, Ints, Padded, framed
from qkv.data.sampler import BatchSampler
from qkv.data.store import Store
from qkv.data.truncation import TRUNCATIONS, Examples
from qkv.model.attention import Linear
from qkv.model.transformer import EncoderDecoder, Model, text_answers, text_vectors
from qkv.predict.prediction import Text
from qkv.schema import Say, UserError
from qkv.streams import permutation, stream
from qkv.tasks.task import EVALUATION, Labelled
from qkv.tokenizer.tokenizer import Template, Tokenizer


@dataclass(frozen=True)
class LabelBatch(Batch):
    """Texts or pairs with labels: class ids, or numbers."""

    labels_B: Tensor
    weights_B: Tensor  # of each example in the loss

    @property
    def counts(self) -> dict[str, float]:
        return {"labels": float(self.weights_B.double().sum())}


@dataclass(frozen=True)
class TokenDropout:
    """Replaces a share of a text's tokens by the mask token. Which ones depends on seed, epoch and example."""

    share: float
    mask: int
    seed: int

    def __call__(self, tokens: Ints, epoch: int, example: int) -> Ints:
        noise = stream(self.seed, "hide", epoch, example).random_raw((len(tokens) + 7) // 8)
        dropped = noise.view(np.uint8)[: len(tokens)] < round(256 * self.share)
        return np.where(dropped, self.mask, tokens)


@dataclass(frozen=True)
class TextDataset:
    """Labelled rows, truncated or read in windows, and the sampler that orders them."""

    store: Store
    labels_R: NDArray[np.generic]  # as they are trained on
    weights_R: NDArray[np.float32]
    examples: Examples
    sampler: BatchSampler
    template: Template
    pad: int
    dropout: TokenDropout | None
    mean: float = 0.0  # of the numbers, which are trained on with mean 0 and deviation 1
    deviation: float = 1.0

    def __len__(self) -> int:
        return len(self.store)

    def collate(self, examples_B: Ints, epoch: int) -> LabelBatch:
        made = [self._example(number, epoch) for number in examples_B.tolist()]
        padded = Padded.of([ids for ids, _ in made], [segments for _, segments in made], pad=self.pad)
        rows_B = self.examples.rows_N[examples_B]
        return LabelBatch(
            tokens_BL=padded.tokens_BL,
            keep_BL=padded.keep_if_padded,
            segments_BL=padded.segments_BL if self.store.pairs else None,
            examples_B=examples_B,
            real_tokens=padded.real_tokens,
            labels_B=torch.from_numpy(self.labels_R[rows_B]),
            weights_B=torch.from_numpy(self.weights_R[rows_B]),
        )

    def _example(self, number: int, epoch: int) -> tuple[Ints, Ints]:
        a, b = (self.store.slice(span[number]) for span in (self.examples.a_N2, self.examples.b_N2))
        if self.dropout is not None and epoch != EVALUATION:
            both = self.dropout(np.concatenate([a, b]), epoch, number)
            a, b = both[: len(a)], both[len(a) :]
        return framed(a, b, self.template) if self.store.pairs else framed(np.concatenate([a, b]), None, self.template)


def text_dataset(recipe: Recipe, store: Store, tokenizer: Tokenizer) -> TextDataset:
    """Truncate or window the rows of a store as a recipe says, and order them. Labels and weights are the caller's."""
    template, train = tokenizer.template(pair=store.pairs), recipe.train
    room = recipe.data.length - len(template)
    if room < 1:
        raise UserError(f"data.length = {recipe.data.length}: leaves no room for text beside the special tokens")
    examples = TRUNCATIONS[recipe.data.truncation](store, room)
    mask = tokenizer.unknown if tokenizer.mask is None else tokenizer.id_of(tokenizer.mask)
    if train.token_dropout and mask is None:
        raise UserError("train.token_dropout needs a tokenizer with a mask token; this one has none; accepted: 0")
    dropout = TokenDropout(train.token_dropout, mask, recipe.seed) if train.token_dropout and mask is not None else None
    return TextDataset(
        store=store,
        labels_R=store.labels_R,
        weights_R=np.ones(len(store), np.float32),
        examples=examples,
        sampler=BatchSampler(examples.lengths(template), train.batch_tokens, recipe.seed),
        template=template,
        pad=tokenizer.pad,
        dropout=dropout,
    )


def text_logits(model: Model, batch: Batch) -> Tensor:
    """A logit for each class (B, C), or a number (B, 1)."""
    assert not isinstance(model, EncoderDecoder), "a recipe's family is checked before"
    return text_answers(model, batch.tokens_BL, batch.keep_BL, batch.segments_BL)


def output_layer(model: Model) -> Linear:
    """The last layer of a text head, which holds the temperature or the scale of numbers once they are fitted."""
    assert model.text is not None, "its head is for texts"
    assert model.text.output is not None, "its head is for texts"
    return model.text.output


@torch.no_grad()
def row_logits(model: Model, dataset: TextDataset, outputs: int) -> NDArray[np.float64]:
    """The logits of every row (R, C): the mean over its windows."""
    rows_N = dataset.examples.rows_N
    sums_RC = np.zeros((len(dataset.store), outputs))
    for examples_B in dataset.sampler.in_order():
        logits_BC = text_logits(model, dataset.collate(examples_B, EVALUATION)).double().numpy()
        np.add.at(sums_RC, rows_N[examples_B], logits_BC)
    windows_R = np.bincount(rows_N, minlength=len(sums_RC))
    return sums_RC / windows_R[:, None]


@torch.no_grad()
def example_vectors(model: Model, dataset: TextDataset, most: int) -> tuple[Ints, NDArray[np.float64]]:
    """Some examples, at most so many, and what the output layer reads for each (N, D)."""
    assert not isinstance(model, EncoderDecoder), "a recipe's family is checked before"
    count = len(dataset.examples.rows_N)
    chosen = np.sort(permutation(stream(dataset.sampler.seed, "order", 0, 3), count)[:most])
    place = np.full(count, -1)
    place[chosen] = np.arange(len(chosen))
    found_ND = np.zeros((len(chosen), output_layer(model).in_features))
    for batch_B in dataset.sampler.in_order():
        examples_B = batch_B[place[batch_B] >= 0]
        if len(examples_B):
            batch = dataset.collate(examples_B, EVALUATION)
            vectors_BD = text_vectors(model, batch.tokens_BL, batch.keep_BL, batch.segments_BL)
            found_ND[place[examples_B]] = vectors_BD.double().numpy()
    return chosen, found_ND


@torch.no_grad()
def set_output_layer(model: Model, weight_CD: NDArray[np.float64], bias_C: NDArray[np.float64]) -> None:
    """Put a fitted linear map into the output layer."""
    output = output_layer(model)
    output.weight.copy_(torch.from_numpy(weight_CD))
    if output.bias is not None:
        output.bias.copy_(torch.from_numpy(bias_C))


def truncation_notes(recipe: Recipe, train: TextDataset) -> list[str]:
    truncated, length = train.examples.truncated, recipe.data.length
    how = {"head": "keep their first", "head+tail": "keep their first and last", "windows": "are read in windows of"}
    done = f"{how[recipe.data.truncation]} {length} tokens (data.length, data.truncation)"
    return [f"{truncated:,} of {len(train):,} training texts {done}"] if truncated else []


def whole_rows(rows: Iterable[Labelled], say: Say) -> list[tuple[str, Row]]:
    """Rows that have text and label; `say` is told how many have not."""
    whole, left_out = list[tuple[str, Row]](), list[str]()
    for label, row in rows:
        if label is None or not (row.text.strip() or (row.pair or "").strip()):
            left_out.append(row.place)
        else:
            whole.append((label, row))
    if left_out:
        say(f"note: {len(left_out):,} rows without text or label are left out, first {left_out[0]}")
    if not whole:
        raise UserError("no rows with text and label to evaluate on")
    return whole


def text_of(row: Row) -> Text:
    return row.text if row.pair is None else (row.text, row.pair)
