"""Text to ids and back: five kinds of tokenizer, trained alike each time; foreign ones; templates, truncation, spans,
threads, absurd input."""

from __future__ import annotations

import json
import os
import random
import string
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, normalizers, pre_tokenizers, processors

from qkv.config.recipe import ModelConfig, Recipe, Truncation
from qkv.model import build_model
from qkv.predict.prediction import InputOptions
from qkv.predict.predictor import Predictor
from qkv.schema import UserError
from qkv.tokenizer import tokenizer as room
from qkv.tokenizer.tokenizer import Template, Tokenizer, longest_first
from qkv.tokenizer.train import KINDS, SPECIALS, train_tokenizer
from qkv.training.build import open_data

TEXTS = [
    "The film was unbelievably good, and the film's music was better.",
    "the actors played badly; Nobody played well: 10/10 for the cats!",
    "Ein Film über Käse. Der Käse war gut.",
    "good films, better films, unbelievable films (played again and again)",
    "a line\n\nand another\tline  with blanks",
] * 3
ODD = [
    "",
    " ",
    "  two  blanks ",
    "tab\tline\r\nline\u2028line\u0085nel\x00nul\x1c",
    "naïve café — “quotes” … İstanbul ß ǅ",
    "한국어 中文字 日本語 ไทย हिन्दी العربية",
    "👩‍👩‍👧‍👦🏳️‍🌈 e\u0301 \u200d\ufeff\ufffd\ue000\u2581\U0010ffff",
    "[SEP] typed [MASK] by [UNK] hand [PAD][CLS]",
    "▁word Ġword ##ing Ċ",
    "x" * 200 + " " * 200 + "!" * 200,
]


def trained(kind: str, size: int = 400, lowercase: bool = False) -> Tokenizer:
    return train_tokenizer(TEXTS, kind=kind, vocab_size=size, lowercase=lowercase)


MADE = {kind: trained(kind) for kind in KINDS}


# ----------------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_the_same_special_tokens_and_no_more_ids_than_asked_for(kind: str) -> None:
    made = MADE[kind]
    assert [made._inner.id_to_token(n) for n in range(5)] == list(SPECIALS)
    assert (made.pad, made.unknown, made.mask) == (0, 1, "[MASK]")
    assert made.size <= 400
    assert sorted(made._inner.get_vocab().values()) == list(range(made.size))
    assert made.template(pair=False) == Template((2,), (), (3,), 0)
    assert made.template(pair=True) == Template((2,), (3,), (3,), 1)


@pytest.mark.parametrize("kind", ["wordpiece", "unigram"])
def test_no_character_is_unknown_while_there_is_room(kind: str) -> None:
    """Words of one letter leave nothing to learn but the letters, which may then take more than half."""
    made = train_tokenizer([" ".join(string.ascii_lowercase)] * 3, kind=kind, vocab_size=64, lowercase=True)
    assert made.size <= 64
    assert all(made.unknown not in ids for ids in made.ids(list(string.ascii_lowercase)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_texts_give_the_same_bytes_in_any_order(kind: str) -> None:
    assert trained(kind).to_json() == MADE[kind].to_json()
    turned = train_tokenizer(iter(TEXTS[::-1]), kind=kind, vocab_size=400, lowercase=False)
    assert turned.to_json() == MADE[kind].to_json()


def test_the_same_texts_give_the_same_bytes_in_another_process_on_one_thread() -> None:
    code = f"""if True:
        import sys
        from qkv.tokenizer.train import KINDS, train_tokenizer
        for kind in KINDS:
            made = train_tokenizer({TEXTS!r}, kind=kind, vocab_size=400, lowercase=False)
            sys.stdout.buffer.write(made.to_json().encode())
    """
    environment = {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "3"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=os.environ | environment)
    assert run.stdout.decode() == "".join(MADE[kind].to_json() for kind in KINDS)


def test_pieces_are_learnt() -> None:
    for kind, piece in {"wordpiece": "film", "bpe": "Ġfilm", "unigram": "▁film"}.items():
        assert MADE[kind].id_of(piece) is not None, kind
    assert MADE["wordpiece"].id_of("##y") is not None
    assert MADE["wordpiece"].id_of("##!") is None  # a word of its own wherever it stands
    long = "unbelievably unbelievable"
    for kind in ("wordpiece", "bpe", "unigram"):
        assert len(MADE[kind].ids([long])[0]) < 8, kind
    assert len(MADE["characters"].ids([long])[0]) == len(MADE["bytes"].ids([long])[0]) == len(long)


def test_unigram_takes_the_most_probable_cut() -> None:
    """Against all cuts of a word, with the probabilities in the file."""
    made = MADE["unigram"]
    scores: dict[str, float] = dict(json.loads(made.to_json())["model"]["vocab"])
    for word in ("▁unbelievably", "▁played", "▁musicfilms", "better"):
        best = max(sum(scores.get(piece, -1e9) for piece in cut) for cut in cuts(word))
        found = [token.value for token in made._inner.model.tokenize(word)]
        assert sum(scores[piece] for piece in found) == pytest.approx(best)


def cuts(word: str) -> Iterator[list[str]]:
    """Every way to cut a word into pieces."""
    for places in product((False, True), repeat=len(word) - 1):
        bounds = [0, *(n for n, here in enumerate(places, 1) if here), len(word)]
        yield [word[a:b] for a, b in pairwise(bounds)]


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "characters"])
def test_rare_characters_give_way_where_the_vocabulary_is_small(kind: str) -> None:
    made = trained(kind, 16)
    assert made.size <= 16
    assert made.id_of("ß") is None
    (ids,) = made.ids(["the ßß film"])
    assert made.unknown in ids


def test_characters_keeps_the_most_frequent() -> None:
    made = train_tokenizer(
        ["aaaa bbb" + string.punctuation + "ccc dd"], kind="characters", vocab_size=16, lowercase=False
    )
    assert [made._inner.id_to_token(n) for n in range(5, 9)] == ["a", "b", "c", " "]
    assert made.size == 16


def test_a_vocabulary_too_small_or_a_kind_unknown_is_a_sentence() -> None:
    with pytest.raises(UserError, match=r"tokenizer.vocab_size = 260: kind = 'bpe' needs at least 261"):
        trained("bpe", 260)
    assert trained("bpe", 261).size == 261
    with pytest.raises(UserError, match=r"tokenizer.vocab_size = 15: kind = 'wordpiece' needs at least 16"):
        trained("wordpiece", 15)
    with pytest.raises(UserError, match=r"tokenizer.kind = 'wordpeace': did you mean wordpiece\?"):
        trained("wordpeace")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [[], [""], [" ", "\n\t", "\u2003"]])
def test_no_text_is_a_sentence(kind: str, texts: list[str]) -> None:
    with pytest.raises(UserError, match=r"^no text to train a tokenizer on$"):
        train_tokenizer(texts, kind=kind, vocab_size=400, lowercase=True)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram", "characters"])
def test_half_a_character_is_a_sentence_when_learning(kind: str) -> None:
    with pytest.raises(UserError, match=r"text 2: character 3 is '\\ud83d', half of a character"):
        train_tokenizer(["good", "bad\ud83d"], kind=kind, vocab_size=400, lowercase=True)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_words_beyond_the_limit_teach_nothing_and_the_frequent_ones_come_first(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rare = [f"{a}{b}{a}{b}" for a in "abcdefghi" for b in "klmnopq"]
    texts = [*rare, *rare, *["often used"] * 9]
    much = train_tokenizer(texts, kind=kind, vocab_size=1000, lowercase=False)
    monkeypatch.setattr("qkv.tokenizer.train.LESSONS", 60)
    few, again = (train_tokenizer(t, kind=kind, vocab_size=1000, lowercase=False) for t in (texts, texts[::-1]))
    assert few.to_json() == again.to_json()
    assert len(few.ids(["often used"])[0]) <= 3
    assert sum(map(len, few.ids(rare))) > 1.5 * sum(map(len, much.ids(rare)))
    assert few.unknown not in few.ids([" ".join(rare)])[0]  # characters are known all the same


def test_unigram_drops_what_is_missed_least() -> None:
    rare = [f"{a}{b}{a}{b}" for a in "abcdefghi" for b in "klmnopq"]
    made = train_tokenizer([*rare, *rare, *["theatre"] * 50], kind="unigram", vocab_size=60, lowercase=False)
    assert made.size == 60
    assert made.id_of("▁theatre") is not None


def test_pieces_are_pieces_of_words_and_leave_half_of_the_room_to_themselves() -> None:
    together = " ".join(TEXTS)
    for kind in ("wordpiece", "unigram"):
        pieces = [token for token in trained(kind, 100)._inner.get_vocab() if token not in SPECIALS]
        bodies = [piece.removeprefix("##").replace("▁", " ") for piece in pieces]
        assert all(body in f" {together}" for body in bodies)
        assert sum(len(body) == 1 for body in bodies) <= 48
    inside = [token for token in MADE["wordpiece"]._inner.get_vocab() if token.startswith("##") and len(token) > 4]
    assert inside
    assert all(any(token[2:] in word[1:] for word in together.split()) for token in inside)


# ---------------------------------------------------------------------------------------------------------- and back


@pytest.mark.parametrize("kind", ["bpe", "bytes"])
@pytest.mark.parametrize("text", ODD)
def test_any_text_comes_back_exactly(kind: str, text: str) -> None:
    (ids,) = MADE[kind].ids([text])
    assert MADE[kind].decode(ids) == text
    assert MADE[kind].unknown not in ids


@given(st.text(st.characters(exclude_categories=["Cs"])))
@settings(max_examples=200, deadline=None)
def test_any_text_at_all_comes_back_exactly(text: str) -> None:
    for kind in ("bpe", "bytes"):
        assert MADE[kind].decode(MADE[kind].ids([text])[0]) == text


@pytest.mark.parametrize("kind", ["unigram", "characters"])
def test_known_characters_come_back(kind: str) -> None:
    for text in TEXTS:
        assert MADE[kind].decode(MADE[kind].ids([text])[0]) == text
    assert MADE["characters"].ids(["☃a☃☃"]) == [[1, MADE["characters"].id_of("a"), 1, 1]]


def test_wordpiece_comes_back_up_to_its_normalisation() -> None:
    made = trained("wordpiece", lowercase=True)
    (ids,) = made.ids(["Ein FILM\nüber  Käse"])
    assert made.decode(ids) == "ein film uber kase"
    assert MADE["wordpiece"].decode(MADE["wordpiece"].ids(["Ein Film über Käse"])[0]) == "Ein Film über Käse"


def test_bytes_are_numbered_in_their_order() -> None:
    (ids,) = MADE["bytes"].ids(["aß\n"])
    assert ids == [5 + byte for byte in "aß\n".encode()]


@pytest.mark.parametrize("kind", KINDS)
def test_lowercase_reads_alike_in_every_kind(kind: str) -> None:
    made = trained(kind, lowercase=True)
    plain, loud = made.ids(["der kase war gut", "DER KÄSE WAR GUT"])
    assert plain == loud
    plain, loud = MADE[kind].ids(["der kase war gut", "DER KÄSE WAR GUT"])
    assert plain != loud


def test_korean_stays_whole_in_lowercase_characters() -> None:
    made = train_tokenizer(["한국어 É"], kind="characters", vocab_size=400, lowercase=True)
    assert made.ids(["한국어 é"])[0] == [made.id_of(c) for c in "한국어 e"]


# ------------------------------------------------------------------------------------------------------- absurd input


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("letters", ["a", string.ascii_lowercase, "!", " ", "क्", "中文"])
def test_words_of_absurd_length(kind: str, letters: str) -> None:
    rng = random.Random(5)
    text = "".join(rng.choices(letters, k=30_000)) + "x"
    made = train_tokenizer([text], kind=kind, vocab_size=400, lowercase=False)
    (ids,) = made.ids([text])
    assert len(made.encode([text], 512)[0].ids) <= 512
    if kind in ("bpe", "bytes"):
        assert made.decode(ids) == text
    if kind != "wordpiece":
        assert made.unknown not in ids


@pytest.mark.parametrize("kind", KINDS)
def test_no_word_is_learnt_or_read_longer_than_the_limit(kind: str) -> None:
    """What a trainer or a model gets in one piece: its time grows faster than the length."""
    inner = MADE[kind]._inner
    for text in ("a" * 1000, "!" * 1000, " " * 1000, "7" * 1000, "中" * 1000, "\n" * 1000):
        words = inner.pre_tokenizer.pre_tokenize_str(text)
        assert kind == "wordpiece" or max(len(w) for w, _ in words) <= 4 * 65
    learnt = train_tokenizer(["a" * 5000], kind=kind, vocab_size=400, lowercase=False)
    longest = {"wordpiece": len("##") + 64, "bpe": 64, "unigram": 16}.get(kind, len("[MASK]"))
    assert max(len(token) for token in learnt._inner.get_vocab()) <= longest


def test_a_text_of_many_parts_is_read_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [" ".join(TEXTS), "", "short", *TEXTS, "x" * 301]
    whole = {kind: MADE[kind].ids(texts) for kind in ("wordpiece", "bpe", "unigram", "bytes")}
    sizes: list[int] = []
    monkeypatch.setattr(room, "PART", 100)
    encode_batch = room._encode_batch

    def counted(
        inner: tokenizers.Tokenizer, some: list[str], *, special_tokens: bool = True
    ) -> list[tokenizers.Encoding]:
        sizes.append(sum(map(len, some)))
        return encode_batch(inner, some, special_tokens=special_tokens)

    monkeypatch.setattr(room, "_encode_batch", counted)
    for kind, ids in whole.items():
        parts = MADE[kind].ids(texts)
        assert parts[:-1] == ids[:-1], kind
    assert max(sizes) < 200
    assert parts[-1] == ids[-1]  # no blank to cut at; bytes do not mind


# -------------------------------------------------------------------------------------------- templates and truncation


def foreign(name: str) -> Tokenizer:
    words = {word: n for n, word in enumerate(["<s>", "</s>", "<unk>", "b", "c", "d", "e", "<pad>", "[CLS]", "[SEP]"])}
    unknown = None if name == "no unknown" else "<unk>"
    if name == "no unknown":
        del words["<unk>"]
    inner = tokenizers.Tokenizer(models.WordLevel(words, **({"unk_token": unknown} if unknown else {})))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if name != "no unknown":
        inner.add_special_tokens(["<s>", "</s>", "[CLS]", "[SEP]"])
    ends = [("<s>", 0), ("</s>", 1), ("[CLS]", 8), ("[SEP]", 9)]
    pairs = {
        "bert": ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
        "t5": ("$A </s>", "$A </s> $B </s>"),
        "llama": ("<s> $A", "<s> $A $B"),
        "many": ("<s> <s> $A </s> [SEP]", "<s> $A </s> [SEP] <s> $B:1 </s>:1 [SEP]:1"),
    }
    if name in pairs:
        single, pair = pairs[name]
        inner.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ends)
    if name == "roberta":
        inner.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0))
    return Tokenizer(inner)


TEMPLATES = {
    "bert": (Template((8,), (), (9,), 0), Template((8,), (9,), (9,), 1)),
    "roberta": (Template((0,), (), (1,), 0), Template((0,), (1, 1), (1,), 0)),
    "t5": (Template((), (), (1,), 0), Template((), (1,), (1,), 0)),
    "llama": (Template((0,), (), (), 0), Template((0,), (), (), 0)),
    "many": (Template((0, 0), (), (1, 9), 0), Template((0,), (1, 9, 0), (1, 9), 1)),
    "bare": (Template((), (), (), 0), Template((), (), (), 0)),
    "no unknown": (Template((), (), (), 0), Template((), (), (), 0)),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_template_of_a_foreign_tokenizer(name: str) -> None:
    made = foreign(name)
    assert (made.template(pair=False), made.template(pair=True)) == TEMPLATES[name]
    assert made.pad == 7
    assert made.unknown == (None if name == "no unknown" else 2)


def test_a_table_needs_a_row_for_the_largest_id_also_where_ids_are_missing() -> None:
    assert foreign("bert").size == 10
    assert foreign("no unknown").size == 10  # has no 2
    apart = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 700}))
    assert Tokenizer(apart).size == 701
    apart = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 700}))
    apart.add_tokens(["c"])
    assert Tokenizer(apart).size == 1 + max(apart.get_vocab().values())
    assert Tokenizer(tokenizers.Tokenizer(models.BPE({}, []))).size == 0


def test_a_tokenizer_that_knows_nothing_or_turns_texts_round_is_a_sentence() -> None:
    nothing = Tokenizer(tokenizers.Tokenizer(models.BPE({}, [])))
    with pytest.raises(UserError, match="none of its own words"):
        nothing.template(pair=False)
    assert (nothing.pad, nothing.unknown, nothing.mask) == (0, None, None)
    turned = foreign("bare")
    turned._inner.post_processor = processors.TemplateProcessing(single="$A", pair="$B $A", special_tokens=[])
    with pytest.raises(UserError, match="in their order"):
        turned.template(pair=True)
    assert turned.template(pair=False) == Template((), (), (), 0)  # single texts are read all the same


def framed(template: Template, a: list[int], b: list[int] | None, limit: int, side: str) -> tuple[list[int], list[int]]:
    """Ids and segments, put together by hand: the longer text gives way until both are alike, then by turns."""
    space = limit - len(template)
    size_a, size_b = len(a), len(b or [])
    while size_a + size_b > space:
        if size_a > size_b or (size_a == size_b and len(a) <= len(b or [])):
            size_a -= 1
        else:
            size_b -= 1

    def kept(ids: list[int], size: int) -> list[int]:
        return ids[:size] if side == "right" else ids[len(ids) - size :]

    a = kept(a, size_a)
    if b is None:
        ids = [*template.before, *a, *template.after]
        return ids, [0] * len(ids)
    b = kept(b, size_b)
    first, second = [*template.before, *a, *template.between], [*b, *template.after]
    return first + second, [0] * len(first) + [template.segment_b] * len(second)


PAIRS = [
    ("b c d", "e"), ("b", "c d e b c d e b"), ("b c d e b c d e b", "c"), ("b c d e b", "b c d e b"),
    ("b c d e b c", "e d c b e d c"), ("", "b c"), ("b c", ""), ("", ""),
]  # fmt: skip


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("limit", [7, 8, 9, 10, 13, 40])
@pytest.mark.parametrize("name", [*TEMPLATES, *KINDS])
def test_template_and_ids_are_what_encode_gives(name: str, limit: int, side: str) -> None:
    made = MADE[name] if name in KINDS else foreign(name)
    singles = [text for pair in PAIRS for text in pair]
    template = made.template(pair=False)
    for text, one in zip(singles, made.encode(singles, limit, cut=side), strict=True):  # type: ignore[arg-type]
        (ids,) = made.ids([text])
        assert (one.ids, one.segments) == framed(template, ids, None, limit, side), text
        assert one.truncated == (len(ids) + len(template) > limit)
    template = made.template(pair=True)
    for pair, one in zip(PAIRS, made.encode(PAIRS, limit, cut=side), strict=True):  # type: ignore[arg-type]
        a, b = made.ids(pair)
        assert (one.ids, one.segments) == framed(template, a, b, limit, side), pair
        assert len(one.ids) <= limit


@given(st.integers(0, 40), st.integers(0, 40), st.integers(2, 40))
def test_longest_first_fills_the_room_and_truncates_the_longer(a: int, b: int, space: int) -> None:
    first, second = (int(kept[0]) for kept in longest_first(np.array([a]), np.array([b]), space))
    assert first + second == min(space, a + b)
    assert 0 <= first <= a
    assert 0 <= second <= b
    shorter, kept = (a, first) if a < b else (b, second)
    assert kept == min(shorter, max(kept, space // 2))  # the shorter one loses nothing before it has half of the space


@pytest.mark.parametrize(
    ("a", "b", "space", "expected"),
    [(9, 2, 6, (4, 2)), (2, 9, 6, (2, 4)), (9, 9, 7, (3, 4)), (9, 8, 7, (4, 3)), (0, 9, 5, (0, 5)), (3, 3, 6, (3, 3))],
)
def test_longest_first_by_hand(a: int, b: int, space: int, expected: tuple[int, int]) -> None:
    first, second = longest_first(np.array([a]), np.array([b]), space)
    assert (int(first[0]), int(second[0])) == expected


def without_post_processor() -> Tokenizer:
    """A trained tokenizer that adds no special tokens, as many decoders have it."""
    inner = tokenizers.Tokenizer.from_str(MADE["wordpiece"].to_json())
    inner.post_processor = None
    return Tokenizer(inner)


WITH_SPECIALS = [
    "the [MASK] was good", "[SEP] film [MASK][CLS] x[SEP] played again and again", "", "b", "the cats",
    "The film was unbelievably good, and the film's music was better.", "[PAD]", "Der Käse war gut. " * 3,
]  # fmt: skip
WITH_SPECIALS_PAIRS = [(a, b) for a in WITH_SPECIALS for b in WITH_SPECIALS]


def by_the_library(
    made: Tokenizer, texts: list[room.Input], limit: int, side: str, literal: bool
) -> list[tuple[list[int], list[int]]]:
    """Ids and type ids as the library itself truncates, by a copy whose settings may be changed."""
    inner = tokenizers.Tokenizer.from_str(made.to_json())
    inner.encode_special_tokens = literal
    inner.enable_truncation(limit, direction=side)
    return [(one.ids, one.type_ids) for one in inner.encode_batch_fast(texts)]


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("texts", [WITH_SPECIALS, WITH_SPECIALS_PAIRS], ids=["singles", "pairs"])
@pytest.mark.parametrize("name", ["wordpiece", "bpe", "none", "bert", "roberta", "t5", "llama", "many", "bare"])
def test_truncation_is_that_of_the_library(name: str, texts: list[room.Input], side: room.Side, literal: bool) -> None:
    made = MADE[name] if name in KINDS else without_post_processor() if name == "none" else foreign(name)
    least = 1 + len(made.template(pair=not isinstance(texts[0], str)))
    truncated = 0
    for limit in (least, least + 1, least + 2, least + 5, least + 12):
        found = made.encode(texts, limit, cut=side, literal=literal)
        assert [(one.ids, one.segments) for one in found] == by_the_library(made, texts, limit, side, literal)
        whole = made.encode(texts, literal=literal)
        assert [one.truncated for one in found] == [len(one.ids) > limit for one in whole]
        truncated += sum(one.truncated for one in found)
    assert truncated > 10


@pytest.mark.parametrize("literal", [False, True])
@pytest.mark.parametrize("name", ["wordpiece", "bpe", "none"])
def test_spans_of_a_truncated_text_are_those_of_the_library(name: str, literal: bool) -> None:
    made = without_post_processor() if name == "none" else MADE[name]
    for text in WITH_SPECIALS:
        for limit in (3, 5, 9):
            inner = tokenizers.Tokenizer.from_str(made.to_json())
            inner.encode_special_tokens = literal
            inner.enable_truncation(limit)
            assert made.spans(text, limit, literal=literal) == inner.encode(text).offsets


def test_many_threads_encode_as_one_does() -> None:
    """Each thread has its own side, limit and reading of special tokens, and gets what it would get alone."""
    jobs: list[tuple[int | None, room.Side, bool]] = [
        (limit, side, literal) for limit in (None, 4, 7, 12) for side in ("left", "right") for literal in (False, True)
    ]
    texts: list[room.Input] = [*WITH_SPECIALS, *WITH_SPECIALS_PAIRS]

    def encode(made: Tokenizer, job: tuple[int | None, room.Side, bool]) -> list[room.Encoded]:
        limit, side, literal = job
        return made.encode(texts, limit, cut=side, literal=literal)

    alone = [encode(MADE["wordpiece"], job) for job in jobs]
    ids = MADE["wordpiece"].ids(WITH_SPECIALS)
    shared, start = trained("wordpiece"), Barrier(4)  # a new one: what it makes when first asked is made by all at once

    def work(number: int) -> bool:
        start.wait()
        order = [(number + k) % len(jobs) for k in range(len(jobs))] * 3
        return all(encode(shared, jobs[k]) == alone[k] and shared.ids(WITH_SPECIALS) == ids for k in order)

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [True] * 4


class Spied:
    """The library's tokenizer, and how often each of its methods was looked up."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self._inner, self.asked = inner, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked[name] += 1
        return getattr(self._inner, name)


@pytest.mark.parametrize("truncation", ["head", "head+tail", "windows"])
def test_predicting_does_not_copy_the_vocabulary(truncation: Truncation) -> None:
    """It may have 250,000 tokens: it is looked through for the first prediction, and not for each."""
    made = trained("wordpiece")
    spied = [Spied(made._inner), Spied(made._literal)]
    made._inner, made._literal = (cast(tokenizers.Tokenizer, one) for one in spied)
    config = ModelConfig.read(
        {"vocabulary": made.size, "width": 8, "heads": 2, "layers": 1, "feedforward": 8, "head": "classification",
         "classes": 2, "context": 16}
    )  # fmt: skip
    options = InputOptions(length=8, truncation=truncation, literal=True)
    predictor = Predictor(build_model(config, seed=1), config, made, labels=("bad", "good"), input_options=options)
    first = predictor.predict(TEXTS)
    for one in spied:
        one.asked.clear()
    for _ in range(3):
        assert predictor.predict(TEXTS) == first
        predictor.embed(["the film"])
    assert sum(one.asked["get_vocab"] for one in spied) == 0
    assert sum(one.asked["encode_batch_fast"] for one in spied) == 6  # the spies were asked


def test_no_room_is_a_sentence_and_leaves_nothing_behind() -> None:
    made = MADE["wordpiece"]
    for texts, limit in (["the film"], 2), ([("the film", "the cats")], 3):
        with pytest.raises(
            UserError, match=f"^a limit of {limit} tokens leaves no room for text beside the special tokens$"
        ):
            made.encode(texts, limit)
    assert not made.encode(["the film was good"])[0].truncated
    assert made._inner.truncation is made._literal.truncation is None
    assert len(made.encode(["the film was good", ("the", "film was good")], 4)[1].ids) == 4


def test_half_a_character_is_a_sentence_everywhere() -> None:
    made = MADE["bpe"]
    for call in (
        lambda: made.ids(["good", "\udc00"]),
        lambda: made.encode(["good", ("good", "\udc00")]),
    ):
        with pytest.raises(UserError, match="text 2: character 0 is"):
            call()
    with pytest.raises(UserError, match="half of a character"):
        made.spans("\udc00")


# ----------------------------------------------------------------------------------- special tokens that a user writes


@pytest.mark.parametrize("kind", KINDS)
def test_a_special_token_in_a_text_is_text_for_ids_and_itself_for_encode(kind: str) -> None:
    made = MADE[kind]
    text = "good [SEP] films [MASK][CLS][PAD] x[SEP]"
    (ids,) = made.ids([text])
    assert not {0, 2, 3, 4} & set(ids)
    (one,) = made.encode([text])
    assert one.ids.count(3) == 3
    assert one.ids.count(4) == one.ids.count(0) == 1
    assert one.ids.count(2) == 2
    assert made.encode([text])[0] == one
    if kind in ("bpe", "bytes"):
        assert made.decode(ids) == text


# -------------------------------------------------------------------------------------------------------------- spans


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [None, 5, 9])
def test_spans_are_as_long_as_ids_and_cover_the_text(kind: str, limit: int | None) -> None:
    made = trained(kind, lowercase=True)
    text = "Der KÄSE war [MASK] gut, über 10/10"
    spans = made.spans(text, limit)
    ids = made.encode([text], limit)[0].ids
    assert len(spans) == len(ids)
    assert spans[0] == spans[-1] == (0, 0)
    inner = spans[1:-1]
    assert all(0 <= a <= b <= len(text) for a, b in inner)
    assert [a for a, _ in inner] == sorted(a for a, _ in inner)
    covered = {n for a, b in inner for n in range(a, b)}
    last = max(covered) + 1
    assert all(n in covered or text[n].isspace() for n in range(last))
    assert limit is not None or last == len(text)


def test_spans_slice_the_words() -> None:
    made = trained("wordpiece", lowercase=True)
    text = "Der  Film, der KÄSE"
    assert [text[a:b] for a, b in made.spans(text)[1:-1]] == ["Der", "Film", ",", "der", "KÄSE"]
    for kind in ("bpe", "unigram"):
        text = "The film's music"
        assert [text[a:b].strip() for a, b in MADE[kind].spans(text)[1:-1]] == ["The", "film", "'s", "music"], kind


# ------------------------------------------------------------------------------------------------------- other readers


def test_special_tokens_have_their_roles_also_under_the_names_of_others() -> None:
    assert MADE["wordpiece"].special_roles() == {
        "pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]",
        "eos_token": "[SEP]",
    }  # fmt: skip
    words = {token: number for number, token in enumerate(["a", "b", "<|endoftext|>"])}
    like_gpt2 = Tokenizer(tokenizers.Tokenizer(models.WordLevel(words, unk_token="a")))
    assert like_gpt2.special_roles() == {"pad_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    assert like_gpt2.pad == like_gpt2.end == 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_written_tokenizer_reads_back(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(MADE[kind].to_json(), encoding="utf-8")
    again = Tokenizer.from_file(path)
    assert again.to_json() == MADE[kind].to_json()
    assert again.ids(ODD) == MADE[kind].ids(ODD)
    assert again.encode(TEXTS, 9) == MADE[kind].encode(TEXTS, 9)


@pytest.mark.parametrize("lowercase", [True, False])
def test_transformers_reads_wordpiece_as_bert(tmp_path: Path, lowercase: bool) -> None:
    transformers = pytest.importorskip("transformers")
    made = trained("wordpiece", lowercase=lowercase)
    path = tmp_path / "tokenizer.json"
    path.write_text(made.to_json(), encoding="utf-8")
    vocabulary = sorted(made._inner.get_vocab().items(), key=lambda one: one[1])
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token, _ in vocabulary), encoding="utf-8")
    readers = [
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), pad_token="[PAD]"),
        transformers.BertTokenizerFast.from_pretrained(str(tmp_path), do_lower_case=lowercase),
    ]
    texts = [text for text in [*TEXTS, *ODD] if unicodedata.is_normalized("NFC", text)]
    for reader in readers:
        assert reader(texts)["input_ids"] == [one.ids for one in made.encode(texts)]
        both = reader([TEXTS[0]], [TEXTS[1]])
        (one,) = made.encode([(TEXTS[0], TEXTS[1])])
        assert both["input_ids"] == [one.ids]


def test_bert_has_this_very_normaliser() -> None:
    """The parts of the file are BERT's own, so that every reader of such files knows them."""
    inner = trained("wordpiece", lowercase=True)._inner
    assert isinstance(inner.normalizer, normalizers.BertNormalizer)
    assert isinstance(inner.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
    assert isinstance(inner.model, models.WordPiece)
    assert (inner.model.max_input_chars_per_word, inner.model.continuing_subword_prefix) == (100, "##")


# --------------------------------------------------------------------------------------------- what a recipe gets


@pytest.mark.parametrize("task", ["complete", "translate"])
def test_by_default_what_is_generated_comes_back_exactly(tmp_path: Path, task: str) -> None:
    """Case, accents, blanks and any script, also such as no training text has."""
    lines = ["Ein schöner Tag.", "Das war schon  alles,\tund Ärger.", *(f"Zeile {number}: été" for number in range(40))]
    file = tmp_path / ("rows.jsonl" if task == "translate" else "book.txt")
    rows = [json.dumps({"text": line, "target": line}) if task == "translate" else line for line in lines]
    file.write_text("\n".join(rows), encoding="utf-8")
    table = {"task": task, "data": {"corpus": str(file)}, "tokenizer": {"vocab_size": 300}}
    data = open_data(Recipe.read(table), cache=tmp_path / "cache")
    assert data.recipe.tokenizer.kind == "bpe"
    made = data.prepared.tokenizer
    for text in (*ODD, "schön und schon", "Привет, мир!", "  zwei  Blanks\n", "👩‍🚀 é é", "\u200b\ufeff"):
        (ids,) = made.ids([text])
        assert made.decode(ids) == text
        assert made.unknown not in ids


def test_a_classifier_keeps_case_and_accents_by_default(tmp_path: Path) -> None:
    rows = "".join(
        f"Das ist schön {number},{number % 2}\nDas ist schon {number},{number % 2}\n" for number in range(40)
    )
    (tmp_path / "rows.csv").write_text(f"text,label\n{rows}")
    data = open_data(Recipe.read({"data": {"corpus": str(tmp_path / "rows.csv")}}), cache=tmp_path / "cache")
    assert data.recipe.tokenizer.kind == "wordpiece"
    first, second, third = data.prepared.tokenizer.ids(["schön", "schon", "Schon"])
    assert first != second != third
