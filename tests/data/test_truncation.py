"""Rows become examples as the tokenizer itself would cut and frame them; what is hidden depends on nothing else."""

import random
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qkv.data.batch import LabelBatch
from qkv.data.store import Store
from qkv.data.truncation import (
    Examples,
    TokenDropout,
    collate,
    keep_head,
    keep_head_and_tail,
    longest_first,
    read_windows,
    spans_of,
    windows,
)
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Template, Tokenizer
from qkv.tokenizer.train import train_tokenizer

Ints = NDArray[np.int64]
WORDS = ["film", "actor", "scene", "plot", "terrible", "wonderful", "unwatchable", "director's", "cut-out", "café"]
ONE = np.ones(7, np.float32)


def sentences(n: int, most: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(0, most))) for _ in range(n)]


TOKENIZER = train_tokenizer(sentences(200, 20, seed=1), kind="wordpiece", vocab_size=150, lowercase=True)


def store_of(firsts: list[list[int]], seconds: list[list[int]] | None = None, labels: list[int] | None = None) -> Store:
    others = seconds if seconds is not None else [[] for _ in firsts]
    flat = [number for first, second in zip(firsts, others, strict=True) for number in first + second]
    ends = np.cumsum([len(first) + len(second) for first, second in zip(firsts, others, strict=True)])
    starts = np.concatenate([[0], ends]).astype(np.int64)
    middles = starts[:-1] + np.array([len(first) for first in firsts], np.int64)
    numbers = np.array([0] * len(firsts) if labels is None else labels, np.int32)
    return Store(np.array(flat, np.uint32), starts, middles, numbers, pairs=seconds is not None)


def all_of(
    store: Store, examples: Examples, frame: Template, hide: TokenDropout | None = None, weights: NDArray[np.float32] = ONE
) -> LabelBatch:
    numbers = np.arange(len(examples.rows_N))
    return collate(store, examples, numbers, frame, pad=TOKENIZER.pad, weights_C=weights, hide=hide)


def room_in(frame: Template, limit: int) -> int:
    return limit - len(frame.before) - len(frame.between) - len(frame.after)


# --- cutting


@pytest.mark.parametrize("limit", [4, 5, 8, 13, 40])
def test_single_texts_are_what_the_tokenizer_makes_of_them(limit: int) -> None:
    texts = sentences(100, 25, seed=limit)
    store, frame = store_of(TOKENIZER.ids(texts)), TOKENIZER.template(pair=False)
    examples, expected = keep_head(store, room_in(frame, limit)), TOKENIZER.encode(texts, limit)
    batch = all_of(store, examples, frame)
    for row, one in enumerate(expected):
        assert batch.tokens_BL[row, : len(one.ids)].tolist() == one.ids
    assert examples.lengths(frame).tolist() == [len(one.ids) for one in expected]
    assert examples.truncated == sum(one.truncated for one in expected) > 0
    assert examples.rows_N.tolist() == list(range(100))


@pytest.mark.parametrize("limit", [5, 6, 7, 16, 17, 60])
def test_pairs_are_what_the_tokenizer_makes_of_them(limit: int) -> None:
    """Limit 5 leaves two tokens for both texts, 4 would leave one: the tokenizer refuses to go below that."""
    firsts, seconds = sentences(300, 12, seed=limit), sentences(300, 12, seed=-limit)
    store, frame = store_of(TOKENIZER.ids(firsts), TOKENIZER.ids(seconds)), TOKENIZER.template(pair=True)
    examples = keep_head(store, room_in(frame, limit))
    expected = TOKENIZER.encode(list(zip(firsts, seconds, strict=True)), limit)
    batch = all_of(store, examples, frame)
    assert batch.segments_BL is not None
    for row, one in enumerate(expected):
        assert batch.tokens_BL[row, : len(one.ids)].tolist() == one.ids
        assert batch.segments_BL[row, : len(one.ids)].tolist() == one.segments
    assert examples.lengths(frame).tolist() == [len(one.ids) for one in expected]
    assert examples.truncated == sum(one.truncated for one in expected)


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 40))
def test_longest_first_fills_the_room_and_cuts_the_longer(a: int, b: int, room: int) -> None:
    first, second = (int(kept[0]) for kept in longest_first(np.array([a]), np.array([b]), room))
    assert first + second == min(room, a + b)
    assert 0 <= first <= a
    assert 0 <= second <= b
    shorter, kept = (a, first) if a < b else (b, second)
    assert kept == min(shorter, max(kept, room // 2))  # the shorter one loses nothing before it has half of the room


@pytest.mark.parametrize(
    ("a", "b", "room", "expected"),
    [(9, 2, 6, (4, 2)), (2, 9, 6, (2, 4)), (9, 9, 7, (3, 4)), (9, 8, 7, (4, 3)), (0, 9, 5, (0, 5)), (3, 3, 6, (3, 3))],
)
def test_longest_first_by_hand(a: int, b: int, room: int, expected: tuple[int, int]) -> None:
    first, second = longest_first(np.array([a]), np.array([b]), room)
    assert (int(first[0]), int(second[0])) == expected


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
    with pytest.raises(UserError, match=r"^data\.long = 'windows' is for single texts; for pairs accepted: cut$"):
        read_windows(store_of([[1, 2]], [[3]]), 4)


# --- the two ends


def test_the_ends_of_a_store() -> None:
    store = store_of([[1, 2], [], [3, 4, 5, 6, 7, 8]], labels=[1, 0, 2])
    examples = keep_head_and_tail(store, 5)
    assert examples.rows_N.tolist() == [0, 1, 2]
    assert examples.truncated == 1
    frame = Template((9,), (), (10,), 0)
    assert examples.lengths(frame).tolist() == [4, 2, 7]
    batch = all_of(store, examples, frame)
    assert batch.segments_BL is None
    assert batch.tokens_BL.tolist() == [
        [9, 1, 2, 10, 0, 0, 0], [9, 10, 0, 0, 0, 0, 0], [9, 3, 4, 5, 7, 8, 10],
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"^data\.long = 'ends' is for single texts; for pairs accepted: cut$"):
        keep_head_and_tail(store_of([[1, 2]], [[3]]), 4)


@given(st.integers(0, 300), st.integers(1, 60), st.sampled_from(["cut", "ends", "windows"]))
def test_one_text_is_read_as_a_store_of_it(length: int, room: int, long: Literal["cut", "ends", "windows"]) -> None:
    """What predicts reads the spans_of of a text that training read."""
    store = store_of([list(range(length))])
    examples = {"cut": keep_head, "ends": keep_head_and_tail, "windows": read_windows}[long](store, room)
    trained = [[*range(*examples.a_N2[n]), *range(*examples.b_N2[n])] for n in range(len(examples.rows_N))]
    assert [[n for a, b in one for n in range(a, b)] for one in spans_of(length, room, long)] == trained
    if long == "ends" and length > room:
        assert trained[0][-1] == length - 1 or room == 1


# --- hiding


def test_the_share_hidden_is_right_and_even() -> None:
    """100,000 tokens: the share within 4 standard deviations, also by place in the text and between neighbours."""
    tokens = np.arange(10, 110)
    rows = np.array([TokenDropout(0.25, 1, seed=3, epoch=2)(tokens, example) for example in range(1000)])
    hidden = rows == 1
    assert np.array_equal(np.where(hidden, tokens, rows), np.tile(tokens, (1000, 1)))  # the others are as they were
    assert abs(hidden.mean() - 0.25) < 4 * (0.25 * 0.75 / 100_000) ** 0.5
    assert np.abs(hidden.mean(0) - 0.25).max() < 5 * (0.25 * 0.75 / 1000) ** 0.5
    both = (hidden[:, 1:] & hidden[:, :-1]).mean()
    assert abs(both - 0.0625) < 0.005


def test_what_is_hidden_depends_on_seed_epoch_and_example() -> None:
    tokens = np.arange(10, 110)
    base = TokenDropout(0.3, 1, seed=3, epoch=2)(tokens, 5)
    assert np.array_equal(base, TokenDropout(0.3, 1, seed=3, epoch=2)(tokens, 5))
    for other, example in ((TokenDropout(0.3, 1, 4, 2), 5), (TokenDropout(0.3, 1, 3, 1), 5), (TokenDropout(0.3, 1, 3, 2), 6)):
        assert not np.array_equal(base, other(tokens, example))


@pytest.mark.parametrize("pair", [False, True])
def test_hiding_is_the_same_in_any_batch_and_spares_special_tokens(pair: bool) -> None:
    firsts, seconds = TOKENIZER.ids(sentences(40, 12, seed=1)), TOKENIZER.ids(sentences(40, 12, seed=2))
    store, frame = store_of(firsts, seconds if pair else None), TOKENIZER.template(pair=pair)
    examples, mask = keep_head(store, 30), TOKENIZER.id_of("[MASK]")
    assert mask is not None
    hide = TokenDropout(0.5, mask, seed=1, epoch=0)
    whole = all_of(store, examples, frame, hide).tokens_BL
    plain = all_of(store, examples, frame).tokens_BL
    changed = whole != plain
    assert set(whole[changed].tolist()) == {mask}
    assert not changed[torch.isin(plain, torch.tensor([TOKENIZER.pad, *frame.before, *frame.after]))].any()
    assert 0.4 < changed.sum() / (examples.lengths(frame) - (3 if pair else 2)).sum() < 0.6
    if not pair:
        for number, ids in enumerate(firsts):
            expected = [*frame.before, *hide(np.array(ids, np.int64), number), *frame.after]
            assert whole[number, : len(expected)].tolist() == expected
    order = np.random.Generator(np.random.PCG64(1)).permutation(40)
    for piece in np.array_split(order, 7):
        batch = collate(store, examples, piece, frame, pad=0, weights_C=ONE, hide=hide)
        assert torch.equal(batch.tokens_BL, whole[piece][:, : batch.tokens_BL.shape[1]])


def test_nothing_is_hidden_of_an_empty_text() -> None:
    assert TokenDropout(0.5, 1, seed=1, epoch=0)(np.zeros(0, np.int64), 0).tolist() == []


# --- side by side


def test_a_batch_by_hand() -> None:
    store = store_of([[11, 12], [13]], [[14, 15, 16], []], labels=[2, 1])
    frame = Template(before=(7,), between=(8, 9), after=(10,), segment_b=1)
    examples = keep_head(store, 10)
    weights = np.array([0.5, 1.5, 4.0], np.float32)
    batch = collate(store, examples, np.array([1, 0]), frame, pad=3, weights_C=weights)
    assert batch.tokens_BL.tolist() == [[7, 13, 8, 9, 10, 3, 3, 3, 3], [7, 11, 12, 8, 9, 14, 15, 16, 10]]
    assert batch.keep_BL is not None
    assert batch.keep_BL.tolist() == [[True] * 5 + [False] * 4, [True] * 9]
    assert batch.segments_BL is not None
    assert batch.segments_BL.tolist() == [[0, 0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 1]]
    assert batch.labels_B.tolist() == [1, 2]
    assert batch.weights_B.tolist() == [1.5, 4.0]
    assert batch.examples_B.tolist() == [1, 0]
    assert batch.real_tokens == 14
    assert batch.tokens_BL.dtype == batch.labels_B.dtype == batch.segments_BL.dtype == torch.int64


def test_there_is_no_mask_where_nothing_is_padding_and_no_segments_without_pairs() -> None:
    store = store_of([[11, 12], [13, 14], [15]])
    frame = Template((7,), (), (8,), 0)
    examples = keep_head(store, 5)
    equal = collate(store, examples, np.array([0, 1]), frame, pad=0, weights_C=ONE)
    assert equal.keep_BL is None
    assert equal.segments_BL is None
    assert equal.real_tokens == 8
    ragged = collate(store, examples, np.array([0, 2]), frame, pad=0, weights_C=ONE)
    assert ragged.keep_BL is not None
    assert ragged.segments_BL is None


def test_a_text_of_no_tokens_is_its_frame() -> None:
    store = store_of([[], []])
    batch = all_of(store, keep_head(store, 5), Template((7,), (), (8,), 0))
    assert batch.tokens_BL.tolist() == [[7, 8], [7, 8]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_any_text_keeps_its_ids(texts: list[str]) -> None:
    """Also what the tokenizer knows nothing of. A special token that is written out is text, never special."""
    store, frame = store_of(ids := TOKENIZER.ids(texts)), TOKENIZER.template(pair=False)
    batch = all_of(store, keep_head(store, 1000), frame)
    for row, numbers in enumerate(ids):
        real = batch.tokens_BL[row, : len(numbers) + 2].tolist()
        assert real == [*frame.before, *numbers, *frame.after]


def test_a_tokenizer_like_this_has_frames_of_two_and_three() -> None:
    assert isinstance(TOKENIZER, Tokenizer)
    assert TOKENIZER.template(pair=False) == Template((2,), (), (3,), 0)
    assert TOKENIZER.template(pair=True) == Template((2,), (3,), (3,), 1)
