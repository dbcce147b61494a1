"""Real tokens per second of pre-training on masked tokens and next sentences: qkv's own loop against `transformers`.

    .venv/bin/python benchmarks/pretraining_speed.py --vocab-size 8000 30522 --rounds 12 --steps 2 [--data reviews.csv]

All have 4 layers, 256 wide, 4 heads, feed-forward 1,024, BERT's parts and both its heads, a vocabulary of --vocab-size,
the same number of weights, the same threads and allocator settings, and read passages of the same documents, at most
--length tokens each. The tokenizer is a WordPiece trained on the text to that size; where the text gives fewer tokens,
all embedding tables still have --vocab-size rows, and the last ones are never read. A turn is some optimiser steps:
collate, mask, forward, backward, clip to norm 1, AdamW, learning rate. Padding is never counted as a token.

- qkv: the generator that `qkv train` runs, --tokens tokens a step, dropout 0.1 on hidden states, deterministic kernels.
  New negatives and new masks in every epoch.
- default: BertForPreTraining with SDPA and fused AdamW, in a plain loop that does in a step what Trainer does (which
  itself needs accelerate). Pairs are made once, before: our passages with the second texts of the first epoch, with
  their masks of special tokens. Random rows, padded to the longest of the batch and masked by
  DataCollatorForLanguageModeling (15%: 80% mask, 10% random, 10% as they are), a DataLoader without workers. It has as
  many rows as --tokens holds full passages. Dropout 0.1 on hidden states and on attention weights, as its config has.
- tuned: the same model on the very batches of qkv, grouped by length, collated and masked by qkv. This is
  kinder than anything in `transformers`.
- tuned, no attention dropout: the same with dropout on hidden states only, exactly as in qkv.

Passages of a single sentence are no pairs. BertForPreTraining would give NaN for a batch without any pair, so they are
given to it as "next": what it learns is not what is measured.

The share of the peak counts necessary work only: 6 FLOPs a weight for each token that a matrix sees, 12 x width x
length a query for attention. In the last layer, queries, output and feed-forward are needed only where a masked token
or the next sentence is predicted; the head of the tokens only at masked tokens. qkv computes just that, BERT of
`transformers` computes all of it everywhere, so its share is small by that measure. The peak is the best 2,048-cubed
torch.mm of the same run.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from table import run_main, say
from torch.utils.data import DataLoader, Dataset
from training_speed import (
    DROPOUT,
    NEVER,
    Contender,
    Inputs,
    Work,
    bert,
    check_steps,
    compare,
    theirs,
    where_time_goes,
)
from transformers import BertForPreTraining, DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from qkv import runtime
from qkv.config import presets
from qkv.config.recipe import ModelConfig, Recipe
from qkv.data.batch import Ints, framed
from qkv.tasks.fill import MaskedBatch, MaskedDataset
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.training.build import TrainingData, build_state, open_data
from qkv.training.loop import TrainState, batches_of, train

MASK_RATE, IGNORED = 0.15, -100
RATE, THEIR_RATE = 5e-4, 5e-5  # the second is the Trainer's own


def recipe_for(data: str, length: int, tokens: int, vocabulary: int) -> Recipe:
    return presets.expand(
        {
            "task": "fill",
            "data": {"corpus": data, "length": length},
            "tokenizer": {"vocab_size": vocabulary, "lowercase": True},
            "model": {"preset": "bert-mini", "vocabulary": 0},
            "train": {
                "batch_tokens": tokens,
                "learning_rate": RATE,
                "dropout": DROPOUT,
                "mask_rate": MASK_RATE,
                "report_every": NEVER,
                "eval_every": NEVER,
                "save_every": NEVER,
            },
        }
    )


def with_vocabulary(data: TrainingData, size: int) -> TrainingData:
    """The same with an embedding table of `size` rows."""
    model = data.recipe.model.replace(vocabulary=size)
    return replace(data, recipe=data.recipe.replace(model=model.model_dump()))


def dataset_of(state: TrainState) -> MaskedDataset:
    assert isinstance(state.train, MaskedDataset), "the task is fill"
    return state.train


def necessary_flops(config: ModelConfig, lengths_B: Ints, masked_B: Ints, pairs_B: Ints) -> float:
    """Of forward and backward, for texts of these lengths with so many masked tokens and pairs in each."""
    model = config.resolve()
    d, tokens, masked = model.width, int(lengths_B.sum()), int(masked_B.sum())
    everywhere = (model.layers - 1) * (4 * d**2 + 2 * d * model.feedforward) + 2 * d**2  # last layer: keys and values
    queries_B = masked_B + pairs_B
    last = 2 * d**2 + 2 * d * model.feedforward
    attention = (model.layers - 1) * int(np.square(lengths_B).sum()) + int((queries_B * lengths_B).sum())
    matrices = everywhere * tokens + last * int(queries_B.sum()) + (d**2 + d * model.vocabulary) * masked
    return float(6 * (matrices + d**2 * int(pairs_B.sum())) + 12 * d * attention)


def ours(state: TrainState) -> Callable[[], Work]:
    reports, dataset = train(state), dataset_of(state)
    examples, lengths_N = dataset.examples, dataset.lengths_N
    pairs_N = (np.diff(examples.b_N2)[:, 0] > 0).astype(np.int64)
    usable_N = np.diff(examples.a_N2)[:, 0] + np.diff(examples.b_N2)[:, 0]

    def step() -> Work:
        before = state.progress.tokens
        _, examples_B = dataset.sampler.batch(state.progress.step)
        next(reports)
        masked_B = np.maximum(1, np.round(MASK_RATE * usable_N[examples_B])).astype(np.int64)
        work = necessary_flops(state.recipe.model, lengths_N[examples_B], masked_B, pairs_N[examples_B])
        return state.progress.tokens - before, work

    return step


def flops_of(config: ModelConfig) -> Callable[[Inputs], float]:
    """The same count for a batch as transformers has it."""

    def flops(inputs: Inputs) -> float:
        lengths_B, masked_B = inputs["attention_mask"].sum(1), (inputs["labels"] != IGNORED).sum(1)
        pairs_B = torch.ones_like(lengths_B)
        return necessary_flops(config, lengths_B.numpy(), masked_B.numpy(), pairs_B.numpy())

    return flops


def grouped(state: TrainState) -> Iterator[Inputs]:
    """The batches of qkv in the form transformers takes them."""
    for number in itertools.count():
        (batch,) = batches_of(state, number)
        assert isinstance(batch, MaskedBatch)
        yield in_their_form(batch)


def in_their_form(batch: MaskedBatch) -> Inputs:
    tokens_BL = batch.tokens_BL
    labels = torch.full_like(tokens_BL, IGNORED)
    labels.view(-1)[batch.positions_N] = batch.targets_N
    negatives_B = torch.zeros(len(tokens_BL), dtype=torch.long)
    negatives_B[batch.pairs_M] = batch.negatives_M
    return {
        "input_ids": tokens_BL,
        "attention_mask": torch.ones_like(tokens_BL) if batch.keep_BL is None else batch.keep_BL.long(),
        "token_type_ids": torch.zeros_like(tokens_BL) if batch.segments_BL is None else batch.segments_BL,
        "labels": labels,
        "next_sentence_label": negatives_B,
    }


class Pairs(Dataset[dict[str, Any]]):
    """Pairs made once, tokenised, as a dataset of transformers has them."""

    def __init__(self, dataset: MaskedDataset, tokenizer: Tokenizer) -> None:
        self.special = np.array(tokenizer.specials())
        self.rows: list[tuple[NDArray[np.int32], NDArray[np.int8], bool]] = []  # tokens, segments, is it a negative
        store, examples = dataset.store, dataset.examples
        for number, (a, b) in enumerate(zip(examples.a_N2.tolist(), examples.b_N2.tolist(), strict=True)):
            is_negative: bool | None = False
            if b[0] == b[1]:
                ids, segments = framed(store.slice(a), None, dataset.single)
            else:
                other, is_negative = dataset.negatives.second(number, 0)
                ids, segments = framed(store.slice(a), store.slice(examples.b_N2[other]), dataset.pair)
            self.rows.append((ids.astype(np.int32), segments.astype(np.int8), bool(is_negative)))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens, segments, is_negative = self.rows[number]
        return {
            "input_ids": tokens.tolist(),
            "attention_mask": [1] * len(tokens),
            "token_type_ids": segments.tolist(),
            "special_tokens_mask": self.special[tokens].astype(int).tolist(),
            "next_sentence_label": int(is_negative),
        }


def at_random(dataset: MaskedDataset, tokenizer: Tokenizer, rows: int) -> Iterator[Inputs]:
    """Random rows, padded to the longest of each batch, masked anew each time: the Trainer's own way."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    special = {"pad_token": "[PAD]", "mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", **special)
    collator = DataCollatorForLanguageModeling(fast, mlm_probability=MASK_RATE)
    pairs, order = Pairs(dataset, tokenizer), torch.Generator().manual_seed(7)
    while True:
        for batch in DataLoader(pairs, batch_size=rows, shuffle=True, collate_fn=collator, generator=order):
            yield dict(batch)


def contenders(state: TrainState, tokenizer: Tokenizer, rows: int) -> dict[str, Contender]:
    size = state.recipe.model.vocabulary
    models = {
        name: bert(BertForPreTraining, size, share)
        for name, share in (("default", DROPOUT), ("tuned", DROPOUT), ("same", 0.0))
    }
    own = sum(weight.numel() for weight in state.model.parameters())
    for model in models.values():
        count = sum(weight.numel() for weight in model.parameters())
        assert count == own, f"{count:,} weights, qkv has {own:,}"
    flops, random_rows = flops_of(state.recipe.model), at_random(dataset_of(state), tokenizer, rows)

    def other(name: str, batches: Iterator[Inputs], rate: float) -> Contender:
        return Contender(theirs(models[name], batches, rate, state.steps, flops), deterministic=False)

    return {
        "qkv": Contender(ours(state), deterministic=True),
        f"transformers, default, {rows} random rows": other("default", random_rows, THEIR_RATE),
        "transformers, tuned": other("tuned", grouped(state), RATE),
        "transformers, tuned, no attention dropout": other("same", grouped(state), RATE),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--vocab-size", type=int, nargs="+", default=[8000, 30522], help="sizes of the vocabulary")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2, help="optimiser steps of one turn")
    parser.add_argument("--length", type=int, default=128, help="most tokens of a passage")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step, padding counted")
    parser.add_argument("--data", default="movie-reviews", help="a catalogue name or a file")
    options = parser.parse_args()
    runtime.start()
    for size in options.vocab_size:
        data = with_vocabulary(open_data(recipe_for(options.data, options.length, options.tokens, size), say), size)
        state, _ = build_state(data)
        check_steps(state, options.rounds, options.steps)
        tokenizer = data.prepared.tokenizer
        of_text = "" if tokenizer.size == size else f" ({tokenizer.size:,} tokens from the text)"
        print(f"\nvocabulary of {size:,}{of_text}", flush=True)
        things = contenders(state, tokenizer, options.tokens // options.length)
        compare(things, options.rounds, options.steps)
        where_time_goes(things["qkv"], options.steps)


if __name__ == "__main__":
    run_main(main)
