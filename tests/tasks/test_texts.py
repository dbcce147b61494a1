"""Labelled texts as batches: special tokens, padding, segments, token dropout, labels and weights."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkv.config.recipe import Recipe
from qkv.data.prepare import Prepared
from qkv.data.store import Store
from qkv.data.truncation import keep_head
from qkv.tasks import TASKS
from qkv.tasks.task import EVALUATION
from qkv.tasks.texts import LabelBatch, TokenDropout
from qkv.tokenizer.tokenizer import Template
from qkv.tokenizer.train import train_tokenizer
from tests.support.small_stores import dataset_of, store_of

WORDS = ["film", "actor", "scene", "plot", "terrible", "wonderful", "unwatchable", "director's", "cut-out", "café"]


def sentences(n: int, most: int, seed: int) -> list[str]:
    dice = random.Random(seed)
    return [" ".join(dice.choices(WORDS, k=dice.randint(0, most))) for _ in range(n)]


TOKENIZER = train_tokenizer(sentences(200, 20, seed=1), kind="wordpiece", vocab_size=150, lowercase=True)


def batch_of(store: Store, template: Template, numbers: list[int], pad: int = 0) -> LabelBatch:
    return dataset_of(store, keep_head(store, 1000), template, pad=pad).collate(np.array(numbers), EVALUATION)


# --- token dropout


def test_the_dropped_share_is_right_and_even() -> None:
    """100,000 tokens: the share within 4 standard deviations, also by place in the text and between neighbours."""
    tokens, drop = np.arange(10, 110), TokenDropout(0.25, 1, seed=3)
    rows = np.array([drop(tokens, 2, example) for example in range(1000)])
    dropped = rows == 1
    assert np.array_equal(np.where(dropped, tokens, rows), np.tile(tokens, (1000, 1)))  # the others are as they were
    assert abs(dropped.mean() - 0.25) < 4 * (0.25 * 0.75 / 100_000) ** 0.5
    assert np.abs(dropped.mean(0) - 0.25).max() < 5 * (0.25 * 0.75 / 1000) ** 0.5
    both = (dropped[:, 1:] & dropped[:, :-1]).mean()
    assert abs(both - 0.0625) < 0.005


def test_what_is_dropped_depends_on_seed_epoch_and_example() -> None:
    tokens = np.arange(10, 110)
    base = TokenDropout(0.3, 1, seed=3)(tokens, 2, 5)
    assert np.array_equal(base, TokenDropout(0.3, 1, seed=3)(tokens, 2, 5))
    for seed, epoch, example in ((4, 2, 5), (3, 1, 5), (3, 2, 6)):
        assert not np.array_equal(base, TokenDropout(0.3, 1, seed)(tokens, epoch, example))


@pytest.mark.parametrize("pair", [False, True])
def test_token_dropout_is_the_same_in_any_batch_and_spares_special_tokens(pair: bool) -> None:
    firsts, seconds = TOKENIZER.ids(sentences(40, 12, seed=1)), TOKENIZER.ids(sentences(40, 12, seed=2))
    store, template = store_of(firsts, seconds if pair else None), TOKENIZER.template(pair=pair)
    examples, mask, epoch = keep_head(store, 30), TOKENIZER.id_of("[MASK]"), 0
    assert mask is not None
    drop = TokenDropout(0.5, mask, seed=1)
    dataset = dataset_of(store, examples, template, pad=TOKENIZER.pad, dropout=drop)
    whole = dataset.collate(np.arange(40), epoch).tokens_BL
    plain = dataset.collate(np.arange(40), EVALUATION).tokens_BL  # nothing is dropped in an evaluation
    changed = whole != plain
    assert set(whole[changed].tolist()) == {mask}
    assert not changed[torch.isin(plain, torch.tensor([TOKENIZER.pad, *template.before, *template.after]))].any()
    assert 0.4 < changed.sum() / (examples.lengths(template) - (3 if pair else 2)).sum() < 0.6
    if not pair:
        for number, ids in enumerate(firsts):
            expected = [*template.before, *drop(np.array(ids, np.int64), epoch, number), *template.after]
            assert whole[number, : len(expected)].tolist() == expected
    without = dataset_of(store, examples, template, pad=TOKENIZER.pad).collate(np.arange(40), epoch)
    assert torch.equal(plain, without.tokens_BL)
    order = np.random.Generator(np.random.PCG64(1)).permutation(40)
    for piece in np.array_split(order, 7):
        batch = dataset.collate(piece, epoch)
        assert torch.equal(batch.tokens_BL, whole[piece][:, : batch.tokens_BL.shape[1]])


def test_nothing_is_dropped_of_an_empty_text() -> None:
    assert TokenDropout(0.5, 1, seed=1)(np.zeros(0, np.int64), 0, 0).tolist() == []


# --- batches


def test_a_batch_by_hand() -> None:
    store = store_of([[11, 12], [13]], [[14, 15, 16], []], labels=[2, 1])
    template = Template(before=(7,), between=(8, 9), after=(10,), segment_b=1)
    dataset = dataset_of(store, keep_head(store, 10), template, pad=3, weights=[4.0, 1.5])
    batch = dataset.collate(np.array([1, 0]), EVALUATION)
    assert batch.tokens_BL.tolist() == [[7, 13, 8, 9, 10, 3, 3, 3, 3], [7, 11, 12, 8, 9, 14, 15, 16, 10]]
    assert batch.keep_BL is not None
    assert batch.keep_BL.tolist() == [[True] * 5 + [False] * 4, [True] * 9]
    assert batch.segments_BL is not None
    assert batch.segments_BL.tolist() == [[0, 0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1, 1, 1, 1]]
    assert batch.labels_B.tolist() == [1, 2]
    assert batch.weights_B.tolist() == [1.5, 4.0]
    assert batch.counts == {"labels": 5.5}
    assert batch.examples_B.tolist() == [1, 0]
    assert batch.real_tokens == 14
    assert batch.tokens_BL.dtype == batch.labels_B.dtype == batch.segments_BL.dtype == torch.int64


def test_there_is_no_mask_where_nothing_is_padding_and_no_segments_without_pairs() -> None:
    store, template = store_of([[11, 12], [13, 14], [15]]), Template((7,), (), (8,), 0)
    equal = batch_of(store, template, [0, 1])
    assert equal.keep_BL is None
    assert equal.segments_BL is None
    assert equal.real_tokens == 8
    ragged = batch_of(store, template, [0, 2])
    assert ragged.keep_BL is not None
    assert ragged.segments_BL is None


def test_a_text_of_no_tokens_is_its_special_tokens() -> None:
    batch = batch_of(store_of([[], []]), Template((7,), (), (8,), 0), [0, 1])
    assert batch.tokens_BL.tolist() == [[7, 8], [7, 8]]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text(max_size=30), min_size=1, max_size=5))
def test_any_text_keeps_its_ids(texts: list[str]) -> None:
    """Also what the tokenizer knows nothing of. A special token that is written out is text, never special."""
    ids, template = TOKENIZER.ids(texts), TOKENIZER.template(pair=False)
    batch = batch_of(store_of(ids), template, list(range(len(ids))), TOKENIZER.pad)
    for row, numbers in enumerate(ids):
        real = batch.tokens_BL[row, : len(numbers) + 2].tolist()
        assert real == [*template.before, *numbers, *template.after]


def test_this_tokenizer_has_templates_of_two_and_three() -> None:
    assert TOKENIZER.template(pair=False) == Template((2,), (), (3,), 0)
    assert TOKENIZER.template(pair=True) == Template((2,), (3,), (3,), 1)


# --- labels and weights


def prepared(train: Store, validation: Store, labels: tuple[str, ...] = ()) -> Prepared:
    return Prepared(TOKENIZER, None, labels, train, validation, counts={}, text_bytes={}, notes=[], data_hash="")


@pytest.mark.parametrize(("truncation", "expected"), [("head", [1.5, 0.75, 0.75]), ("windows", [0.75, 1.5, 1.5])])
def test_classes_are_weighted_by_their_examples(truncation: str, expected: list[float]) -> None:
    """One row of class 1, two of class 0. Read in windows of six tokens, the first is four examples."""
    store = store_of([[10] * 15, [11], [12]], labels=[1, 0, 0])
    table = {"data": {"balance": "weights", "truncation": truncation, "length": 8}}
    train, validation = TASKS["classify"].datasets(Recipe.read(table), prepared(store, store, ("no", "yes")))
    assert train.weights_R.tolist() == validation.weights_R.tolist() == pytest.approx(expected)
    equal, _ = TASKS["classify"].datasets(Recipe.read({"data": {"length": 8}}), prepared(store, store, ("no", "yes")))
    assert equal.weights_R.tolist() == [1.0, 1.0, 1.0]


def test_numbers_are_trained_on_with_mean_0_and_deviation_1() -> None:
    """Of the training rows; validation rows get the same scale. A decoder's head has no bias to hold a mean."""
    train = replace(store_of([[10], [11], [12], [13]]), labels_R=np.array([1.0, 3.0, 5.0, 7.0], np.float32))
    validation = replace(store_of([[10]]), labels_R=np.array([9.0], np.float32))
    deviation = 5.0**0.5
    for family, mean in (("encoder", 4.0), ("decoder", 0.0)):
        recipe = Recipe.read({"task": "regress", "data": {"length": 8}, "model": {"family": family}})
        first, second = TASKS["regress"].datasets(recipe, prepared(train, validation))
        assert (first.mean, first.deviation) == pytest.approx((mean, deviation))
        labels_B = first.collate(np.arange(4), EVALUATION).labels_B
        assert labels_B.tolist() == pytest.approx([(number - mean) / deviation for number in (1, 3, 5, 7)])
        assert labels_B.dtype == torch.float32
        assert second.collate(np.arange(1), EVALUATION).labels_B.tolist() == pytest.approx([(9 - mean) / deviation])
