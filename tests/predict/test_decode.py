"""Decoding as a pure function of a step function, on a hand-drawn chain."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv.predict.decode import greedy

END = 3
CHAIN = torch.tensor([[0.1, 0.6, 0.2, 0.1], [0.1, 0.1, 0.7, 0.1], [0.2, 0.1, 0.1, 0.6], [0.25, 0.25, 0.25, 0.25]]).log()


def step(tokens_N: Tensor, origin_N: Tensor, cache: list[list[int]]) -> tuple[Tensor, list[list[int]]]:
    """A Markov chain whose cache is each row's history, to see that rows are continued and not mixed up."""
    history = [[*cache[row], token] for row, token in zip(origin_N.tolist(), tokens_N.tolist(), strict=True)]
    return CHAIN[tokens_N], history


def run(first: list[int], limit: int, end: tuple[int, ...] = (END,), banned: tuple[int, ...] = ()) -> list[list[int]]:
    given: list[list[int]] = [[] for _ in first]
    for chosen in greedy(step, CHAIN[first], [[token] for token in first], end=end, limit=limit, banned=banned):
        for row, token in zip(chosen.rows_N.tolist(), chosen.tokens_N.tolist(), strict=True):
            given[row].append(token)
    return given


def test_the_most_probable_token_each_time_until_the_end() -> None:
    assert run([0], 9) == [[1, 2, END]]


def test_rows_end_on_their_own() -> None:
    assert run([2, 0, 1], 9) == [[END], [1, 2, END], [2, END]]


def test_the_limit_and_no_end() -> None:
    assert run([0], 2) == [[1, 2]]
    assert run([0], 5, end=()) == [[1, 2, 3, 0, 1]]


def test_banned_ids_are_never_generated() -> None:
    assert run([0], 3, banned=(1,)) == [[2, END]]


def test_log_probabilities_add_up() -> None:
    chosen = list(greedy(step, CHAIN[[0]], [[0]], end=(END,), limit=9))
    assert math.isclose(sum(c.log_probabilities_N.item() for c in chosen), math.log(0.6 * 0.7 * 0.6), rel_tol=1e-6)


def test_rows_may_stop_before_their_end_token() -> None:
    """How a stop string ends a row: the others go on."""
    steps = list(greedy(step, CHAIN[[0, 0]], [[0], [0]], end=(END,), limit=9, stop=lambda chosen: chosen.rows_N == 1))
    assert [chosen.rows_N.tolist() for chosen in steps] == [[0, 1], [0], [0]]
