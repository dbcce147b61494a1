"""Beam search on chains written by hand or drawn at random, against exhaustive search."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from qkv.predict.decode import Hypothesis, Step, beam, greedy, length_penalty, ranked

ALPHAS = (0.0, 0.6, 1.5)
Past = tuple[tuple[int, ...], ...]
ONE: Past = ((0,),)


def search(
    step: Step[Past], first_TV: Tensor, *, width: int, end: int, limit: int, alpha: float = 0.6, best: int = 1,
    early: bool = True,
) -> list[list[Hypothesis]]:  # fmt: skip
    begin: Past = tuple((row,) for row in range(len(first_TV)))
    trace = beam(step, first_TV, begin, width=width, end=(end,), limit=limit, alpha=alpha, best=best, early=early)
    return ranked(trace, texts=len(first_TV), limit=limit, alpha=alpha, best=best)


def chain(scores: Callable[[tuple[int, ...]], Tensor]) -> Step[Past]:
    """A step function whose scores depend on a row's whole history, which also shows whether rows are mixed up."""

    def step(tokens_N: Tensor, origin_N: Tensor, cache: Past) -> tuple[Tensor, Past]:
        pasts = tuple((*cache[row], token) for row, token in zip(origin_N.tolist(), tokens_N.tolist(), strict=True))
        return torch.stack([scores(past) for past in pasts]), pasts

    return step


def counted(step: Step[Past]) -> tuple[Step[Past], list[int]]:
    """The same step function, and a list of how many rows it was asked for each time."""
    made: list[int] = []

    def counting(tokens_N: Tensor, origin_N: Tensor, cache: Past) -> tuple[Tensor, Past]:
        made.append(len(tokens_N))
        return step(tokens_N, origin_N, cache)

    return counting, made


def as_text(scores: Callable[[tuple[int, ...]], Tensor], text: int) -> Callable[[tuple[int, ...]], Tensor]:
    """The scores of one text, whatever its number."""
    return lambda past: scores((text, *past[1:]))


def random_scores(seed: int, size: int, sharpness: float) -> Callable[[tuple[int, ...]], Tensor]:
    """Scores that are a function of the history alone: the first number of it is the text."""

    @functools.cache
    def scores(past: tuple[int, ...]) -> Tensor:
        key = hash((seed, past)) % 2**31
        return sharpness * torch.randn(size, generator=torch.Generator().manual_seed(key))

    return scores


def exhaustive(
    scores: Callable[[tuple[int, ...]], Tensor], text: int, size: int, end: int, limit: int, alpha: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Every answer there is, best first."""
    found = []
    for length in range(1, limit + 1):
        for tokens in itertools.product(range(size), repeat=length):
            if end in tokens[:-1] or (tokens[-1] != end and length < limit):
                continue
            parts = (scores((text, *tokens[:n])).log_softmax(-1)[token].item() for n, token in enumerate(tokens))
            found.append((sum(parts) / length_penalty(length, alpha), tokens))
    return sorted(found, reverse=True)


def test_greedy_takes_a_and_ends_with_7_percent_where_a_beam_finds_27() -> None:
    """A (0.7) is followed by ten tokens of 0.1 each, B (0.3) by one of 0.9."""
    a, b, end = 10, 11, 12
    first = torch.full((13,), -torch.inf)
    first[a], first[b] = math.log(0.7), math.log(0.3)
    after_a, after_b = torch.full((13,), -torch.inf), torch.full((13,), -torch.inf)
    after_a[:10], after_b[0], after_b[1] = math.log(0.1), math.log(0.9), math.log(0.1)
    last = torch.full((13,), -torch.inf)
    last[end] = 0.0
    step = chain(lambda past: {a: after_a, b: after_b}.get(past[-1], last))
    taken = list(greedy(step, first[None], ONE, end=(end,), limit=9))
    assert math.isclose(math.exp(sum(one.log_probabilities_N.item() for one in taken)), 0.07, rel_tol=1e-6)
    (answer,) = search(step, first[None], width=2, end=end, limit=9)[0]
    assert answer.tokens == (b, 0, end)
    assert math.isclose(math.exp(answer.log_probability), 0.27, rel_tol=1e-6)


def test_a_beam_of_one_is_greedy() -> None:
    for seed in range(50):
        scores = random_scores(seed, 7, 2.0)
        first = torch.stack([scores((text,)) for text in range(3)])
        begin: Past = tuple((text,) for text in range(3))
        given: list[list[int]] = [[], [], []]
        for chosen in greedy(chain(scores), first, begin, end=(6,), limit=8):
            for row, token in zip(chosen.rows_N.tolist(), chosen.tokens_N.tolist(), strict=True):
                given[row].append(token)
        for alpha in ALPHAS:
            found = search(chain(scores), first, width=1, end=6, limit=8, alpha=alpha)
            assert [list(one[0].tokens) for one in found] == given


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_beam_as_wide_as_all_answers_finds_the_best_of_all(alpha: float) -> None:
    size, limit, end = 4, 4, 3
    for seed in range(5):
        scores = random_scores(seed, size, 1.5)
        first = torch.stack([scores((text,)) for text in range(2)])
        found = search(chain(scores), first, width=size**limit, end=end, limit=limit, alpha=alpha, best=6)
        for text in range(2):
            wanted = exhaustive(scores, text, size, end, limit, alpha)[:6]
            assert [one.tokens for one in found[text]] == [tokens for _, tokens in wanted]
            assert [one.score for one in found[text]] == pytest.approx([score for score, _ in wanted], rel=1e-6)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_stopping_early_returns_what_running_to_the_end_returns(alpha: float) -> None:
    """1,000 random chains, every width to 5, some with several answers; and it does stop early."""
    size, limit, end, saved = 5, 7, 4, 0
    for seed in range(1000):
        scores = random_scores(seed, size, 0.5 + seed % 7)
        first = torch.stack([scores((text,)) for text in range(2)])
        width = 1 + seed % 5
        best = 1 + seed % min(3, width)
        step, made = counted(chain(scores))
        stopped = search(step, first, width=width, end=end, limit=limit, alpha=alpha, best=best)
        so_far = len(made)
        whole = search(step, first, width=width, end=end, limit=limit, alpha=alpha, best=best, early=False)
        assert stopped == whole
        saved += sum(made[:so_far]) < sum(made[so_far:])
    assert saved > 100


def test_each_text_is_searched_as_if_alone() -> None:
    for seed in range(20):
        scores = random_scores(seed, 6, 3.0)
        first = torch.stack([scores((text,)) for text in range(5)])
        together = search(chain(scores), first, width=3, end=5, limit=6, best=2)
        for text in range(5):
            alone = chain(as_text(scores, text))
            assert search(alone, first[text : text + 1], width=3, end=5, limit=6, best=2)[0] == together[text]


def test_a_wider_beam_than_there_are_answers() -> None:
    """Two tokens and an end, and outputs of one token: three answers, whatever the width."""
    first = torch.tensor([[0.5, 0.3, 0.2]]).log()
    found = search(chain(lambda past: first[0]), first, width=50, end=2, limit=1, best=50)
    assert [one.tokens for one in found[0]] == [(0,), (1,), (2,)]
    assert [one.ended for one in found[0]] == [False, False, True]


def test_impossible_tokens_are_never_held() -> None:
    first = torch.tensor([[0.0, -torch.inf, -torch.inf]])
    steps = list(beam(chain(lambda past: first[0]), first, ONE, width=3, end=(2,), limit=3))
    assert [one.tokens_M.tolist() for one in steps] == [[0], [0], [0]]
    steps = list(beam(chain(lambda past: first[0]), torch.zeros(1, 3), ONE, width=3, end=(2,), limit=1, banned=(0,)))
    assert sorted(steps[0].tokens_M.tolist()) == [1, 2]
    assert steps[0].log_probabilities_M.exp().tolist() == pytest.approx([0.5, 0.5])


def test_the_trace_holds_every_live_and_ended_hypothesis() -> None:
    """By hand: two texts of the same chain, which ends with 0.4 after any token."""
    row = torch.tensor([0.5, 0.1, 0.4]).log()
    steps = list(beam(chain(lambda past: row), row.expand(2, -1), ONE + ONE, width=2, end=(2,), limit=3, alpha=0.0))
    assert steps[0].texts_M.tolist() == [0, 0, 1, 1]
    assert steps[0].tokens_M.tolist() == [0, 2, 0, 2]
    assert steps[0].ended_M.tolist() == [False, True, False, True]
    assert len(steps) == 2, "0.5 x 0.4 cannot come above 0.4, but 0.5 could have"
    assert steps[1].tokens_M.tolist() == [0, 0], "the ended one took its place with it"
    assert steps[1].parents_M.tolist() == [0, 2]
    assert steps[1].log_probabilities_M.exp().tolist() == pytest.approx([0.25, 0.25])


def test_the_length_penalty_of_the_paper() -> None:
    assert length_penalty(1, 0.6) == 1.0
    assert length_penalty(7, 1.0) == 2.0
    assert math.isclose(length_penalty(19, 0.5), 2.0)
    assert length_penalty(100, 0.0) == 1.0
