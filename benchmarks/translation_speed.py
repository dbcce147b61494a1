"""Real tokens per second of training a translator: qkv's own loop against `transformers`' Marian and, if it is
installed, JoeyNMT, all at equal size.

    .venv/bin/python benchmarks/translation_speed.py --rounds 12 --steps 4 [--data multi30k-en-de]

All have 3 + 3 layers, 256 wide, 4 heads, feed-forward 1,024, sinusoidal positions, one shared vocabulary of 8,000,
label smoothing 0.1, dropout 0.1 on hidden states, the same threads and allocator settings, and read the same pairs. A
turn is some optimiser steps: collate, forward, backward, clip to norm 1, Adam, learning rate. A token is one of a
source or of a target; padding is never counted.

- qkv: the generator that `qkv train` runs, --tokens tokens a step, deterministic kernels.
- Marian, default: what Seq2SeqTrainer does in a step unless told otherwise, in a plain loop (Trainer itself needs
  accelerate): random rows padded to the longest of the batch by DataCollatorForSeq2Seq, fused AdamW, smoothing by its
  own LabelSmoother. As many rows as make about --tokens tokens.
- Marian, tuned: the same model and loss on the very batches of qkv, grouped by length.
- JoeyNMT: its model, loss, Adam and batch class in the order of its train step (`TrainManager._train_step`), on random
  rows, batches by --tokens as it counts them. It needs an environment of its own, in which this project is installed
  too: pip install --no-deps joeynmt==2.3.0, and importlib_metadata, tensorboard, sentencepiece, sacremoses,
  subword-nmt, pyyaml, packaging, plotly, pandas, matplotlib, datasets beside it.

The share of the peak counts useful work only: 6 FLOPs a weight for each token that a matrix sees (the output layer: for
each target token), 12 x width a pair of query and key; causal attention is counted in full, as all compute it.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
import torch
from table import run_main, say
from torch.utils.data import DataLoader, Dataset
from training_speed import DROPOUT, NEVER, Contender, Inputs, Work, check_steps, compare, where_time_goes
from transformers import (
    DataCollatorForSeq2Seq,
    MarianConfig,
    MarianMTModel,
    PreTrainedTokenizerFast,
    get_linear_schedule_with_warmup,
)
from transformers.trainer_pt_utils import LabelSmoother

from qkv import runtime
from qkv.config import presets
from qkv.config.recipe import ModelConfig, Recipe
from qkv.data.batch import Ints
from qkv.tasks.next_token import NextTokenBatch
from qkv.tasks.translate import TranslationDataset
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.training.build import build_state, open_data
from qkv.training.loop import TrainState, batches_of, train

SMOOTHING, RATE, IGNORED = 0.1, 5e-4, -100


def recipe_for(data: str, tokens: int) -> Recipe:
    never = {"report_every": NEVER, "eval_every": NEVER, "save_every": NEVER}
    return presets.expand(
        {
            "task": "translate",
            "data": {"corpus": data, "length": 128},
            "tokenizer": {"kind": "bpe", "vocab_size": 8000, "lowercase": False},
            "model": {"preset": "small-translator", "vocabulary": 0},
            "train": {
                "batch_tokens": tokens,
                "learning_rate": RATE,
                "dropout": DROPOUT,
                "label_smoothing": SMOOTHING,
                "epochs": 100,
                **never,
            },
        }
    )


def dataset_of(state: TrainState) -> TranslationDataset:
    assert isinstance(state.train, TranslationDataset), "the task is translate"
    return state.train


def useful_flops(config: ModelConfig, targets_B: Ints, sources_B: Ints) -> float:
    """Of forward and backward, for pairs of these lengths."""
    model = config.resolve()
    d, layers, more = model.width, model.layers, model.decoder_layers
    each = 4 * d**2 + 2 * d * model.feedforward
    at_source = layers * each + more * 2 * d**2  # cross-attention: keys and values
    at_target = more * (each + 2 * d**2) + d * model.vocabulary  # queries, output; and the output layer
    seen = layers * np.square(sources_B) + more * (np.square(targets_B) + targets_B * sources_B)
    return float(6 * (at_source * sources_B.sum() + at_target * targets_B.sum()) + 12 * d * seen.sum())


def ours(state: TrainState) -> Callable[[], Work]:
    reports, lengths_N2 = train(state), dataset_of(state).lengths_N2

    def step() -> Work:
        before = state.progress.tokens
        _, examples_B = state.train.sampler.batch(state.progress.step)
        next(reports)
        lengths_B2 = lengths_N2[examples_B]
        work = useful_flops(state.recipe.model, lengths_B2[:, 0], lengths_B2[:, 1])
        return state.progress.tokens - before, work

    return step


def marian(config: ModelConfig) -> Any:
    torch.manual_seed(7)
    made = MarianConfig(
        vocab_size=config.vocabulary, d_model=256, encoder_layers=3, decoder_layers=3, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=1024, decoder_ffn_dim=1024, activation_function="relu",
        dropout=DROPOUT, attention_dropout=0.0, activation_dropout=0.0, scale_embedding=True, pad_token_id=0,
        eos_token_id=3, decoder_start_token_id=0, max_position_embeddings=512,
    )  # fmt: skip
    return MarianMTModel._from_config(made, attn_implementation="sdpa")


def theirs(model: Any, batches: Iterator[Inputs], steps: int, flops: Callable[[Inputs], float]) -> Callable[[], Work]:
    """A training step as Seq2SeqTrainer makes it."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.999), weight_decay=0.0, fused=True)
    schedule, smoother = get_linear_schedule_with_warmup(optimiser, 0, steps), LabelSmoother(epsilon=SMOOTHING)

    def step() -> Work:
        inputs = next(batches)
        model.train()
        labels = inputs["labels"]
        given = {name: value for name, value in inputs.items() if name != "labels"}
        loss = smoother(model(**given), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        model.zero_grad()
        assert torch.isfinite(loss)
        return int(inputs["attention_mask"].sum() + (labels != IGNORED).sum()), flops(inputs)

    return step


def in_their_form(batch: NextTokenBatch) -> Inputs:
    assert batch.source_BS is not None
    keep = torch.ones_like(batch.source_BS) if batch.source_keep_BS is None else batch.source_keep_BS.long()
    labels = torch.full_like(batch.tokens_BL, IGNORED)
    if batch.positions_N is None:
        labels.view(-1).copy_(batch.targets_N)
    else:
        labels.view(-1)[batch.positions_N] = batch.targets_N
    return {
        "input_ids": batch.source_BS,
        "attention_mask": keep,
        "decoder_input_ids": batch.tokens_BL,
        "labels": labels,
    }


def grouped(state: TrainState) -> Iterator[Inputs]:
    """The batches of qkv in the form transformers takes them."""
    for number in itertools.count():
        (batch,) = batches_of(state, number)
        assert isinstance(batch, NextTokenBatch)
        yield in_their_form(batch)


class Rows(Dataset[dict[str, Any]]):
    """Tokenised pairs as a dataset of transformers has them."""

    def __init__(self, dataset: TranslationDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, number: int) -> dict[str, Any]:
        source, target = self.tokens(number)
        end = self.dataset.end
        return {"input_ids": [*source, end], "attention_mask": [1] * (len(source) + 1), "labels": [*target, end]}

    def tokens(self, number: int) -> tuple[list[int], list[int]]:
        store, row = self.dataset.store, int(self.dataset.rows_N[number])
        begin, middle, stop = (int(edge[row]) for edge in store.bounds())
        return store.tokens[begin:middle].tolist(), store.tokens[middle:stop].tolist()


def at_random(dataset: TranslationDataset, tokenizer: Tokenizer, model: Any, rows: int) -> Iterator[Inputs]:
    """Random rows, padded to the longest of each batch: the Trainer's own way."""
    inner = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    fast = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", eos_token="[SEP]")
    collator, order = DataCollatorForSeq2Seq(fast, model=model), torch.Generator().manual_seed(7)
    while True:
        for batch in DataLoader(Rows(dataset), batch_size=rows, shuffle=True, collate_fn=collator, generator=order):
            yield dict(batch)


def joey(state: TrainState, tokens: int) -> Callable[[], Work]:
    """Its own train step, on batches as its token sampler makes them."""
    from joeynmt.batch import Batch
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    config, rows = state.recipe.model, Rows(dataset_of(state))
    special = SimpleNamespace(
        unk_token="<unk>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", sep_token=None, unk_id=0, pad_id=1,
        bos_id=2, eos_id=3, sep_id=None, lang_tags=[],
    )  # fmt: skip
    vocabulary = Vocabulary([f"token{n}" for n in range(config.vocabulary - 4)], special)
    part = {
        "type": "transformer", "num_layers": 3, "num_heads": 4, "hidden_size": 256, "ff_size": 1024, "dropout": DROPOUT,
        "layer_norm": "post", "activation": "relu",
        "embeddings": {"embedding_dim": 256, "scale": True, "dropout": DROPOUT},
    }  # fmt: skip
    settings = {
        "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform", "bias_initializer": "zeros",
        "init_gain": 1.0, "embed_init_gain": 1.0, "tied_embeddings": True, "tied_softmax": True, "encoder": part,
        "decoder": part,
    }  # fmt: skip
    torch.manual_seed(7)
    model = build_model(settings, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", SMOOTHING)
    optimiser = torch.optim.Adam(model.parameters(), lr=RATE)
    batches = _joey_batches(rows, tokens, Batch)

    def step() -> Work:
        batch = next(batches)
        model.train()
        batch.sort_by_src_length()
        loss, _, _, correct = model(return_type="loss", **vars(batch))
        batch.normalize(loss, normalization="tokens").backward()
        correct.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad()
        sources_B = batch.src_length.numpy()
        targets_B = batch.trg_mask.sum((1, 2)).numpy()
        return int(sources_B.sum() + targets_B.sum()), useful_flops(config, targets_B, sources_B)

    return step


def _joey_batches(rows: Rows, tokens: int, make: Any) -> Iterator[Any]:
    """Random pairs, as many as a budget of (longest side x rows) holds, which is how it counts tokens."""
    order = np.random.default_rng(7)
    while True:
        chosen: list[tuple[list[int], list[int]]] = []
        longest = 0
        for number in order.permutation(len(rows)).tolist():
            pair = rows.tokens(number)
            longest = max(longest, len(pair[0]) + 1, len(pair[1]) + 2)
            if chosen and (len(chosen) + 1) * longest > tokens // 2:
                yield _joey_batch(chosen, make)
                chosen, longest = [], max(len(pair[0]) + 1, len(pair[1]) + 2)
            chosen.append(pair)


def _joey_batch(pairs: list[tuple[list[int], list[int]]], make: Any) -> Any:
    """Ids 0 to 3 are its special tokens and never tokens of ours here: ours begin at 5."""
    sources, targets = [[*a, 3] for a, _ in pairs], [[2, *b, 3] for _, b in pairs]
    lengths = torch.tensor([len(one) for one in sources])
    padded = [
        torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in side], batch_first=True, padding_value=1)
        for side in (sources, targets)
    ]
    indices, device = torch.arange(len(pairs)), torch.device("cpu")
    return make(padded[0], lengths, None, padded[1], None, indices, device, pad_index=1, eos_index=3)


def contenders(state: TrainState, tokenizer: Tokenizer, tokens: int) -> dict[str, Contender]:
    config, dataset = state.recipe.model, dataset_of(state)
    models = {name: marian(config) for name in ("default", "tuned")}
    rows = max(1, int(tokens / dataset.lengths_N2.sum(1).mean()))
    random_rows = at_random(dataset, tokenizer, models["default"], rows)

    def flops(inputs: Inputs) -> float:
        targets_B, sources_B = (inputs["labels"] != IGNORED).sum(1), inputs["attention_mask"].sum(1)
        return useful_flops(config, targets_B.numpy(), sources_B.numpy())

    def other(name: str, batches: Iterator[Inputs]) -> Contender:
        return Contender(theirs(models[name], batches, state.steps, flops), deterministic=False)

    found = {
        "qkv": Contender(ours(state), deterministic=True),
        f"Marian, default, {rows} random rows": other("default", random_rows),
        "Marian, tuned": other("tuned", grouped(state)),
    }
    if find_spec("joeynmt"):
        found["JoeyNMT"] = Contender(joey(state, tokens), deterministic=False)
    else:
        print("JoeyNMT is not installed here, so it is left out", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4, help="optimiser steps of one turn")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step, padding counted, both sides")
    parser.add_argument("--data", default="multi30k-en-de", help="a catalogue name, or aligned files: A -> B")
    options = parser.parse_args()
    runtime.start()
    data = open_data(recipe_for(options.data, options.tokens), say)
    state, _ = build_state(data)
    check_steps(state, options.rounds, options.steps)
    things = contenders(state, data.prepared.tokenizer, options.tokens)
    compare(things, options.rounds, options.steps)
    where_time_goes(things["qkv"], options.steps)


if __name__ == "__main__":
    run_main(main)
