"""Every token of a document is in one passage, no passage holds two documents, and nothing but its tokens tells a
negative from the next text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qkv.data.store import Store
from qkv.data.truncation import Examples
from qkv.tasks.passages import LEAST, Negatives, Overlap, common_lengths, passages_of
from qkv.tasks.task import EVALUATION

Ints = NDArray[np.int64]
Sentence = list[int]
LENGTHS = st.lists(st.lists(st.one_of(st.just(0), st.integers(0, 90)), max_size=12), max_size=6)  # of documents


def store_of(documents: list[list[Sentence]]) -> Store:
    sentences = [(number, sentence) for number, document in enumerate(documents) for sentence in document]
    flat = np.array([token for _, sentence in sentences for token in sentence], np.uint32)
    starts = np.cumsum([0, *(len(sentence) for _, sentence in sentences)]).astype(np.int64)
    labels = np.array([number for number, _ in sentences], np.int32)
    return Store(flat, starts, np.zeros(0, np.int64), labels, pairs=False)


def of_lengths(lengths: list[list[int]]) -> Store:
    """Documents of sentences this long, every token another."""
    numbers = iter(range(10**6))
    return store_of([[[next(numbers) for _ in range(length)] for length in document] for document in lengths])


def random_store(documents: int, sentences: int, longest: int, shortest: int = 0, seed: int = 1) -> Store:
    """Sentences end with token 1, and have it nowhere else."""
    dice = np.random.Generator(np.random.PCG64(seed))
    return store_of(
        [
            [[*dice.integers(2, 1000, dice.integers(shortest, longest)).tolist(), 1] for _ in range(sentences)]
            for _ in range(documents)
        ]
    )


def negatives_of(store: Store, room: int, seed: int = 7) -> Negatives:
    return Negatives.of(store, passages_of(store, room, pairs=True, seed=seed), seed)


def second_lengths(examples: Examples) -> Ints:
    return np.diff(examples.b_N2)[:, 0]


def drawn(negatives: Negatives, epochs: int) -> list[tuple[int, int, bool | None]]:
    """Of every pair in every epoch: its number, whose second text it has, and whether that is a negative (None: nothing
    is predicted)."""
    pairs = np.flatnonzero(second_lengths(negatives.examples)).tolist()
    return [(number, *negatives.second(number, epoch)) for epoch in range(epochs) for number in pairs]


def within(count: float, of: int, share: float) -> bool:
    return abs(count - of * share) <= 5 * (of * share * (1 - share)) ** 0.5


# --- passages


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(2, 150), st.booleans())
def test_every_token_is_in_one_passage_of_its_document_that_fits(
    lengths: list[list[int]], room: int, pairs: bool
) -> None:
    store = of_lengths(lengths)
    examples = passages_of(store, room, pairs=pairs, seed=7)
    a, b = examples.a_N2, examples.b_N2
    document_of = np.repeat(store.labels_R, np.diff(store.starts_R))  # of each token
    assert len(examples.rows_N) == len(a) == len(b)
    assert np.array_equal(a[:, 1], b[:, 0])  # the second text goes on where the first ends
    begins, ends = a[:, 0], np.append(a[1:, 0], len(store.tokens))[: len(a)]
    assert begins[:1].tolist() == ([0] if len(store.tokens) else [])
    whole, cut = ends - begins, ends - b[:, 1]
    assert (cut >= 0).all()
    second = ends - b[:, 0]
    assert np.array_equal(second - cut, common_lengths(second))  # of the second text, and of nothing else
    assert pairs or not cut.any()
    assert (whole <= room).all()
    assert (a[:, 1] > begins).all()
    for n, (begin, end) in enumerate(zip(begins, ends, strict=True)):
        assert set(document_of[begin:end].tolist()) == {examples.rows_N[n]}
    assert pairs or not second_lengths(examples).any()


@settings(max_examples=200, deadline=None)
@given(LENGTHS, st.integers(2, 150))
def test_only_a_sentence_longer_than_half_of_the_room_is_broken(lengths: list[list[int]], room: int) -> None:
    store = of_lengths(lengths)
    examples = passages_of(store, room, pairs=True, seed=7)
    borders = set(examples.a_N2.flatten().tolist())
    assert set(examples.b_N2[second_lengths(examples) > 0, 0].tolist()) <= set(store.starts_R.tolist())
    for begin, end in zip(store.starts_R[:-1].tolist(), store.starts_R[1:].tolist(), strict=True):
        inside = [border for border in borders if begin < border < end]
        assert not inside or end - begin > room // 2


def test_a_long_sentence_by_hand() -> None:
    """Ten tokens, pieces of four at most: 3, 3 and 4. Two passages would have five each: 3 + 3 are the first to reach
    that. Nothing is split, for there is no end of a sentence inside."""
    examples = passages_of(of_lengths([[10]]), 8, pairs=True, seed=7)
    assert examples.a_N2.tolist() == [[0, 6], [6, 10]]
    assert examples.b_N2.tolist() == [[6, 6], [10, 10]]


def test_passages_of_a_document_are_about_equally_long() -> None:
    """500 tokens do not become four passages of 120 and one of 20."""
    store = of_lengths([[5] * 100])
    examples = passages_of(store, 120, pairs=False, seed=7)
    assert examples.a_N2.tolist() == [[n, n + 100] for n in range(0, 500, 100)]
    assert passages_of(store, 500, pairs=False, seed=7).a_N2.tolist() == [[0, 500]]


def test_a_document_of_one_short_sentence_is_one_text() -> None:
    examples = passages_of(of_lengths([[3], [2, 2], [0, 4, 0]]), 20, pairs=True, seed=7)
    assert examples.rows_N.tolist() == [0, 1, 2]
    assert examples.a_N2.tolist() == [[0, 3], [3, 5], [7, 11]]
    assert examples.b_N2.tolist() == [[3, 3], [5, 7], [11, 11]]


@pytest.mark.parametrize("lengths", [[], [[]], [[0]], [[0, 0], [0]]])
def test_where_there_is_nothing_there_are_no_passages(lengths: list[list[int]]) -> None:
    store = of_lengths(lengths)
    assert len(negatives_of(store, 10).members_M) == 0
    assert passages_of(store, 10, pairs=False, seed=7).a_N2.shape == (0, 2)


def test_a_passage_is_split_after_any_of_its_sentences() -> None:
    examples = passages_of(of_lengths([[3, 3, 3, 3]] * 2000), 20, pairs=True, seed=7)
    firsts = np.diff(examples.a_N2)[:, 0]
    assert all(within(int(np.count_nonzero(firsts == length)), 2000, 1 / 3) for length in (3, 6, 9))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=200))
def test_a_second_text_is_cut_to_a_length_that_others_have_too(lengths: list[int]) -> None:
    before = np.array(lengths, np.int64)
    after = common_lengths(before)
    assert np.array_equal(after == 0, before == 0)
    assert (after <= before).all()
    order = np.argsort(before, kind="stable")
    assert (np.diff(after[order]) >= 0).all()  # longer texts stay longer, or become equal
    counts = np.unique(after[after > 0], return_counts=True)[1]
    assert all(count >= min(LEAST, int(np.count_nonzero(before))) for count in counts.tolist())


def test_a_frequent_length_loses_little() -> None:
    """Eight of each: up to 24 every length is a class of its own; of longer ones those within 4% are one."""
    lengths = np.repeat(np.arange(1, 300), LEAST)
    after = common_lengths(lengths)
    assert (after[lengths < 25] == lengths[lengths < 25]).all()
    assert ((lengths - after) <= 0.04 * lengths).all()
    by_hand = np.repeat([51, 52, 53, 54], LEAST)
    assert common_lengths(by_hand)[::LEAST].tolist() == [51, 52, 52, 52]  # 52 x 1.04 reaches 54, 51 x 1.04 does not
    assert common_lengths(np.array([2, 3, *[5] * 9])).tolist() == [2] * 11  # too few short ones join those above
    assert common_lengths(np.array([*[9] * 8, 20, 30])).tolist() == [9] * 10  # and too few long ones those below


def test_these_passages_and_pairs_never_change() -> None:
    store = of_lengths([[4, 3, 5, 2], [3, 3, 3], [2, 2, 6, 1, 1], [3, 4, 2], [5, 3, 3]])
    negatives = negatives_of(store, 12)
    assert negatives.examples.a_N2.tolist() == [[0, 4], [7, 12], [14, 17], [23, 33], [35, 38], [44, 52]]
    assert negatives.examples.b_N2.tolist() == [[4, 6], [12, 14], [17, 19], [33, 35], [38, 40], [52, 54]]
    found = [negatives.second(number, 2) for number in range(6)]
    assert found == [(2, True), (4, True), (2, False), (3, False), (4, False), (1, True)]


# --- negatives


def test_about_half_are_negatives_of_another_document_and_of_the_same_length() -> None:
    store = random_store(400, 4, 8, shortest=3)
    negatives = negatives_of(store, 24)
    documents, lengths = negatives.examples.rows_N, second_lengths(negatives.examples)
    found = drawn(negatives, 6)
    assert len(found) > 2000
    assert within(sum(is_negative is True for *_, is_negative in found), len(found), 0.5)
    for number, other, is_negative in found:
        assert lengths[other] == lengths[number] > 0
        assert is_negative == (other != number)
        assert not is_negative or documents[other] != documents[number]


def test_the_coin_is_fair_for_every_document() -> None:
    """Also for a long one, which has most of the texts of its length."""
    negatives = negatives_of(of_lengths([[3] * 400, *[[3, 3]] * 10]), 6)
    documents, found = negatives.examples.rows_N, drawn(negatives, 60)
    said = [[is_negative for number, _, is_negative in found if documents[number] == one] for one in range(11)]
    assert [len(answers) for answers in said] == [12000, *[60] * 10]
    for answers in said:
        assert None not in answers
        assert within(answers.count(True), len(answers), 0.5)
    assert all(documents[other] != documents[number] for number, other, is_negative in found if is_negative)


def test_where_the_first_text_ends_and_the_second_begins_tells_nothing() -> None:
    """Most of these sentences are broken, but never between two texts: there, one ends and another begins."""
    store = random_store(300, 8, 40)
    negatives = negatives_of(store, 30)
    a, b, begins = negatives.examples.a_N2, negatives.examples.b_N2, set(store.starts_R.tolist())
    assert sum(begin not in begins for begin in a[:, 0].tolist()) > 300
    found = drawn(negatives, 2)
    assert min(sum(is_negative is answer for *_, is_negative in found) for answer in (False, True)) > 100
    assert {int(store.tokens[a[number, 1] - 1]) for number, *_ in found} == {1}
    assert {int(b[other, 0]) for _, other, _ in found} <= begins


@pytest.mark.parametrize("copies", [1, 2, 3])
def test_a_negative_never_equals_the_next_text(copies: int) -> None:
    """Short texts over three tokens are often equal; those of a document that is there twice always are."""
    dice = np.random.Generator(np.random.PCG64(5))
    once = [[dice.integers(1, 4, dice.integers(1, 4)).tolist() for _ in range(3)] for _ in range(40)]
    store = store_of(once * copies)
    negatives = negatives_of(store, 12)
    b = negatives.examples.b_N2
    equal = 0
    for number, other, is_negative in drawn(negatives, 8):
        mine, theirs = store.tokens[slice(*b[number])].tolist(), store.tokens[slice(*b[other])].tolist()
        assert bool(is_negative) == (mine != theirs)
        equal += not is_negative
    assert equal > 100


def test_two_copies_of_one_document_have_no_negatives() -> None:
    negatives = negatives_of(store_of([[[5, 6], [7, 8]]] * 2), 10)
    found = drawn(negatives, 40)
    assert [(number, other) for number, other, _ in found] == [(n, n) for _ in range(40) for n in (0, 1)]
    assert {is_negative for *_, is_negative in found} == {None}


def test_a_length_that_only_one_document_has_is_not_predicted() -> None:
    """Eight second texts of 9 tokens, all of document 0; those of 3 are of others."""
    negatives = negatives_of(of_lengths([[3, 9] * 8, *[[9, 3]] * 8]), 12)
    documents = negatives.examples.rows_N
    answers = {is_negative for number, _, is_negative in drawn(negatives, 20) if documents[number] == 0}
    others = {is_negative for number, _, is_negative in drawn(negatives, 20) if documents[number] > 0}
    assert (answers, others) == ({None}, {False, True})
    assert all(other == number for number, other, is_negative in drawn(negatives, 20) if is_negative is None)


def test_one_document_has_no_negatives() -> None:
    found = drawn(negatives_of(random_store(1, 400, 4), 12), 10)
    assert len(found) > 500
    assert {is_negative for *_, is_negative in found} == {None}


def test_second_texts_are_alike_whichever_the_answer() -> None:
    """Long ones, of which many are truncated: by length, by where they begin, by how they end."""
    store = random_store(3000, 12, 20)
    negatives = negatives_of(store, 140)
    examples, found = negatives.examples, drawn(negatives, 1)
    b, lengths = examples.b_N2, second_lengths(examples)
    ends_whole = store.tokens[b[:, 1] - 1] == 1
    two = [np.array([other for _, other, is_negative in found if is_negative == answer]) for answer in (False, True)]
    assert min(len(chosen) for chosen in two) > 1000
    assert 0.2 < ends_whole[two[0]].mean() < 0.95  # some are truncated, some are not
    for values in (lengths, ends_whole, store.tokens[b[:, 0]]):
        one, other = (values[chosen].astype(np.float64) for chosen in two)
        spread = (one.var() / len(one) + other.var() / len(other)) ** 0.5
        assert abs(one.mean() - other.mean()) < 5 * spread


def test_every_second_text_of_a_length_is_drawn_equally_often() -> None:
    negatives = negatives_of(of_lengths([[2, 3]] * 20), 10)
    counts = np.zeros(20)
    for _, other, is_negative in drawn(negatives, 400):
        counts[other] += is_negative is True
    assert within(counts.sum(), 8000, 0.5)
    assert all(within(count, int(counts.sum()), 1 / 20) for count in counts)


def test_epochs_and_seeds_draw_others_and_the_same_key_draws_the_same() -> None:
    store = random_store(200, 4, 6)
    one, again, foreign = negatives_of(store, 20), negatives_of(store, 20), negatives_of(store, 20, seed=8)
    numbers = one.members_M.tolist()
    first, second = ([one.second(n, epoch) for n in numbers] for epoch in (0, 1))
    assert [again.second(n, 0) for n in numbers] == first
    assert sum(x[1] != y[1] for x, y in zip(first, second, strict=True)) > len(numbers) / 4
    assert foreign.examples.a_N2.tolist() != one.examples.a_N2.tolist()  # split elsewhere


# --- overlap


def test_a_moved_first_text_ends_with_the_next_sentence_and_keeps_its_length() -> None:
    store = of_lengths([[5, 4, 6, 3] for _ in range(40)])
    examples = passages_of(store, 20, pairs=True, seed=7)
    overlap = Overlap(examples, 0.5, 7)
    for number in np.flatnonzero(second_lengths(examples)).tolist():
        (begin, end), (next_begin, next_end) = examples.a_N2[number], examples.b_N2[number]
        for epoch in range(4):
            shift = overlap.shift(number, epoch)
            assert shift in (0, next_end - next_begin)
            if shift:
                assert end + shift == next_end
                assert begin + shift >= begin


def test_the_share_of_moved_texts_is_the_one_asked_for_and_independent_of_the_negatives() -> None:
    store = random_store(300, 8, 12)
    negatives = negatives_of(store, 30)
    overlap = Overlap(negatives.examples, 0.3, 7)
    answers = [
        (overlap.shift(number, epoch) > 0, is_negative)
        for epoch in range(3)
        for number in np.flatnonzero(second_lengths(negatives.examples)).tolist()
        for _, is_negative in [negatives.second(number, epoch)]
        if is_negative is not None
    ]
    moved = [is_negative for is_moved, is_negative in answers if is_moved]
    assert within(len(moved), len(answers), 0.3)
    assert within(sum(moved), len(moved), 0.5)


def test_an_evaluation_moves_nothing_and_neither_does_a_share_of_none() -> None:
    examples = passages_of(random_store(50, 8, 12), 30, pairs=True, seed=7)
    numbers = range(len(examples.rows_N))
    assert not any(Overlap(examples, 0.9, 7).shift(number, EVALUATION) for number in numbers)
    assert not any(Overlap(examples, 0.0, 7).shift(number, 0) for number in numbers)
    assert any(Overlap(examples, 0.9, 7).shift(number, 0) for number in numbers)
