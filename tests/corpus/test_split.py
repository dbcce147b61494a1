"""Which rows are held out is a format: the same text is in the same split in every recipe, for ever."""

import hashlib
import random
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.config.recipe import DataConfig
from qkv.corpus.corpus import open_corpus
from qkv.corpus.split import SPLITS, hash_position, split_of

TEXTS = [f"film number {n}" for n in range(20_000)]


@pytest.mark.parametrize(
    ("text", "pair", "position"),
    [
        ("", None, 0.8931675160897388),
        ("the film was good", None, 0.34723885608114113),
        ("Ärger über Öl", None, 0.5893511467675336),
        ("映画", None, 0.7509107074911674),
        ("good film", "Yes", 0.8360949463628417),
        ("a b", "c", 0.11432954606418587),
        ("a", "b c", 0.8956297997802628),
    ],
)
def test_these_positions_never_change(text: str, pair: str | None, position: float) -> None:
    assert hash_position(text, pair) == position


def test_a_position_is_the_first_64_bits_of_a_public_hash() -> None:
    digest = hashlib.blake2b(b"the film was good", digest_size=8).hexdigest()
    assert hash_position(" The  film\nwas GOOD ") == int(digest, 16) / 2**64
    both = hashlib.blake2b(b"the film\x1fgood", digest_size=8).hexdigest()
    assert hash_position("The film ", " GOOD") == int(both, 16) / 2**64


def test_shares_begin_at_0_test_first() -> None:
    below, between, above = (f"film number {n}" for n in (28, 33, 0))
    assert hash_position(below) < 0.10 <= hash_position(between) < 0.15 <= hash_position(above)
    assert [split_of(hash_position(text)) for text in (below, between, above)] == ["test", "validation", "train"]


@pytest.mark.parametrize(
    "other",
    [
        "THE CAFÉ WAS FINE, STRASSE 2",
        "  the café\twas\n\nfine, straße\u00a02\u3000",
        unicodedata.normalize("NFD", "The café was fine, Straße 2"),
        "The café was \ufb01ne, Stra\u00dfe \uff12",
    ],
)
def test_case_blanks_and_unicode_form_do_not_matter(other: str) -> None:
    assert hash_position(other) == hash_position("The café was fine, Straße 2")
    assert hash_position("x", other) == hash_position("X ", "The café was fine, Straße 2")


@pytest.mark.parametrize("word", ["\u0390", "\u03b0", "\u1f50", "\u1fb7", "\u01f0"])
def test_capitals_of_letters_that_fall_apart_are_alike_too(word: str) -> None:
    assert hash_position(word.upper()) == hash_position(word)


@given(st.text())
def test_any_text_is_where_its_other_forms_are(text: str) -> None:
    forms = [text.casefold(), f" {text}\n", *(unicodedata.normalize(form, text) for form in ("NFC", "NFD", "NFKC"))]
    assert {hash_position(form) for form in forms} == {hash_position(text)}
    assert 0 <= hash_position(text) < 1


def test_what_differs_in_more_is_elsewhere() -> None:
    alike = ["good", "goods", "go od", "good.", "göod", "doog"]
    assert len({hash_position(text) for text in alike}) == len(alike)
    pairs = [("a", "b"), ("b", "a"), ("a b", ""), ("", "a b"), ("a b", None)]
    assert len({hash_position(*pair) for pair in pairs}) == len(pairs)


def test_shares_are_about_5_and_10_percent() -> None:
    counts = Counter(split_of(hash_position(text)) for text in TEXTS)
    assert abs(counts["test"] / 20_000 - 0.10) < 0.01  # more than 4 standard deviations
    assert abs(counts["validation"] / 20_000 - 0.05) < 0.007


def test_what_has_files_of_its_own_takes_nothing_from_the_corpus() -> None:
    for validation in (False, True):
        for test in (False, True):
            splits = [split_of(hash_position(text), validation=validation, test=test) for text in TEXTS[:2000]]
            assert ("validation" in splits, "test" in splits) == (validation, test)
            for text, split in zip(TEXTS, splits, strict=False):
                assert split in (split_of(hash_position(text)), "train")  # the other held-out rows stay


def write(path: Path, texts: list[str]) -> Path:
    path.write_text("text,label\n" + "".join(f"{text},{len(text) % 2}\n" for text in texts))
    return path


def test_the_order_and_number_of_rows_do_not_matter(tmp_path: Path) -> None:
    mixed = random.Random(1).sample(TEXTS, 1000)
    splits = []
    for texts in (mixed, sorted(mixed), mixed[::2]):
        corpus = open_corpus(DataConfig(corpus=str(write(tmp_path / "r.csv", texts))))
        found = {row.text: split for split, row in corpus.rows()}
        assert len(found) == len(texts)
        splits.append(found)
    assert splits[0] == splits[1]
    assert splits[2].items() <= splits[0].items()


def test_files_of_their_own_are_their_split_whole(tmp_path: Path) -> None:
    corpus, other = str(write(tmp_path / "r.csv", TEXTS[:1000])), str(write(tmp_path / "v.csv", TEXTS[1000:1300]))
    expected = {"train": 1000, "validation": 300, "test": 300}
    third = str(write(tmp_path / "t.csv", TEXTS[1300:1600]))
    both = open_corpus(DataConfig(corpus=corpus, validation=other, test=third))
    assert Counter(split for split, _ in both.rows()) == expected
    assert {split: len(list(both.rows([split]))) for split in SPLITS} == expected
    one = Counter(split for split, _ in open_corpus(DataConfig(corpus=corpus, validation=other)).rows())
    alone = Counter(split for split, _ in open_corpus(DataConfig(corpus=corpus)).rows())
    assert one["test"] == alone["test"] > 0
    assert one["validation"] == 300
    assert one["train"] == alone["train"] + alone["validation"]
