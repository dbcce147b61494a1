"""A batch is a function of its number: each example once an epoch, little padding, no state."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qkv.data.sampler import GROWTH, BatchSampler

Ints = NDArray[np.int64]
LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=200)


def ints(values: list[int]) -> Ints:
    return np.array(values, np.int64)


def epoch_of(sampler: BatchSampler, epoch: int) -> list[Ints]:
    found = [sampler.batch(epoch * sampler.batches + k) for k in range(sampler.batches)]
    assert {number for number, _ in found} == {epoch}
    return [examples for _, examples in found]


def review_lengths(n: int) -> Ints:
    """As reviews have them, cut at 512: a median of 175 tokens and a long tail."""
    lengths = np.exp(np.random.Generator(np.random.PCG64(1)).normal(np.log(175), 0.7, n))
    return np.clip(lengths, 10, 512).astype(np.int64)


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(1, 5000), st.integers(0, 2**63 - 1), st.integers(0, 3))
def test_each_example_comes_once_an_epoch_within_the_budget(
    lengths: list[int], budget: int, seed: int, epoch: int
) -> None:
    sampler = BatchSampler(ints(lengths), budget, seed)
    batches = epoch_of(sampler, epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) >= 1
        assert len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= budget


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.integers(1, 5000), st.integers(0, 2**63 - 1), st.data())
def test_a_batch_alone_is_the_batch_in_sequence(
    lengths: list[int], budget: int, seed: int, data: st.DataObject
) -> None:
    sampler = BatchSampler(ints(lengths), budget, seed)
    sequence = [sampler.batch(n) for n in range(3 * sampler.batches)]
    for number in data.draw(st.lists(st.integers(0, len(sequence) - 1), min_size=1, max_size=5)):
        epoch, examples = BatchSampler(ints(lengths), budget, seed).batch(number)
        assert epoch == sequence[number][0] == number // sampler.batches
        assert examples.tolist() == sequence[number][1].tolist()
        assert sampler.batch(number)[1].tolist() == examples.tolist()  # and backwards, by one that has gone on


def test_these_batches_never_change() -> None:
    """The order is part of what makes a run exact: another one would be another training."""
    sampler = BatchSampler(ints([5, 5, 5, 9, 9, 30, 2, 2]), 20, seed=7)
    assert [sampler.batch(n)[1].tolist() for n in range(8)] == [
        [4], [5], [7, 6, 2, 0], [1, 3],
        [6, 7, 0, 2], [3], [1, 4], [5],
    ]  # fmt: skip


def test_batches_are_cut_by_hand() -> None:
    """Sorted: 2 2 5 5 5 9 9 30. Of 20 tokens: 2 2 5 5 make 4 rows of 5, then 5 9 make 2 of 9, then 9 alone since 2 of
    30 are too many, and 30 alone since it is more than the budget."""
    sampler = BatchSampler(ints([2, 2, 5, 5, 5, 9, 9, 30]), 20, seed=1)
    assert [batch.tolist() for batch in sampler.in_order()] == [[0, 1, 2, 3], [4, 5], [6], [7]]
    assert sampler.batches == 4


def test_epochs_and_seeds_differ() -> None:
    lengths = review_lengths(2000)
    sampler, other = BatchSampler(lengths, 4096, seed=1), BatchSampler(lengths, 4096, seed=2)
    first, second, foreign = epoch_of(sampler, 0), epoch_of(sampler, 1), epoch_of(other, 0)
    assert len(first) == len(second) == len(foreign) == sampler.batches
    for one, two in ((first, second), (first, foreign)):
        alike = {tuple(sorted(batch)) for batch in one} & {tuple(sorted(batch)) for batch in two}
        assert len(alike) <= 2  # who stands beside whom is new
        sizes = [[int(lengths[batch].max()) for batch in batches] for batches in (one, two)]
        assert sizes[0] != sizes[1]  # and so is the order of the batches
        assert sizes[0] != sorted(sizes[0])


def test_long_and_short_texts_come_mixed() -> None:
    """Batches are not in the order of their lengths: the two halves of an epoch are alike."""
    lengths = review_lengths(20_000)
    sizes = [lengths[batch].mean() for batch in epoch_of(BatchSampler(lengths, 4096, seed=3), 0)]
    half = len(sizes) // 2
    assert abs(np.mean(sizes[:half]) - np.mean(sizes[half:])) < 30


def test_little_is_padding_and_the_budget_is_used() -> None:
    lengths = review_lengths(25_000)
    sampler = BatchSampler(lengths, 4096, seed=3)
    batches = epoch_of(sampler, 0)
    padded = sum(len(batch) * int(lengths[batch].max()) for batch in batches)
    assert 1 - lengths.sum() / padded < 0.02
    assert padded / (4096 * len(batches)) > 0.9


def test_lengths_of_one_batch_are_near_each_other() -> None:
    lengths = np.repeat(np.arange(50, 500), 20)
    for batch in epoch_of(BatchSampler(lengths, 2048, seed=3), 0):
        assert lengths[batch].max() <= lengths[batch].min() * GROWTH**2 + 1


@pytest.mark.parametrize("budget", [4096, 10])
def test_three_million_equal_lengths(budget: int) -> None:
    n = 3_000_000 if budget == 4096 else 100_000
    sampler = BatchSampler(np.full(n, 3, np.int64), budget, seed=1)
    assert sampler.batches == -(-n // (budget // 3))
    seen = np.zeros(n, np.int64)
    for batch in epoch_of(sampler, 5):
        seen[batch] += 1
    assert seen.min() == seen.max() == 1


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.integers(1, 5000))
def test_in_order_is_all_once_shortest_first(lengths: list[int], budget: int) -> None:
    sampler = BatchSampler(ints(lengths), budget, seed=1)
    batches = sampler.in_order()
    assert len(batches) == sampler.batches
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for before, after in pairwise(batches):  # but for lengths of one cell
        assert max(lengths[n] for n in before) <= GROWTH * min(lengths[n] for n in after) + 1
    assert all(len(batch) == 1 or len(batch) * max(lengths[n] for n in batch) <= budget for batch in batches)


def test_nothing_is_no_batches() -> None:
    sampler = BatchSampler(ints([]), 4096, seed=1)
    assert sampler.batches == 0
    assert sampler.in_order() == []
