"""Real tokens per second of pre-training on hidden words and next sentences: qkv's own loop against `transformers`.

    .venv/bin/python benchmarks/pretraining_speed.py --pieces 8000 30522 --rounds 12 --steps 2 [--data reviews.csv]

All have 4 layers, 256 wide, 4 heads, feed-forward 1,024, BERT's parts and both its heads, a table of --pieces tokens,
the same number of weights, the same threads and allocator settings, and read passages of the same documents, at most
--length tokens each. The pieces are of a WordPiece trained on the text to that size; where the text gives fewer, all
tables still have --pieces rows, and the last ones are never read. A turn is some optimiser steps: collate, hide words,
forward, backward, clip to norm 1, AdamW, learning rate. Padding is never counted as a token.

- qkv: the generator that `qkv train` runs, --tokens tokens a step, dropout 0.1 on hidden states, deterministic kernels.
  New negatives and new hidden words in every epoch.
- default: BertForPreTraining with SDPA and fused AdamW, in a plain loop that does in a step what Trainer does (which
  itself needs accelerate). Pairs are made once, before: our passages with the second texts of the first epoch, with
  their masks of special tokens. Random rows, padded to the longest of the batch and hidden by
  DataCollatorForLanguageModeling (15%: 80% mask, 10% random, 10% as they are), a DataLoader without workers. It has as
  many rows as --tokens holds full passages. Dropout 0.1 on hidden states and on attention weights, as its config has.
- tuned: the same model on the very batches of qkv, grouped by length, its collating and hiding done by qkv. This is
  kinder than anything in `transformers`.
- tuned, no attention dropout: the same with dropout on hidden states only, exactly as in qkv.

Passages of a single sentence have nothing to judge. BertForPreTraining would give NaN for a batch without any pair, so
they are given to it as "next": what it learns is not what is measured.

The share of the peak counts necessary work only: 6 FLOPs a weight for each token that a matrix sees, 12 x width x
length a query for attention. In the last layer, queries, output and feed-forward are needed only where a word is to be
guessed or a pair to be judged; the words' head only where a word is to be guessed. qkv computes just that, BERT of
`transformers` computes all of it everywhere, so its share is small by that measure. The peak is the best 2,048-cubed
torch.mm of the same run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from table import say
from torch.utils.data import DataLoader, Dataset
from training_speed import DROPOUT, NEVER, Contender, Inputs, Work, bert, compare, theirs, where_time_goes
from transformers import BertForPreTraining, DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from qkv import runtime
from qkv.config import presets
from qkv.config.recipe import ModelConfig, Recipe
from qkv.corpus.catalog import cache_folder
from qkv.corpus.corpus import open_corpus
from qkv.data.batch import MaskedBatch
from qkv.data.truncation import framed
from qkv.data.prepare import Prepared, prepare
from qkv.tasks.material import Documents
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.train.build import build_materials, resolved_recipe, form_of, fresh_model
from qkv.train.loop import TrainState, new_state, train

HIDDEN, IGNORED = 0.15, -100
RATE, THEIR_RATE = 5e-4, 5e-5  # the second is the Trainer's own
Ints = NDArray[np.int64]


def recipe_for(data: str, length: int, tokens: int, pieces: int) -> Recipe:
    return presets.expand(
        {
            "task": "fill",
            "data": {"corpus": data, "length": length},
            "tokenizer": {"vocab_size": pieces},
            "model": {"preset": "bert-mini", "vocabulary": 0},
            "train": {
                "batch_tokens": tokens,
                "learning_rate": RATE,
                "dropout": DROPOUT,
                "mask_rate": HIDDEN,
                "report_every": NEVER,
                "eval_every": NEVER,
                "save_every": NEVER,
            },
        }
    )


def learner_for(recipe: Recipe, pieces: int) -> tuple[TrainState, Prepared]:
    """What `qkv train` builds, with a table of `pieces` rows."""
    source = open_corpus(recipe.data, say, recipe.task)
    prepared = prepare(source, recipe.tokenizer, cache_folder(), say, form_of(recipe))
    recipe = resolved_recipe(recipe, source, prepared)
    recipe = recipe.replace(model=recipe.model.replace(vocabulary=pieces).model_dump())
    return new_state(fresh_model(recipe), recipe, *build_materials(recipe, prepared)), prepared


def documents_of(state: TrainState) -> Documents:
    assert isinstance(state.train, Documents), "the task is fill"
    return state.train


def necessary_flops(config: ModelConfig, lengths_B: Ints, guessed_B: Ints, judged_B: Ints) -> float:
    """Of forward and backward, for texts of these lengths with so many words to guess and pairs to judge in each."""
    model = config.resolve()
    d, tokens, words = model.width, int(lengths_B.sum()), int(guessed_B.sum())
    everywhere = (model.layers - 1) * (4 * d**2 + 2 * d * model.feedforward) + 2 * d**2  # last layer: keys and values
    queries_B = guessed_B + judged_B
    last = 2 * d**2 + 2 * d * model.feedforward
    attention = (model.layers - 1) * int(np.square(lengths_B).sum()) + int((queries_B * lengths_B).sum())
    matrices = everywhere * tokens + last * int(queries_B.sum()) + (d**2 + d * model.vocabulary) * words
    return float(6 * (matrices + d**2 * int(judged_B.sum())) + 12 * d * attention)


def ours(state: TrainState) -> Callable[[], Work]:
    reports, lengths = train(state), documents_of(state).words.lengths()
    examples = documents_of(state).words.examples
    pairs = np.diff(examples.b_N2)[:, 0] > 0
    usable = np.diff(examples.a_N2)[:, 0] + np.diff(examples.b_N2)[:, 0]

    def step() -> Work:
        before = state.progress.tokens
        _, examples_B = state.train.sampler.batch(state.progress.step)
        next(reports)
        guessed_B = np.maximum(1, np.round(HIDDEN * usable[examples_B])).astype(np.int64)
        work = necessary_flops(state.recipe.model, lengths[examples_B], guessed_B, pairs[examples_B].astype(np.int64))
        return state.progress.tokens - before, work

    return step


def flops_of(config: ModelConfig) -> Callable[[Inputs], float]:
    """The same count for a batch as transformers has it."""

    def flops(inputs: Inputs) -> float:
        lengths_B, guessed_B = inputs["attention_mask"].sum(1), (inputs["labels"] != IGNORED).sum(1)
        judged_B = torch.ones_like(lengths_B)
        return necessary_flops(config, lengths_B.numpy(), guessed_B.numpy(), judged_B.numpy())

    return flops


def grouped(material: Documents) -> Iterator[Inputs]:
    """The batches of qkv in the form transformers takes them."""
    number = 0
    while True:
        _, (batch,) = material.step(number)
        yield in_their_form(batch)
        number += 1


def in_their_form(batch: MaskedBatch) -> Inputs:
    tokens_BL = batch.tokens_BL
    labels = torch.full_like(tokens_BL, IGNORED)
    labels.view(-1)[batch.positions_N] = batch.targets_N
    follows_B = torch.zeros(len(tokens_BL), dtype=torch.long)
    follows_B[batch.pairs_M] = batch.negatives_M
    return {
        "input_ids": tokens_BL,
        "attention_mask": torch.ones_like(tokens_BL) if batch.keep_BL is None else batch.keep_BL.long(),
        "token_type_ids": torch.zeros_like(tokens_BL) if batch.segments_BL is None else batch.segments_BL,
        "labels": labels,
        "next_sentence_label": follows_B,
    }


class Pairs(Dataset[dict[str, Any]]):
    """Pairs made once, tokenised, as a data set of transformers has them."""

    def __init__(self, material: Documents, tokenizer: Tokenizer) -> None:
        words, self.special = material.words, np.array(tokenizer.specials())
        self.rows: list[tuple[NDArray[np.int32], int, bool]] = []  # tokens, where the second text begins, a stranger's
        for number, ((a, a_end), (b, b_end)) in enumerate(
            zip(words.examples.a_N2.tolist(), words.examples.b_N2.tolist(), strict=True)
        ):
            first = words.store.tokens[a:a_end].astype(np.int64)
            if b == b_end:
                one, is_stranger = framed.of(first, None, words.single), False
            else:
                other, judged = words.negatives.second(number, 0)
                is_stranger = bool(judged)
                second = words.store.tokens[slice(*words.examples.b_N2[other])].astype(np.int64)
                one = framed.of(first, second, words.pair)
            self.rows.append((one.tokens_L.astype(np.int32), one.second, is_stranger))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens, second, is_stranger = self.rows[number]
        return {
            "input_ids": tokens.tolist(),
            "attention_mask": [1] * len(tokens),
            "token_type_ids": [0] * second + [1] * (len(tokens) - second),
            "special_tokens_mask": self.special[tokens].astype(int).tolist(),
            "next_sentence_label": int(is_stranger),
        }


def at_random(material: Documents, tokenizer: Tokenizer, rows: int) -> Iterator[Inputs]:
    """Random rows, padded to the longest of each batch, words hidden anew each time: the Trainer's own way."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    special = {"pad_token": "[PAD]", "mask_token": "[MASK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", **special)
    collator = DataCollatorForLanguageModeling(fast, mlm_probability=HIDDEN)
    pairs, order = Pairs(material, tokenizer), torch.Generator().manual_seed(7)
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
    material, flops = documents_of(state), flops_of(state.recipe.model)
    random_rows = at_random(material, tokenizer, rows)

    def other(name: str, batches: Iterator[Inputs], rate: float) -> Contender:
        return Contender(theirs(models[name], batches, rate, state.steps, flops), deterministic=False)

    return {
        "qkv": Contender(ours(state), deterministic=True),
        f"transformers, default, {rows} random rows": other("default", random_rows, THEIR_RATE),
        "transformers, tuned": other("tuned", grouped(material), RATE),
        "transformers, tuned, no attention dropout": other("same", grouped(material), RATE),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pieces", type=int, nargs="+", default=[8000, 30522], help="sizes of the table of tokens")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=2, help="optimiser steps of one turn")
    parser.add_argument("--length", type=int, default=128, help="most tokens of a passage")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step, padding counted")
    parser.add_argument("--data", default="movie-reviews", help="a catalogue name or a file")
    asked = parser.parse_args()
    runtime.start()
    for pieces in asked.pieces:
        state, prepared = learner_for(recipe_for(asked.data, asked.length, asked.tokens, pieces), pieces)
        assert state.steps > (asked.rounds + 4) * asked.steps, "the learning would end before the measuring"
        found = prepared.tokenizer.size
        print(f"\n{pieces:,} pieces" + ("" if found == pieces else f" ({found:,} of them from the text)"), flush=True)
        things = contenders(state, prepared.tokenizer, asked.tokens // asked.length)
        compare(things, asked.rounds, asked.steps)
        where_time_goes(things["qkv"], asked.steps)


if __name__ == "__main__":
    main()
