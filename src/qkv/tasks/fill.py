"""Masked language modelling (MLM) and next-sentence prediction (NSP): BERT's pre-training (Devlin et al., 2019).

Of a batch: B examples · L tokens of the longest · N masked tokens · M pairs · K tokens to match
Of a dataset: N examples
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config.recipe import Recipe
from qkv.corpus.corpus import RowFormat
from qkv.corpus.sentences import splitter
from qkv.data.batch import Batch, Ints, Padded, framed
from qkv.data.prepare import Prepared
from qkv.data.sampler import BatchSampler, evenly
from qkv.data.store import Store, temporary_store, write_sentences
from qkv.data.truncation import Examples
from qkv.metrics import Metrics, TestMetrics, ValidationMetric, per_hundred
from qkv.model.heads import place_in_rows
from qkv.model.transformer import Encoder, Model, hidden_states
from qkv.predict.predictor import Predictor
from qkv.schema import Say, UserError
from qkv.tasks.masking import Masking
from qkv.tasks.passages import Negatives, Overlap, passages_of
from qkv.tasks.task import EVALUATION, Labelled, Loss, Task, Validation, evaluation_recipe, subset
from qkv.tokenizer.tokenizer import Template, Tokenizer


@dataclass(frozen=True)
class MaskedBatch(Batch):
    """Texts or pairs with masked tokens. Targets are listed with their positions, so there is no ignore index."""

    positions_N: Tensor  # of the masked tokens, in the flattened tokens (row * L + column), ascending
    targets_N: Tensor  # the original tokens
    pairs_M: Tensor  # the rows that are pairs
    negatives_M: Tensor  # of each pair: 0 the second text is the next sentence, 1 it is a negative (BERT's order)
    matching_K: Tensor | None = None  # of tokens that are not masked, as positions_N; None: no token matching
    unmatched_K: Tensor | None = None  # of each of these: 0 the other text of the pair has this token, 1 it has not

    @property
    def counts(self) -> dict[str, float]:
        found = {"token": float(len(self.targets_N)), "next_sentence": float(len(self.pairs_M))}
        return found if self.matching_K is None else {**found, "token_match": float(len(self.matching_K))}


class MaskedLogits(NamedTuple):
    tokens_NV: Tensor  # of the masked tokens
    pairs_M2: Tensor | None  # of each pair: next sentence or not
    matches_K2: Tensor | None  # of each token to match: the other text has it or not


@dataclass(frozen=True)
class MaskedDataset:
    """Passages of documents."""

    store: Store
    examples: Examples
    lengths_N: Ints  # tokens of each example: the same in every epoch
    negatives: Negatives
    overlap: Overlap
    masking: Masking
    sampler: BatchSampler
    single: Template
    pair: Template
    pad: int
    eval_tokens: int
    token_match: bool = False

    def __len__(self) -> int:
        return len(np.unique(self.examples.rows_N))

    def pairs(self) -> tuple[int, int]:
        """Passages that are pairs with a possible negative, and all passages."""
        able = (self.negatives.count_N > self.negatives.siblings_N) & (np.diff(self.examples.b_N2)[:, 0] > 0)
        return int(np.count_nonzero(able)), len(able)

    def collate(self, examples_B: Ints, epoch: int) -> MaskedBatch:
        ids, segments, positions, targets = [], [], list[Ints](), list[Ints]()
        pairs, is_negative_M = list[int](), list[int]()
        matching, unmatched = list[Ints](), list[Ints]()
        for row, number in enumerate(examples_B.tolist()):
            tokens_L, segments_L, is_negative = self._example(number, epoch)
            masked, at = self.masking(tokens_L, epoch, number)
            ids.append(masked)
            segments.append(segments_L)
            positions.append(at)
            targets.append(tokens_L[at])
            if self.token_match:
                found = self._matches(tokens_L, segments_L, at)
                matching.append(found[0])
                unmatched.append(found[1])
            if is_negative is not None:
                pairs.append(row)
                is_negative_M.append(int(is_negative))
        padded = Padded.of(ids, segments, pad=self.pad)
        length = padded.tokens_BL.shape[1]
        return MaskedBatch(
            tokens_BL=padded.tokens_BL,
            keep_BL=padded.keep_if_padded,
            segments_BL=padded.segments_BL if len(self.negatives.members_M) else None,
            examples_B=examples_B,
            real_tokens=padded.real_tokens,
            positions_N=_flat(positions, length),
            targets_N=torch.from_numpy(np.concatenate(targets)),
            pairs_M=torch.tensor(pairs, dtype=torch.long),
            negatives_M=torch.tensor(is_negative_M, dtype=torch.long),
            matching_K=_flat(matching, length) if self.token_match else None,
            unmatched_K=torch.from_numpy(np.concatenate(unmatched)) if self.token_match else None,
        )

    def _example(self, number: int, epoch: int) -> tuple[Ints, Ints, bool | None]:
        """One example before masking, and whether its second text is a negative; None: it is no pair."""
        a, own_b = self.examples.a_N2[number], self.examples.b_N2[number]
        if own_b[0] == own_b[1]:
            return *framed(self.store.slice(a), None, self.single), None
        other, is_negative = self.negatives.second(number, epoch)
        first = self.store.slice(a + self.overlap.shift(number, epoch))
        return *framed(first, self.store.slice(self.examples.b_N2[other]), self.pair), is_negative

    def _matches(self, tokens_L: Ints, segments_L: Ints, masked: Ints) -> tuple[Ints, Ints]:
        """Positions of the tokens of a pair that are neither special nor masked, and of each: 0 the other text has it,
        1 it has not (Sun et al., 2020, ERNIE 2.0: token-document relation). A single text has none."""
        if not segments_L.any():
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        usable_L = ~self.masking.special_V[tokens_L]
        a, b = (np.unique(tokens_L[usable_L & (segments_L == segment)]) for segment in (0, 1))
        has_L = np.where(segments_L == 0, np.isin(tokens_L, b), np.isin(tokens_L, a))
        usable_L[masked] = False
        return np.flatnonzero(usable_L), (~has_L[usable_L]).astype(np.int64)


def _flat(positions: list[Ints], length: int) -> Tensor:
    """Positions of each row, in the flattened rows."""
    return torch.from_numpy(np.concatenate([row * length + at for row, at in enumerate(positions)]))


def masked_dataset(recipe: Recipe, store: Store, tokenizer: Tokenizer) -> MaskedDataset:
    """Passages of the documents in a store, as a recipe says, and their order."""
    train, single, pair = recipe.train, tokenizer.template(pair=False), tokenizer.template(pair=True)
    room = recipe.data.length - len(pair if train.next_sentence else single)
    if room < 2:
        raise UserError(f"data.length = {recipe.data.length}: leaves no room for text beside the special tokens")
    mask = None if tokenizer.mask is None else tokenizer.id_of(tokenizer.mask)
    if mask is None:
        raise UserError("task = 'fill' needs a tokenizer with a mask token; this one has none")
    inside = np.array(tokenizer.inside_words()) if train.whole_words else None
    masking = Masking(train.mask_rate, mask, np.array(tokenizer.specials()), inside, recipe.seed)
    examples = passages_of(store, room, pairs=train.next_sentence, seed=recipe.seed)
    is_pair = np.diff(examples.b_N2)[:, 0] > 0
    lengths_N = np.where(is_pair, examples.lengths(pair), examples.lengths(single))
    return MaskedDataset(
        store=store,
        examples=examples,
        lengths_N=lengths_N,
        negatives=Negatives.of(store, examples, recipe.seed),
        overlap=Overlap(examples, train.pair_overlap, recipe.seed),
        masking=masking,
        sampler=BatchSampler(lengths_N, train.batch_tokens, recipe.seed),
        single=single,
        pair=pair,
        pad=tokenizer.pad,
        eval_tokens=train.eval_tokens,
        token_match=train.token_match,
    )


def datasets(recipe: Recipe, prepared: Prepared) -> tuple[MaskedDataset, MaskedDataset]:
    documents = np.unique(prepared.train.labels_R)  # a row of the store is a sentence, its label is its document
    chosen = np.isin(prepared.train.labels_R, documents[subset(len(documents), recipe)])
    stores = prepared.train.take(np.flatnonzero(chosen)), prepared.validation
    train, validation = (masked_dataset(recipe, store, prepared.tokenizer) for store in stores)
    if recipe.train.next_sentence and len(train) < 2:
        raise UserError(
            f"{recipe.data.corpus}: {len(train)} training document; next-sentence prediction needs several, for "
            "negatives; set train.next_sentence=false, or data.documents to split it"
        )
    if not train.sampler.batches:
        raise UserError(f"{recipe.data.corpus}: its documents have no tokens, so there is nothing to train on")
    return train, validation


def masked_logits(model: Model, batch: MaskedBatch) -> MaskedLogits:
    """Logits of all that a batch asks for. The last layer is computed only where one of them reads it. The
    next-sentence head also matches tokens: off [CLS] it reads whether the second text is the next, off a token whether
    the other text has it."""
    assert isinstance(model, Encoder), "a recipe's family is checked before"
    head, pairs = model.text, len(batch.pairs_M)
    matching_K = batch.positions_N[:0] if batch.matching_K is None else batch.matching_K
    if head is None or not pairs + len(matching_K):
        hidden_ND = hidden_states(model, batch.tokens_BL, batch.keep_BL, batch.segments_BL, batch.positions_N)
        return MaskedLogits(model.logits(hidden_ND), None, None)
    assert head.place is not None, "pool = mean is refused before"
    keep_BL = torch.ones_like(batch.tokens_BL, dtype=torch.bool) if batch.keep_BL is None else batch.keep_BL
    read_M = place_in_rows(head.place, keep_BL).index_select(0, batch.pairs_M)
    at = torch.cat([batch.positions_N, read_M, matching_K])
    hidden = hidden_states(model, batch.tokens_BL, batch.keep_BL, batch.segments_BL, at)
    tokens_ND, pairs_MD, matches_KD = hidden.split_with_sizes([len(batch.positions_N), pairs, len(matching_K)])
    return MaskedLogits(
        model.logits(tokens_ND),
        head.answer(pairs_MD) if pairs else None,
        head.answer(matches_KD) if len(matching_K) else None,
    )


def loss(model: Model, batch: MaskedBatch, recipe: Recipe | None = None) -> Loss:
    """Total cross-entropy of the masked tokens, of next-sentence prediction and of token matching. The training loop
    divides each by its count (`MaskedBatch.counts`)."""
    tokens_NV, pairs_M2, matches_K2 = masked_logits(model, batch)
    totals = {"token": F.cross_entropy(tokens_NV, batch.targets_N, reduction="sum")}
    if pairs_M2 is not None:
        totals["next_sentence"] = F.cross_entropy(pairs_M2, batch.negatives_M, reduction="sum")
    if matches_K2 is not None and batch.unmatched_K is not None:
        totals["token_match"] = F.cross_entropy(matches_K2, batch.unmatched_K, reduction="sum")
    return totals


@torch.no_grad()
def validate(model: Model, dataset: MaskedDataset) -> Validation:
    """Token accuracy and perplexity of the masked tokens, and accuracy of next-sentence prediction; always on the same
    masks and pairs."""
    sums: dict[str, float] = defaultdict(float)
    for examples_B in evenly(dataset.sampler.in_order(), int(dataset.lengths_N.sum()), dataset.eval_tokens):
        batch = dataset.collate(examples_B, EVALUATION)
        tokens_NV, pairs_M2, matches_K2 = masked_logits(model, batch)
        sums["tokens"] += len(batch.targets_N)
        sums["token_loss"] += F.cross_entropy(tokens_NV, batch.targets_N, reduction="sum").item()
        sums["token_hits"] += int((tokens_NV.argmax(1) == batch.targets_N).sum())
        if pairs_M2 is not None:
            sums["pairs"] += len(batch.pairs_M)
            sums["next_loss"] += F.cross_entropy(pairs_M2, batch.negatives_M, reduction="sum").item()
            sums["next_hits"] += int((pairs_M2.argmax(1) == batch.negatives_M).sum())
        if matches_K2 is not None and batch.unmatched_K is not None:
            sums["matches"] += len(batch.unmatched_K)
            sums["match_hits"] += int((matches_K2.argmax(1) == batch.unmatched_K).sum())
    token_loss = sums["token_loss"] / max(1, sums["tokens"])
    found = {
        "token_loss": token_loss,
        "token_accuracy": sums["token_hits"] / max(1, sums["tokens"]),
        "perplexity": math.exp(min(token_loss, 700.0)),
    }
    if sums["pairs"]:
        found["next_sentence_loss"] = sums["next_loss"] / sums["pairs"]
        found["next_sentence_accuracy"] = sums["next_hits"] / sums["pairs"]
    if sums["matches"]:
        found["token_match_accuracy"] = sums["match_hits"] / sums["matches"]
    return Validation(token_loss + found.get("next_sentence_loss", 0.0), found)


def test(predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say) -> dict[str, Metrics]:
    """The metrics of `validate` on raw documents."""
    recipe = evaluation_recipe(recipe, "fill", predictor)
    both = predictor.config.head == "pretraining"
    recipe = recipe.replace(train=recipe.train.replace(eval_tokens=0, next_sentence=both).model_dump())
    tokenizer, sentences = predictor.tokenizer, recipe.data.sentences
    documents = (row for _, row in rows)
    store = temporary_store(lambda writer: write_sentences(documents, tokenizer, sentences, writer))
    dataset = masked_dataset(recipe, store, tokenizer)
    if not len(dataset):
        raise UserError("no documents with text to evaluate on")
    found = validate(predictor.model, dataset)
    return {"all": Metrics(len(dataset), {"loss": found.loss, **found.metrics}, "documents")}


def check(recipe: Recipe) -> None:
    splitter(recipe.data.sentences)
    if recipe.train.token_match and not recipe.train.next_sentence:
        raise UserError("train.token_match = true: needs pairs; set train.next_sentence=true")
    if recipe.model.pool == "mean" and recipe.train.next_sentence:
        raise UserError("model.pool = 'mean': next-sentence prediction reads one token; accepted: auto, first, last")


def notes(recipe: Recipe, train: MaskedDataset) -> list[str]:
    if not recipe.train.next_sentence:
        return []
    pairs, passages = train.pairs()
    return [f"{pairs:,} of {passages:,} passages are pairs for next-sentence prediction"]


def title(prepared: Prepared, found: TestMetrics | None) -> str:
    whole = found["all"] if found else None
    both = isinstance(whole, Metrics) and "next_sentence_accuracy" in whole.values
    return "An encoder pre-trained on masked tokens" + (" and next-sentence prediction" if both else "")


def summary(found: Mapping[str, Metrics], rows: str) -> list[str]:
    one, times = found["all"], per_hundred
    sentences = [
        f"Fills a masked token right {times(one.values['token_accuracy'])} times in 100 on {one.rows:,} {rows}."
    ]
    if "next_sentence_accuracy" in one.values:
        share = times(one.values["next_sentence_accuracy"])
        sentences.append(f"Tells the next sentence from another one {share} times in 100; a coin would 50 times.")
    return sentences


FILL = Task(
    name="fill",
    format=lambda recipe: RowFormat("documents", labels="none", documents="auto", sentences=recipe.data.sentences),
    head=lambda recipe: "pretraining" if recipe.train.next_sentence else "tokens",
    fits=lambda config: config.family == "encoder" and config.head in ("tokens", "pretraining"),
    datasets=datasets,
    loss=loss,
    validate=validate,
    test=test,
    title=title,
    summary=summary,
    metrics=(
        ValidationMetric("token_accuracy", "token accuracy", curve=True),
        ValidationMetric("perplexity", "perplexity"),
        ValidationMetric("next_sentence_accuracy", "next-sentence accuracy", curve=True),
        ValidationMetric("token_match_accuracy", "token-match accuracy"),
    ),
    check=check,
    notes=notes,
)
