"""Forward, and forward with backward, of a 4-layer 256-wide encoder against `transformers` BERT at equal shapes.

    make bench        (or: .venv/bin/python benchmarks/encoder_speed.py --rounds 20)

Both have the same parts (BERT's), the same number of parameters, fused attention (SDPA), the same threads and allocator
settings; they differ in their code alone. Dropout, where on, is on hidden states only, as in our recipes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from interleave import interleaved, ratio
from transformers import BertConfig, BertModel

from qkv import runtime
from qkv.config import presets
from qkv.model import build_model

SHAPES = [(64, 32), (16, 128), (4, 512)]  # sequences x tokens: 2,048 tokens each


def theirs(dropout: float) -> torch.nn.Module:
    config = BertConfig(
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=0.0,
    )
    return BertModel._from_config(config, attn_implementation="sdpa")


def ours(dropout: float) -> torch.nn.Module:
    return build_model(presets.load("bert-mini"), dropout=dropout)


def passes(model: torch.nn.Module, tokens: torch.Tensor, train: bool) -> Callable[[], None]:
    """One forward pass (evaluation) or one forward and backward pass (training)."""

    def hidden() -> torch.Tensor:
        answer = model(tokens)
        return answer if isinstance(answer, torch.Tensor) else answer.last_hidden_state

    def forward() -> None:
        with torch.no_grad():
            hidden()

    def both() -> None:
        model.zero_grad(set_to_none=True)
        hidden().square().mean().backward()

    model.train(train)
    return both if train else forward


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    runtime.start()
    print("| pass | dropout | shape | transformers ms | qkv ms | qkv is faster by (quartiles) |")
    print("|---|---|---|---|---|---|")
    for train, dropout in ((False, 0.0), (True, 0.0), (True, 0.1)):
        them, us = theirs(dropout), ours(dropout)
        assert sum(p.numel() for p in them.parameters()) == sum(p.numel() for p in us.parameters())
        for batch, length in SHAPES:
            tokens = torch.randint(0, 30522, (batch, length))
            turns = {"theirs": passes(them, tokens, train), "ours": passes(us, tokens, train)}
            times = interleaved(turns, rounds)
            low, middle, high = ratio(times["theirs"], times["ours"])
            slow, fast = (1000 * sorted(times[name])[rounds // 2] for name in ("theirs", "ours"))
            kind = "forward + backward" if train else "forward"
            row = [kind, dropout, f"{batch} x {length}", f"{slow:.1f}", f"{fast:.1f}"]
            print("|", *(f"{cell} |" for cell in [*row, f"{middle:.2f} ({low:.2f} to {high:.2f})"]))


if __name__ == "__main__":
    main()
