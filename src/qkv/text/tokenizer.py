"""`tokenizers` behind one small class: text in, ids out, and back. Knows no torch and no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, TypeVar

import tokenizers

from qkv.schema import UserError

MASKS = ("[MASK]", "<mask>")
PADS = ("[PAD]", "<pad>")
UNKNOWNS = ("[UNK]", "<unk>")
ENDS = ("[SEP]", "</s>", "<|endoftext|>")
BEGINNINGS = ("\u2581", "\u0120")  # what stands for the blank before a word, by Unigram and by byte-level BPE
CANNOT = "tokenizer.json cannot encode these texts"
PART = 1_000_000  # characters encoded at once
PROBES = 1000  # words tried, at most, to find one that a foreign tokenizer knows
Side = Literal["left", "right"]
Input = str | tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Encoded:
    """A text as the model sees it. `cut` says that not all of it fitted."""

    ids: list[int]
    segments: list[int]
    cut: bool


@dataclass(frozen=True)
class Frame:
    """The special tokens around a text (`before`, `after`) or around and between the two of a pair. The second text
    and what follows it have segment `segment_b`; all else has segment 0. A single text has nothing `between`."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segment_b: int


class Tokenizer:
    """A tokenizer.json. Special tokens are added as the file says; padding and cutting are ours to decide."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        inner.no_padding()
        inner.no_truncation()

    @staticmethod
    def from_file(path: Path) -> Tokenizer:
        return Tokenizer(guarded(lambda: tokenizers.Tokenizer.from_file(str(path)), f"{path}: not a tokenizer.json"))

    @cached_property
    def size(self) -> int:
        """Rows that a table needs: one more than the largest id, added tokens included."""
        return 1 + max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def mask(self) -> str | None:
        """The token that stands for a missing word, if this tokenizer has one."""
        return next((token for token in MASKS if self.id_of(token) is not None), None)

    @property
    def unknown(self) -> int | None:
        """Id of what stands for a piece of text that has no id, if this tokenizer has one."""
        return next((number for token in UNKNOWNS if (number := self.id_of(token)) is not None), None)

    @property
    def pad(self) -> int:
        """Id that fills up short rows. Where there is none, 0 does: a model never looks at what fills up."""
        return next((number for token in PADS if (number := self.id_of(token)) is not None), 0)

    @property
    def end(self) -> int | None:
        """Id of what ends a text, if this tokenizer has one."""
        return next((number for token in ENDS if (number := self.id_of(token)) is not None), None)

    def to_json(self) -> str:
        """The text of a tokenizer.json."""
        return self.inner.to_str(pretty=True)

    def encode(
        self, texts: Sequence[Input], limit: int | None = None, *, cut: Side = "right", literal: bool = False
    ) -> list[Encoded]:
        """Ids of each text or pair of texts, special tokens added; one longer than `limit` is cut on that side, special
        tokens kept. Of a pair the longer text is cut first. If `literal`, what looks like a special token is text."""
        with self._as_text(literal):
            return self._encode(texts, limit, cut)

    def _encode(self, texts: Sequence[Input], limit: int | None, cut: Side) -> list[Encoded]:
        for number, text in enumerate(texts, 1):
            for part in (text,) if isinstance(text, str) else text:
                check_text(part, number)
        encoded = [Encoded(one.ids, one.type_ids, cut=False) for one in self._encoded(texts)]
        long = [n for n, one in enumerate(encoded) if limit is not None and len(one.ids) > limit]
        if long and limit is not None:
            given = [texts[n] for n in long]
            with self._cutting(given, limit, cut):
                for number, one in zip(long, self._encoded(given), strict=True):
                    encoded[number] = Encoded(one.ids, one.type_ids, cut=True)
        return encoded

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text alone: no special tokens around it, never cut. What looks like a special token is text, so
        that nobody can write one into their data. A text of millions of characters is read in parts, at blanks where it
        has some: the library takes a hundred bytes and more for each token."""
        for number, text in enumerate(texts, 1):
            check_text(text, number)
        made: list[list[int]] = [[] for _ in texts]
        with self._as_text(True):
            for group in _groups(texts):
                parts = self._encoded([part for _, part in group], around=False)
                for (number, _), one in zip(group, parts, strict=True):
                    made[number] += one.ids
        return made

    @contextmanager
    def _as_text(self, literal: bool) -> Iterator[None]:
        """Meanwhile what looks like a special token is text, if `literal`."""
        self.inner.encode_special_tokens = literal
        try:
            yield
        finally:
            self.inner.encode_special_tokens = False

    def spans(self, text: str, limit: int | None = None, *, literal: bool = False) -> list[tuple[int, int]]:
        """From which character of the text to which each id of `encode` reaches; (0, 0) for special tokens."""
        check_text(text, 1)
        with self._as_text(literal):
            made = guarded(lambda: self.inner.encode(text), CANNOT)
            if limit is not None and len(made.ids) > limit:
                with self._cutting([text], limit, "right"):
                    made = guarded(lambda: self.inner.encode(text), CANNOT)
        return made.offsets

    def frame(self, pair: bool) -> Frame:
        """What this tokenizer puts around a text, or around a pair. Found by encoding a word and looking what else
        comes out: a tokenizer.json can say it in many ways."""
        probe = self._probe()
        made = guarded(lambda: self.inner.encode(probe, probe if pair else None), CANNOT)
        runs = [(who, [n for n, _ in run]) for who, run in groupby(enumerate(made.sequence_ids), lambda one: one[1])]
        texts = [places for who, places in runs if who is not None]
        if [who for who, _ in runs if who is not None] != ([0, 1] if pair else [0]):
            raise UserError("tokenizer.json does not keep the texts of a pair whole and in their order")
        first, last = texts[0], texts[-1]
        return Frame(
            before=tuple(made.ids[: first[0]]),
            between=tuple(made.ids[first[-1] + 1 : last[0]]) if pair else (),
            after=tuple(made.ids[last[-1] + 1 :]),
            segment_b=self._encoded([(probe, probe)])[0].type_ids[last[0]] if pair else 0,  # as `encode` says it
        )

    def _probe(self) -> str:
        """A text that becomes one id or more. The letter a will mostly do; some know a few words only."""
        for word in ("a", *islice(self.inner.get_vocab(with_added_tokens=True), PROBES)):
            try:
                if self._encoded([word], around=False)[0].ids:
                    return word
            except UserError:  # not even an unknown token; the next word may be known
                continue
        raise UserError("tokenizer.json turns none of its own words into ids")

    @contextmanager
    def _cutting(self, texts: Sequence[Input], limit: int, side: Side) -> Iterator[None]:
        pair = not all(isinstance(text, str) for text in texts)
        if self.inner.num_special_tokens_to_add(is_pair=pair) >= limit:
            raise UserError(f"{limit} tokens have no room for a text beside the special tokens")
        self.inner.enable_truncation(limit, direction=side)
        try:
            yield
        finally:
            self.inner.no_truncation()

    def _encoded(self, texts: Sequence[Input], *, around: bool = True) -> list[tokenizers.Encoding]:
        return guarded(lambda: self.inner.encode_batch_fast(list(texts), add_special_tokens=around), CANNOT)

    def specials(self) -> list[bool]:
        """Of each id, whether it is a special token, which no text holds."""
        flags = [False] * self.size
        for number, token in self.inner.get_added_tokens_decoder().items():
            flags[number] = flags[number] or token.special
        return flags

    def inside_words(self) -> list[bool]:
        """Of each id, whether it goes on with a word that another one began, as `##ing` does."""
        tokens = [self.inner.id_to_token(number) or "" for number in range(self.size)]
        if any(token.startswith("##") and len(token) > 2 for token in tokens):
            return [token.startswith("##") and len(token) > 2 for token in tokens]
        for sign in BEGINNINGS:
            if any(token.startswith(sign) for token in tokens):
                return [not token.startswith(sign) for token in tokens]
        raise UserError("train.whole_words: this tokenizer's pieces do not say where words begin; accepted: false")

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return guarded(lambda: self.inner.decode(list(ids)), "tokenizer.json cannot decode its own ids")

    def id_of(self, token: str) -> int | None:
        return self.inner.token_to_id(token)

    def word(self, token_id: int) -> str:
        """One token as a reader would write it."""
        return self.decode([token_id]).strip() or self.inner.id_to_token(token_id) or f"<{token_id}>"


def _groups(texts: Sequence[str]) -> Iterator[list[tuple[int, str]]]:
    """Texts, or their parts, with their numbers, some at a time: PART characters or fewer, half of it or more."""
    group: list[tuple[int, str]] = []
    size = 0
    for number, text in enumerate(texts):
        start = 0
        while start < len(text):
            end = min(start + PART, len(text))
            if end < len(text):
                blank = text.rfind(" ", start + PART // 2, end)
                end = end if blank < 0 else blank
            group.append((number, text[start:end]))
            size, start = size + end - start, end
            if size >= PART // 2:
                yield group
                group, size = [], 0
    if group:
        yield group


def check_text(text: str, number: int) -> None:
    """Refuse half a character, which Python can hold and no file can."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        found = f"character {error.start} is {text[error.start]!r}"
        raise UserError(f"text {number}: {found}, half of a character (a lone surrogate), not text") from None


def guarded(call: Callable[[], T], sentence: str) -> T:
    """Call into the library. What is wrong in a file it reports as a plain Exception, or as a Rust panic, which is no
    Exception at all."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise UserError(f"{sentence}: {str(error)[:200]!r}") from None
