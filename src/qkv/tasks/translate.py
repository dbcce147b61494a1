"""Sequence to sequence: every token of a target is predicted from those before it and from the source.

N pairs · B pairs of a batch
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from qkv.config.recipe import Recipe
from qkv.corpus.corpus import RowFormat
from qkv.corpus.files import Row
from qkv.data.batch import Ints, Padded, framed
from qkv.data.prepare import Prepared
from qkv.data.sampler import BatchSampler, evenly
from qkv.data.store import Store
from qkv.metrics import Metrics, ValidationMetric, per_hundred, translation_metrics
from qkv.model.transformer import Model
from qkv.predict.predictor import Predictor
from qkv.schema import Say, UserError
from qkv.tasks.next_token import NextTokenBatch, end_ids, evaluate, loss
from qkv.tasks.task import EVALUATION, Labelled, Task, Validation, training_rows
from qkv.tokenizer.tokenizer import Template, Tokenizer


@dataclass(frozen=True)
class TranslationDataset:
    """Pairs that fit. Longer ones are left out: a truncated target would teach to leave out the end."""

    store: Store
    rows_N: Ints
    lengths_N2: Ints  # tokens of each target and source, special tokens included
    sampler: BatchSampler
    template: Template  # of a source
    start: int  # what a target begins with
    end: int  # and ends with
    pad: int
    target_pad: int
    eval_tokens: int

    def __len__(self) -> int:
        return len(self.rows_N)

    @property
    def too_long(self) -> int:
        """Pairs that are left out."""
        return len(self.store) - len(self.rows_N)

    def collate(self, examples_B: Ints, epoch: int) -> NextTokenBatch:
        begin, middle, stop = (edge[self.rows_N[examples_B]] for edge in self.store.bounds())
        sources = [self.store.slice(span) for span in zip(begin, middle, strict=True)]
        targets = [self.store.slice(span) for span in zip(middle, stop, strict=True)]
        source = Padded.of([framed(one, None, self.template)[0] for one in sources], pad=self.pad)
        given = Padded.of([np.concatenate([[self.start], one]) for one in targets], pad=self.target_pad)
        keep_BL = given.keep_if_padded
        return NextTokenBatch(
            tokens_BL=given.tokens_BL,
            keep_BL=keep_BL,
            segments_BL=None,
            examples_B=examples_B,
            real_tokens=given.real_tokens + source.real_tokens,
            positions_N=None if keep_BL is None else keep_BL.flatten().nonzero()[:, 0],
            targets_N=torch.from_numpy(np.concatenate([part for one in targets for part in (one, [self.end])])),
            source_BS=source.tokens_BL,
            source_keep_BS=source.keep_if_padded,
        )

    def evaluation_batches(self) -> Iterator[NextTokenBatch]:
        """Every pair once, or an even choice of about `eval_tokens`."""
        chosen = evenly(self.sampler.in_order(), int(self.lengths_N2.sum()), self.eval_tokens)
        return (self.collate(examples_B, EVALUATION) for examples_B in chosen)


def translation_dataset(
    recipe: Recipe, store: Store, tokenizer: Tokenizer, target: Tokenizer | None
) -> TranslationDataset:
    """The pairs of a store that fit, and their order. A target begins with the padding token, as Marian's do."""
    second, template, longest = target or tokenizer, tokenizer.template(pair=False), recipe.data.length
    if second.end is None:
        raise UserError("task = 'translate' needs a tokenizer with an end token; this one has none")
    begin, middle, stop = store.bounds()
    lengths_R2 = np.stack([stop - middle + 1, middle - begin + len(template)], 1)
    rows_N = np.flatnonzero((lengths_R2 <= longest).all(1))
    return TranslationDataset(
        store=store,
        rows_N=rows_N,
        lengths_N2=lengths_R2[rows_N],
        sampler=BatchSampler(lengths_R2[rows_N], recipe.train.batch_tokens, recipe.seed),
        template=template,
        start=second.pad,
        end=second.end,
        pad=tokenizer.pad,
        target_pad=second.pad,
        eval_tokens=recipe.train.eval_tokens,
    )


def datasets(recipe: Recipe, prepared: Prepared) -> tuple[TranslationDataset, TranslationDataset]:
    stores = training_rows(prepared.train, recipe), prepared.validation
    train, validation = (translation_dataset(recipe, store, prepared.tokenizer, prepared.target) for store in stores)
    if not train.sampler.batches:
        found = f"all pairs are longer than {recipe.data.length} tokens (data.length)"
        raise UserError(f"{recipe.data.corpus}: {found}, so there is nothing to train on")
    return train, validation


def validate(model: Model, dataset: TranslationDataset) -> Validation:
    return evaluate(model, dataset.evaluation_batches())[0]


def test(predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say) -> dict[str, Metrics]:
    """BLEU and chrF of the outputs, decoded as the recipe says. Every pair counts, also where a source is truncated."""
    whole, left_out = list[Row](), 0
    for _, row in rows:
        if row.text.strip() and (row.pair or "").strip():
            whole.append(row)
        else:
            left_out += 1
    if left_out:
        say(f"note: {left_out:,} pairs with an empty side are left out")
    if not whole:
        raise UserError("no pairs with two sides to evaluate on")
    predictions = predictor.predict([row.text for row in whole])
    truncated = sum(one.truncated for one in predictions)
    if truncated:
        say(f"note: {truncated:,} of {len(predictions):,} sources were truncated")
    references = [" ".join((row.pair or "").split()) for row in whole]
    values, details = translation_metrics([" ".join((one.output or "").split()) for one in predictions], references)
    d = predictor.input_options.decode
    decoding = f"beam {d.beam}, length penalty {d.length_penalty}" if d.beam > 1 else "greedy"
    return {"all": Metrics(len(whole), values, "pairs", {"decoding": decoding, **details})}


def summary(found: Mapping[str, Metrics], rows: str) -> list[str]:
    one = found["all"]
    exact = per_hundred(one.values["exact"])
    return [
        f"BLEU {one.values['bleu']:.1f} and chrF {one.values['chrf']:.1f} on {one.rows:,} {rows}.",
        f"{exact} outputs in 100 equal the reference to the letter.",
    ]


def notes(recipe: Recipe, train: TranslationDataset) -> list[str]:
    if not train.too_long:
        return []
    longest = f"{recipe.data.length} tokens (data.length)"
    return [f"{train.too_long:,} of {len(train.store):,} pairs have a side longer than {longest} and are left out"]


def token_ids(prepared: Prepared) -> dict[str, Any]:
    ids, tokenizer = end_ids(prepared), prepared.target or prepared.tokenizer
    return {**ids, "decoder_start_token_id": tokenizer.pad, "forced_eos_token_id": tokenizer.end} if ids else {}


TRANSLATE = Task(
    name="translate",
    format=lambda recipe: RowFormat("pairs", labels="none", aligned=True, special_tokens="end"),
    head=lambda recipe: "tokens",
    fits=lambda config: config.family == "encoder-decoder" and config.head == "tokens",
    datasets=datasets,
    loss=loss,
    validate=validate,
    test=test,
    title=lambda prepared, found: "A translation model",
    summary=summary,
    metrics=(
        ValidationMetric("perplexity", "perplexity"),
        ValidationMetric("token_accuracy", "token accuracy", curve=True),
    ),
    notes=notes,
    token_ids=token_ids,
)
