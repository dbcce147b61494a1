"""Rows become examples as the tokenizer itself would truncate them."""

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config.recipe import Truncation
from qkv.data.store import Store
from qkv.data.truncation import (
    TRUNCATIONS,
    Examples,
    keep_head,
    keep_head_and_tail,
    read_windows,
    spans_of,
    windows,
)
from qkv.schema import UserError
from qkv.tasks.task import EVALUATION
from qkv.tasks.texts import LabelBatch
from qkv.tokenizer.tokenizer import Template
from qkv.tokenizer.train import train_tokenizer
from tests.support.small_stores import dataset_of, store_of

WORDS = ["film", "actor", "scene", "plot", "terrible", "wonderful", "unwatchable", "director's", "cut-out", "café"]


def sentences(n: int, most: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(0, most))) for _ in range(n)]


TOKENIZER = train_tokenizer(sentences(200, 20, seed=1), kind="wordpiece", vocab_size=150, lowercase=True)


def all_of(store: Store, examples: Examples, template: Template) -> LabelBatch:
    """All examples as one batch."""
    return dataset_of(store, examples, template).collate(np.arange(len(examples.rows_N)), EVALUATION)


# --- the head


@pytest.mark.parametrize("limit", [4, 5, 8, 13, 40])
def test_single_texts_are_what_the_tokenizer_makes_of_them(limit: int) -> None:
    texts = sentences(100, 25, seed=limit)
    store, template = store_of(TOKENIZER.ids(texts)), TOKENIZER.template(pair=False)
    examples, expected = keep_head(store, limit - len(template)), TOKENIZER.encode(texts, limit)
    batch = all_of(store, examples, template)
    for row, one in enumerate(expected):
        assert batch.tokens_BL[row, : len(one.ids)].tolist() == one.ids
    assert examples.lengths(template).tolist() == [len(one.ids) for one in expected]
    assert examples.truncated == sum(one.truncated for one in expected) > 0
    assert examples.rows_N.tolist() == list(range(100))


@pytest.mark.parametrize("limit", [5, 6, 7, 16, 17, 60])
def test_pairs_are_what_the_tokenizer_makes_of_them(limit: int) -> None:
    """Limit 5 leaves two tokens for both texts, 4 would leave one: the tokenizer refuses to go below that."""
    firsts, seconds = sentences(300, 12, seed=limit), sentences(300, 12, seed=-limit)
    store, template = store_of(TOKENIZER.ids(firsts), TOKENIZER.ids(seconds)), TOKENIZER.template(pair=True)
    examples = keep_head(store, limit - len(template))
    expected = TOKENIZER.encode(list(zip(firsts, seconds, strict=True)), limit)
    batch = all_of(store, examples, template)
    assert batch.segments_BL is not None
    for row, one in enumerate(expected):
        assert batch.tokens_BL[row, : len(one.ids)].tolist() == one.ids
        assert batch.segments_BL[row, : len(one.ids)].tolist() == one.segments
    assert examples.lengths(template).tolist() == [len(one.ids) for one in expected]
    assert examples.truncated == sum(one.truncated for one in expected)


def test_the_beginning_of_each_text_stays() -> None:
    examples = keep_head(store_of([[1, 2, 3, 4], [5]], [[6, 7, 8], []]), room=4)
    assert examples.a_N2.tolist() == [[0, 2], [7, 8]]
    assert examples.b_N2.tolist() == [[4, 6], [8, 8]]
    assert examples.truncated == 1


# --- windows


@given(st.integers(0, 300), st.integers(1, 60))
def test_windows_cover_all_are_full_and_share_half(length: int, room: int) -> None:
    found = windows(length, room)
    assert {n for first, last in found for n in range(first, last)} == set(range(length))
    assert all(last - first == min(room, length) for first, last in found)
    for (first, last), (following, _) in pairwise(found):
        assert first < following  # none twice
        assert last - following >= room // 2
    for (first, _), (following, _) in pairwise(found[:-1]):
        assert following - first == max(1, room // 2)  # all but the last, which is moved back


def test_windows_by_hand() -> None:
    assert windows(0, 4) == [(0, 0)]
    assert windows(4, 4) == [(0, 4)]
    assert windows(5, 4) == [(0, 4), (1, 5)]
    assert windows(8, 4) == [(0, 4), (2, 6), (4, 8)]
    assert windows(9, 4) == [(0, 4), (2, 6), (4, 8), (5, 9)]
    assert windows(3, 1) == [(0, 1), (1, 2), (2, 3)]


def test_windows_of_a_store() -> None:
    store = store_of([[1, 2], [], [3, 4, 5, 6, 7, 8]], labels=[1, 0, 2])
    examples = read_windows(store, 4)
    assert examples.rows_N.tolist() == [0, 1, 2, 2]
    assert examples.a_N2.tolist() == [[0, 2], [2, 2], [2, 6], [4, 8]]
    assert (examples.b_N2[:, 0] == examples.b_N2[:, 1]).all()
    assert examples.truncated == 1
    batch = all_of(store, examples, Template((9,), (), (10,), 0))
    assert batch.tokens_BL.tolist() == [
        [9, 1, 2, 10, 0, 0], [9, 10, 0, 0, 0, 0], [9, 3, 4, 5, 6, 10], [9, 5, 6, 7, 8, 10],
    ]  # fmt: skip
    assert batch.labels_B.tolist() == [1, 0, 2, 2]


def test_windows_of_nothing_are_none_and_pairs_have_none() -> None:
    assert len(read_windows(store_of([]), 4).rows_N) == 0
    with pytest.raises(
        UserError, match=r"^data\.truncation = 'windows' is for single texts; accepted for pairs: head$"
    ):
        read_windows(store_of([[1, 2]], [[3]]), 4)


# --- head and tail


def test_head_and_tail_of_a_store() -> None:
    store = store_of([[1, 2], [], [3, 4, 5, 6, 7, 8]], labels=[1, 0, 2])
    examples = keep_head_and_tail(store, 5)
    assert examples.rows_N.tolist() == [0, 1, 2]
    assert examples.truncated == 1
    template = Template((9,), (), (10,), 0)
    assert examples.lengths(template).tolist() == [4, 2, 7]
    batch = all_of(store, examples, template)
    assert batch.segments_BL is None
    assert batch.tokens_BL.tolist() == [
        [9, 1, 2, 10, 0, 0, 0], [9, 10, 0, 0, 0, 0, 0], [9, 3, 4, 5, 7, 8, 10],
    ]  # fmt: skip
    with pytest.raises(
        UserError, match=r"^data\.truncation = 'head\+tail' is for single texts; accepted for pairs: head$"
    ):
        keep_head_and_tail(store_of([[1, 2]], [[3]]), 4)


@given(st.integers(0, 300), st.integers(1, 60), st.sampled_from(["head", "head+tail", "windows"]))
def test_one_text_is_read_as_a_store_of_it(length: int, room: int, truncation: Truncation) -> None:
    """A predictor reads those spans of a text that training reads."""
    examples = TRUNCATIONS[truncation](store_of([list(range(length))]), room)
    trained = [[*range(*examples.a_N2[n]), *range(*examples.b_N2[n])] for n in range(len(examples.rows_N))]
    assert [[n for a, b in one for n in range(a, b)] for one in spans_of(length, room, truncation)] == trained
    if truncation == "head+tail" and length > room:
        assert trained[0][-1] == length - 1 or room == 1
