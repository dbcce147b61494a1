"""Of the tokens that are not special a share is chosen; of ten, eight are masked, one is replaced, one stays.

Bounds are five standard deviations of what is counted: a fair draw goes beyond them once in a million times.
"""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qkv.tasks.masking import Masking
from qkv.tasks.task import EVALUATION

Ints = NDArray[np.int64]
VOCABULARY, MASK = 53, 4
SPECIAL = np.isin(np.arange(VOCABULARY), [0, 1, 2, 3, MASK, 31])  # one of them in the middle of the others
PLAIN = np.flatnonzero(~SPECIAL)
INSIDE = np.arange(VOCABULARY) >= 40
SIMPLE = Masking(0.15, MASK, SPECIAL, None, seed=7)
WHOLE = replace(SIMPLE, inside_V=INSIDE)
TEXTS = st.lists(st.integers(0, VOCABULARY - 1), max_size=60)


def texts(number: int, length: int, seed: int = 1) -> list[Ints]:
    """Texts of random tokens between special tokens, with an unknown one here and there."""
    dice = np.random.Generator(np.random.PCG64(seed))
    found = dice.choice(PLAIN, (number, length))
    found[dice.random((number, length)) < 0.02] = 1
    found[:, 0], found[:, length // 2], found[:, -1] = 2, 3, 3
    return list(found)


def within(count: float, of: int, share: float) -> bool:
    return abs(count - of * share) <= 5 * (of * share * (1 - share)) ** 0.5


def gathered(masking: Masking, some: list[Ints]) -> tuple[Ints, Ints, int]:
    """The original and the new tokens at all positions chosen, and how many could have been."""
    true, now = list[Ints](), list[Ints]()
    for example, tokens in enumerate(some):
        masked, positions = masking(tokens, 0, example)
        true.append(tokens[positions])
        now.append(masked[positions])
    return np.concatenate(true), np.concatenate(now), sum(int((~SPECIAL[tokens]).sum()) for tokens in some)


# --- how many, and what becomes of them


@pytest.mark.parametrize("length", [50, 1000])
@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_the_rate_and_eight_one_one_on_a_hundred_thousand_tokens(rate: float, length: int) -> None:
    true, now, usable = gathered(replace(SIMPLE, rate=rate), texts(100_000 // length, length))
    chosen = len(true)
    assert within(chosen, usable, rate)
    same = 1 / len(PLAIN)  # a random token may be the original one
    assert within(int(np.count_nonzero(now == MASK)), chosen, 0.8)
    assert within(int(np.count_nonzero(now == true)), chosen, 0.1 * (1 + same))
    assert within(int(np.count_nonzero((now != MASK) & (now != true))), chosen, 0.1 * (1 - same))


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_random_tokens_are_uniform(rate: float) -> None:
    true, now, _ = gathered(replace(SIMPLE, rate=rate), texts(100, 1000))
    replaced = now[(now != MASK) & (now != true)]
    assert not SPECIAL[replaced].any()
    counts = np.bincount(replaced, minlength=VOCABULARY)[PLAIN]
    expected = len(replaced) / len(PLAIN)
    chi = float(((counts - expected) ** 2 / expected).sum())
    assert abs(chi - len(PLAIN)) < 5 * (2 * len(PLAIN)) ** 0.5
    assert counts[0] > expected / 2  # the first and the last token too
    assert counts[-1] > expected / 2


def test_every_position_is_chosen_equally_often() -> None:
    tokens = np.concatenate([[2], PLAIN[:20], [3]])
    masking, draws = replace(SIMPLE, rate=0.3), 4000
    counts = np.zeros(len(tokens), np.int64)
    for example in range(draws):
        counts[masking(tokens, 0, example)[1]] += 1
    assert counts[0] == counts[-1] == 0
    assert all(within(count, draws, 0.3) for count in counts[1:-1])
    assert counts.sum() == draws * 6


@pytest.mark.parametrize(("length", "expected"), [(1, 1), (3, 1), (10, 2), (17, 3), (20, 3), (100, 15)])
def test_how_many_of_a_short_text(length: int, expected: int) -> None:
    """The nearest whole number (10 x 0.15 is a half, and goes to the even one), but one at least."""
    tokens = np.resize(PLAIN, length)
    assert len(SIMPLE(tokens, 0, 0)[1]) == expected


# --- what must hold for any text


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.floats(0.01, 0.99), st.booleans(), st.integers(0, 3))
def test_only_chosen_positions_change_and_special_tokens_stay(
    text: list[int], rate: float, whole: bool, epoch: int
) -> None:
    tokens = np.array(text, np.int64)
    before = tokens.copy()
    masked, positions = replace(WHOLE if whole else SIMPLE, rate=rate)(tokens, epoch, 5)
    assert np.array_equal(tokens, before)  # what was given is left as it was
    assert masked.shape == tokens.shape
    assert positions.tolist() == sorted(set(positions.tolist()))
    assert not SPECIAL[tokens[positions]].any()
    others = np.setdiff1d(np.arange(len(tokens)), positions)
    assert np.array_equal(masked[others], tokens[others])
    assert all(new == MASK or not SPECIAL[new] for new in masked[positions])
    restored = masked.copy()
    restored[positions] = tokens[positions]
    assert np.array_equal(restored, tokens)
    assert (len(positions) > 0) == bool((~SPECIAL[tokens]).any())


@pytest.mark.parametrize("masking", [SIMPLE, WHOLE, replace(SIMPLE, rate=0.001)])
def test_one_token_is_chosen_and_none_is_no_error(masking: Masking) -> None:
    for token in (PLAIN[0], PLAIN[-1]):
        assert masking(np.array([2, 1, token, 3]), 0, 0)[1].tolist() == [2]
    for text in ([2, 3], [2, 1, 31, 3], []):
        masked, positions = masking(np.array(text, np.int64), 0, 0)
        assert positions.tolist() == []
        assert masked.tolist() == text


# --- whole words


def words_of(tokens: Ints) -> list[list[int]]:
    """The positions of each word, by hand."""
    words = list[list[int]]()
    for position, token in enumerate(tokens.tolist()):
        if SPECIAL[token]:
            continue
        if INSIDE[token] and position and not SPECIAL[tokens[position - 1]]:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def texts_of_words(number: int, words: int) -> list[Ints]:
    dice = np.random.Generator(np.random.PCG64(3))
    begins, inside = np.flatnonzero(~SPECIAL & ~INSIDE), np.flatnonzero(INSIDE)
    return [
        np.concatenate([[2], *[[dice.choice(begins), *dice.choice(inside, dice.integers(4))] for _ in range(words)]])
        for _ in range(number)
    ]


@pytest.mark.parametrize("rate", [0.15, 0.3])
def test_all_tokens_of_a_word_or_none(rate: float) -> None:
    masking, some = replace(WHOLE, rate=rate), texts_of_words(200, 80)
    chosen = usable = several = 0
    for example, tokens in enumerate(some):
        positions = set(masking(tokens, 0, example)[1].tolist())
        for word in words_of(tokens):
            assert positions.issuperset(word) or positions.isdisjoint(word)
            several += len(word) > 1 and word[0] in positions
        assert len(positions) <= round(rate * (len(tokens) - 1))
        chosen, usable = chosen + len(positions), usable + len(tokens) - 1
    assert rate - 0.01 < chosen / usable <= rate + 0.001
    assert several > 1000


def test_long_words_are_chosen_about_as_often_as_short_ones() -> None:
    chosen, there = np.zeros(5), np.zeros(5)
    for example, tokens in enumerate(texts_of_words(300, 80)):
        positions = set(WHOLE(tokens, 0, example)[1].tolist())
        for word in words_of(tokens):
            chosen[len(word)] += word[0] in positions
            there[len(word)] += 1
    shares = chosen[1:] / there[1:]
    assert shares.min() > 0.12
    assert shares.max() < 0.17


def test_a_word_longer_than_the_rate_is_chosen_when_it_is_the_only_one() -> None:
    assert WHOLE(np.array([2, 10, 41, 42, 43, 3]), 0, 0)[1].tolist() == [1, 2, 3, 4]
    assert WHOLE(np.array([2, 41, 42, 3]), 0, 0)[1].tolist() == [1, 2]  # its beginning was in the passage before


# --- the same for the same key, and others for others


def test_these_choices_never_change() -> None:
    """What is masked is part of what makes a run exact: other masks would be another training. Here 9 becomes 24, and
    19 stays."""
    masked, positions = replace(SIMPLE, rate=0.5)(np.arange(5, 30), 3, 12)
    assert masked.tolist() == [
        4, 4, 7, 4, 24, 10, 11, 4, 13, 14, 4, 16, 17, 18, 19, 4, 4, 22, 23, 24, 4, 26, 27, 4, 4,
    ]  # fmt: skip
    assert positions.tolist() == [0, 1, 3, 4, 7, 10, 14, 15, 16, 20, 23, 24]
    assert SIMPLE(np.arange(5, 30), EVALUATION, 11)[1].tolist() == [7, 16, 21, 22]


def test_another_process_masks_the_same() -> None:
    code = (
        "import numpy as np; from qkv.tasks.masking import Masking; special = np.arange(53) < 5; "
        "print(Masking(0.3, 4, special, None, 9)(np.arange(5, 45), 2, 1)[0].tolist())"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout
    here = Masking(0.3, 4, np.arange(53) < 5, None, 9)(np.arange(5, 45), 2, 1)[0].tolist()
    assert printed.decode().strip() == str(here)


@pytest.mark.parametrize("masking", [SIMPLE, WHOLE])
def test_epoch_example_and_seed_each_mask_others(masking: Masking) -> None:
    (tokens,) = texts(1, 400)
    keys = [(0, 0), (1, 0), (2, 0), (EVALUATION, 0), (0, 1), (EVALUATION, 1)]
    found = [masking(tokens, *key) for key in keys] + [replace(masking, seed=8)(tokens, 0, 0)]
    for number, (_, positions) in enumerate(found):
        for _, others in found[:number]:
            assert len(np.intersect1d(positions, others)) < len(positions) / 2  # of independent masks it is 15%
    masked, positions = masking(tokens, 1, 0)
    assert np.array_equal(masked, found[1][0])
    assert np.array_equal(positions, found[1][1])
