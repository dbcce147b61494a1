"""Proven here: random bits are a pure function of their key, the same in every process and for ever (golden values),
different for different keys, and good enough that neighbouring keys look unrelated.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import qkv
from qkv import streams
from qkv.streams import Purpose, number_of, permutation, seed_for, stream

Key = tuple[int, Purpose, int, int, int]
WORD = st.integers(0, 2**63 - 1)
KEYS = st.tuples(WORD, st.sampled_from(get_args(Purpose)), WORD, WORD, WORD)

# Part of the format of a run: a stored run can be continued only while these stay. Never edit a line, only add.
GOLDEN: dict[Key, tuple[list[int], int, list[int]]] = {
    (7, "weights", 0, 0, 0): (
        [0xE1E9589FBF7F6F1D, 0x5E794BDA66C92F56, 0x845EADF36D56F2F7],
        3790166175,
        [3, 9, 1, 6, 2, 5, 4, 8, 0, 7],
    ),
    (7, "dropout", 3, 2, 0): (
        [0x176FCCFB5680CAB8, 0x3C824AEF00417D45, 0x84E1E5BCA929BDF3],
        393202939,
        [0, 5, 1, 7, 8, 2, 9, 4, 6, 3],
    ),
    (0, "dropout", 1, 0, 0): (
        [0x99E64F0F7BE81372, 0xBE9C27E440ECD33C, 0x286EE309BA397F3B],
        2582007567,
        [2, 7, 5, 4, 0, 8, 1, 9, 3, 6],
    ),
    (2**63 - 1, "weights", 5, 4, 3): (
        [0x32B72ACECDEE072C, 0x0FD4FBC6EEFAA943, 0x9D536793E517C811],
        850864846,
        [1, 0, 4, 6, 9, 7, 8, 3, 2, 5],
    ),
}


def bits(key: Key, n: int = 4) -> list[int]:
    return [int(word) for word in stream(*key).random_raw(n)]


@pytest.mark.parametrize("key", GOLDEN)
def test_golden_values(key: Key) -> None:
    raw, seed, order = GOLDEN[key]
    assert bits(key, 3) == raw
    assert seed_for(*key) == seed
    assert permutation(stream(*key), 10).tolist() == order


def test_golden_numbers_of_names_and_purposes() -> None:
    assert number_of("") == 0
    assert number_of("embedding.table_VD") == 3039699406
    assert number_of("encoder.blocks.0.attention.project.weight") == 3135584786
    assert number_of("é") == 235179326
    purposes: dict[Any, int] = dict(streams._NUMBER)
    assert purposes.items() >= {"weights": 1, "dropout": 2}.items()
    assert set(purposes) == set(get_args(Purpose))
    assert len(set(purposes.values())) == len(purposes)


def test_a_fresh_process_gives_the_same() -> None:
    """Python salts `hash` in every process; nothing here may depend on it."""
    code = (
        "from qkv.streams import *\n"
        "print([int(w) for w in stream(7, 'dropout', 3, 2, 5).random_raw(4)], seed_for(7, 'weights', 1),\n"
        "      permutation(stream(9, 'weights', 2), 20).tolist(), number_of('a name'))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(qkv.__file__).parents[1])}
    here = (
        f"{bits((7, 'dropout', 3, 2, 5))} {seed_for(7, 'weights', 1)} "
        f"{permutation(stream(9, 'weights', 2), 20).tolist()} {number_of('a name')}"
    )
    for salt in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**environment, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == here


@settings(max_examples=200, deadline=None)
@given(KEYS, KEYS)
def test_same_key_same_bits_and_other_key_other_bits(one: Key, other: Key) -> None:
    assert bits(one) == bits(one)
    assert (bits(one) == bits(other)) == (one == other)


@pytest.mark.parametrize("place", [0, 2, 3, 4], ids=["seed", "step", "part", "index"])
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**53, 2**62, 2**63 - 2])
def test_each_word_of_a_key_counts_to_its_last_bit(place: int, value: int) -> None:
    """Also beyond 2^53, where a detour over floats would lose it."""

    def key(number: int) -> Key:
        words: list[Any] = [7, "weights", 11, 13, 17]
        words[place] = number
        return tuple(words)

    assert bits(key(value)) != bits(key(value + 1))


def test_the_words_of_a_key_are_not_interchangeable() -> None:
    keys: list[Key] = [
        (seed, p, a, b, c) for p in get_args(Purpose) for seed, a, b, c in itertools.permutations(range(4))
    ]
    assert len({tuple(bits(key)) for key in keys}) == len(keys)


def test_a_small_grid_of_keys_never_overlaps() -> None:
    """Not in the first words only: no word of one stream turns up in another."""
    grid = itertools.product(range(3), get_args(Purpose), range(3), range(3), range(3))
    words = np.concatenate([stream(*key).random_raw(64) for key in grid])
    assert len(np.unique(words)) == len(words) == 3**4 * len(get_args(Purpose)) * 64


def test_epoch_five_needs_no_epochs_before_it() -> None:
    alone = stream(7, "weights", 5).random_raw(100)
    for epoch in range(1, 5):
        stream(7, "weights", epoch).random_raw(10 * epoch)
    np.testing.assert_array_equal(stream(7, "weights", 5).random_raw(100), alone)


def test_reading_in_pieces_is_reading_at_once() -> None:
    source = stream(7, "dropout", 5)
    pieces = np.concatenate([source.random_raw(n) for n in (1, 2, 3, 5, 89)])
    np.testing.assert_array_equal(pieces, stream(7, "dropout", 5).random_raw(100))


def test_numpys_own_state_is_left_alone() -> None:
    before = repr(np.random.get_state())
    permutation(stream(7, "weights"), 100)
    assert repr(np.random.get_state()) == before


@settings(max_examples=100, deadline=None)
@given(KEYS)
def test_a_seed_is_a_32_bit_number(key: Key) -> None:
    seed = seed_for(*key)
    assert type(seed) is int
    assert 0 <= seed < 2**32


def test_seeds_use_all_32_bits() -> None:
    seeds = [seed_for(7, "dropout", step) for step in range(200)]
    assert len(set(seeds)) == 200
    assert np.bitwise_or.reduce(seeds) == 2**32 - 1
    assert np.bitwise_and.reduce(seeds) == 0


@settings(max_examples=100, deadline=None)
@given(KEYS, st.integers(0, 500))
def test_a_permutation_holds_each_number_once(key: Key, n: int) -> None:
    order = permutation(stream(*key), n)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(np.sort(order), np.arange(n))


def _chi_square(counts: np.ndarray[Any, Any]) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


def _bound(bins: int) -> float:
    """Five standard deviations above the mean of chi-square: about one false alarm in a million."""
    return bins - 1 + 5 * (2 * (bins - 1)) ** 0.5


@pytest.mark.parametrize("place", [0, 2, 3, 4], ids=["seed", "step", "part", "index"])
def test_neighbouring_keys_look_unrelated(place: int) -> None:
    """The first word of 4,096 neighbours: flat bytes, and half of the bits change from one to the next."""

    def first(number: int) -> int:
        words: list[Any] = [7, "dropout", 0, 0, 0]
        words[place] = number
        return int(stream(*words).random_raw())

    words = np.array([first(number) for number in range(4096)], dtype=np.uint64)
    counts = np.bincount(words.view(np.uint8), minlength=256)
    assert _chi_square(counts) < _bound(256)
    flipped = np.bitwise_count(words[1:] ^ words[:-1]).astype(float)
    assert abs(flipped.mean() - 32) < 5 * 4 / 4095**0.5
    assert abs(flipped.var() - 16) < 5 * (2 * 16**2 / 4095) ** 0.5


def test_every_order_is_equally_likely() -> None:
    orders = [tuple(permutation(stream(7, "weights", epoch), 4).tolist()) for epoch in range(4800)]
    counts = np.array([orders.count(order) for order in itertools.permutations(range(4))])
    assert counts.sum() == 4800
    assert _chi_square(counts) < _bound(24)
