"""Text to token ids and back: `tokenizers` behind one small class. No torch, no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import tokenizers
from numpy.typing import NDArray

from qkv.schema import UserError

Ints = NDArray[np.int64]
MASKS = ("[MASK]", "<mask>")
PADS = ("[PAD]", "<pad>")
UNKNOWNS = ("[UNK]", "<unk>")
ENDS = ("[SEP]", "</s>", "<|endoftext|>")
ROLES = {  # as transformers calls them in tokenizer_config.json
    "pad_token": (*PADS, *ENDS), "unk_token": UNKNOWNS, "cls_token": ("[CLS]", "<s>"), "sep_token": ("[SEP]", "</s>"),
    "mask_token": MASKS, "bos_token": ("<s>",), "eos_token": ENDS,
}  # fmt: skip
BEGINNINGS = ("\u2581", "\u0120")  # mark the space before a word: Unigram, byte-level BPE
CANNOT = "tokenizer.json cannot encode these texts"
PART = 1_000_000  # characters encoded at once
PROBES = 1000  # words tried, at most, to find one that a foreign tokenizer knows
Side = Literal["left", "right"]
Input = str | tuple[str, str]
T = TypeVar("T")


@dataclass(frozen=True)
class Encoded:
    """Token ids of a text with its special tokens. `truncated` says that not all of the text fitted."""

    ids: list[int]
    segments: list[int]
    truncated: bool


@dataclass(frozen=True)
class Template:
    """The special tokens around a text (`before`, `after`), or around and between the two texts of a pair. The second
    text and what follows it have segment `segment_b`; all else has segment 0. A single text has nothing `between`."""

    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    segment_b: int

    def __len__(self) -> int:
        return len(self.before) + len(self.between) + len(self.after)

    def apply(self, ids: Sequence[int]) -> list[int]:
        """A single text with its special tokens."""
        return [*self.before, *ids, *self.after]


class Tokenizer:
    """A tokenizer.json. Special tokens are added as the file says; padding and truncation are decided by the caller.

    Encoding never changes the underlying `tokenizers` object, so one Tokenizer may serve several threads.
    """

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        inner.no_padding()
        inner.no_truncation()
        inner.encode_special_tokens = False
        self._inner = inner

    @staticmethod
    def from_file(path: Path) -> Tokenizer:
        return Tokenizer(guarded(lambda: tokenizers.Tokenizer.from_file(str(path)), f"{path}: not a tokenizer.json"))

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """The same tokenizer, for which "[MASK]" in a text is six characters, not a special token."""
        copied = tokenizers.Tokenizer.from_str(self._inner.to_str())
        copied.encode_special_tokens = True
        return copied

    @cached_property
    def size(self) -> int:
        """Vocabulary size: the largest id plus one, added tokens included."""
        return 1 + max(self._inner.get_vocab(with_added_tokens=True).values(), default=-1)

    @property
    def mask(self) -> str | None:
        """The mask token, if there is one."""
        return next((token for token in MASKS if self.id_of(token) is not None), None)

    @property
    def unknown(self) -> int | None:
        """Id of the unknown token, if there is one."""
        return self._first_id(UNKNOWNS)

    @property
    def pad(self) -> int:
        """Id of the padding token; where there is none, of the end token, or 0: padding is always masked."""
        return self._first_id(ROLES["pad_token"]) or 0

    @property
    def end(self) -> int | None:
        """Id of the end-of-text token, if there is one."""
        return self._first_id(ENDS)

    def special_roles(self) -> dict[str, str]:
        """The special tokens by their role in transformers."""
        found = {role: [token for token in tokens if self.id_of(token) is not None] for role, tokens in ROLES.items()}
        return {role: tokens[0] for role, tokens in found.items() if tokens}

    def _first_id(self, tokens: Sequence[str]) -> int | None:
        return next((number for token in tokens if (number := self.id_of(token)) is not None), None)

    def to_json(self) -> str:
        """The text of a tokenizer.json."""
        return self._inner.to_str(pretty=True)

    def encode(
        self, texts: Sequence[Input], limit: int | None = None, *, cut: Side = "right", literal: bool = False
    ) -> list[Encoded]:
        """Ids of each text or pair with special tokens. One longer than `limit` is truncated on the side `cut`; of a
        pair the longer text first. If `literal`, special tokens in a text are plain text."""
        for number, text in enumerate(texts, 1):
            for part in (text,) if isinstance(text, str) else text:
                check_text(part, number)
        made = _encode_batch(self._chosen(literal), texts)
        encoded = [Encoded(one.ids, one.type_ids, truncated=False) for one in made]
        for number, one in enumerate(encoded):
            if limit is not None and len(one.ids) > limit:
                short = self._truncated(texts[number], limit, cut, literal)
                encoded[number] = Encoded(short.ids, short.type_ids, truncated=True)
        return encoded

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text without special tokens, never truncated. Special tokens in a text are plain text, so that
        nobody can inject one through their data. A text of millions of characters is encoded in parts, at spaces where
        it has some: the library needs a hundred bytes and more for each token."""
        for number, text in enumerate(texts, 1):
            check_text(text, number)
        made: list[list[int]] = [[] for _ in texts]
        for group in _groups(texts):
            parts = _encode_batch(self._literal, [part for _, part in group], special_tokens=False)
            for (number, _), one in zip(group, parts, strict=True):
                made[number] += one.ids
        return made

    def spans(self, text: str, limit: int | None = None, *, literal: bool = False) -> list[tuple[int, int]]:
        """The characters (from, to) that each id of `encode` covers; (0, 0) for special tokens."""
        check_text(text, 1)
        made = guarded(lambda: self._chosen(literal).encode(text), CANNOT)
        if limit is not None and len(made.ids) > limit:
            made = self._truncated(text, limit, "right", literal)
        return made.offsets

    def _chosen(self, literal: bool) -> tokenizers.Tokenizer:
        return self._literal if literal else self._inner

    def _truncated(self, text: Input, limit: int, side: Side, literal: bool) -> tokenizers.Encoding:
        """One text or pair within `limit` tokens, special tokens included."""
        inner, whole = self._chosen(literal), (text,) if isinstance(text, str) else text
        room = limit - inner.num_special_tokens_to_add(is_pair=len(whole) == 2)
        if room < 1:
            raise UserError(f"a limit of {limit} tokens leaves no room for text beside the special tokens")
        parts = [guarded(partial(inner.encode, part, add_special_tokens=False), CANNOT) for part in whole]
        kept = [room]
        if len(parts) == 2:
            kept = [int(some) for some in longest_first(np.array(len(parts[0])), np.array(len(parts[1])), room)]
        for part, length in zip(parts, kept, strict=True):
            part.truncate(length, direction=side)
        return guarded(lambda: inner.post_process(parts[0], parts[1] if len(parts) == 2 else None), CANNOT)

    def template(self, *, pair: bool) -> Template:
        """The special tokens that this tokenizer puts around a text, or around a pair."""
        return self._pair_template if pair else self._single_template

    @cached_property
    def _single_template(self) -> Template:
        return self._probed(pair=False)

    @cached_property
    def _pair_template(self) -> Template:
        return self._probed(pair=True)

    def _probed(self, pair: bool) -> Template:
        """Found by encoding a word and comparing: a tokenizer.json can define a template in many ways."""
        probe = self._probe
        made = guarded(lambda: self._inner.encode(probe, probe if pair else None), CANNOT)
        runs = [(who, [n for n, _ in run]) for who, run in groupby(enumerate(made.sequence_ids), lambda one: one[1])]
        texts = [places for who, places in runs if who is not None]
        if [who for who, _ in runs if who is not None] != ([0, 1] if pair else [0]):
            raise UserError("tokenizer.json does not keep the texts of a pair whole and in their order")
        first, last = texts[0], texts[-1]
        return Template(
            before=tuple(made.ids[: first[0]]),
            between=tuple(made.ids[first[-1] + 1 : last[0]]) if pair else (),
            after=tuple(made.ids[last[-1] + 1 :]),
            segment_b=_encode_batch(self._inner, [(probe, probe)])[0].type_ids[last[0]] if pair else 0,
        )

    @cached_property
    def _probe(self) -> str:
        """A text of one id or more. The letter a mostly is; some tokenizers know a few words only."""
        for word in ("a", *islice(self._inner.get_vocab(with_added_tokens=True), PROBES)):
            try:
                if _encode_batch(self._inner, [word], special_tokens=False)[0].ids:
                    return word
            except UserError:  # not even an unknown token; the next word may be known
                continue
        raise UserError("tokenizer.json turns none of its own words into ids")

    def specials(self) -> list[bool]:
        """For each id, whether it is a special token."""
        flags = [False] * self.size
        for number, token in self._inner.get_added_tokens_decoder().items():
            flags[number] = flags[number] or token.special
        return flags

    def inside_words(self) -> list[bool]:
        """For each id, whether it continues a word, as `##ing` does."""
        tokens = [self._inner.id_to_token(number) or "" for number in range(self.size)]
        if any(token.startswith("##") and len(token) > 2 for token in tokens):
            return [token.startswith("##") and len(token) > 2 for token in tokens]
        for sign in BEGINNINGS:
            if any(token.startswith(sign) for token in tokens):
                return [not token.startswith(sign) for token in tokens]
        raise UserError("train.whole_words: this tokenizer does not mark where words begin; accepted: false")

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return guarded(lambda: self._inner.decode(list(ids)), "tokenizer.json cannot decode its own ids")

    def id_of(self, token: str) -> int | None:
        return self._inner.token_to_id(token)

    def token(self, token_id: int) -> str:
        """One token as readable text."""
        return self.decode([token_id]).strip() or self._inner.id_to_token(token_id) or f"<{token_id}>"


def longest_first(a: Ints, b: Ints, room: int) -> tuple[Ints, Ints]:
    """How many tokens of each text of a pair are kept: the shorter one whole if it leaves the other more than half."""
    small = np.minimum(a, b)
    keep_large = np.where(small > room, small, np.maximum(small, room - small))
    halves = small + keep_large > room
    keep_small = np.where(halves, room // 2, small)
    keep_large = np.where(halves, room // 2 + room % 2, keep_large)
    fits = a + b <= room
    first = np.where(a > b, keep_large, keep_small)
    second = np.where(a > b, keep_small, keep_large)
    return np.where(fits, a, np.minimum(a, first)), np.where(fits, b, np.minimum(b, second))


def _encode_batch(
    inner: tokenizers.Tokenizer, texts: Sequence[Input], *, special_tokens: bool = True
) -> list[tokenizers.Encoding]:
    return guarded(lambda: inner.encode_batch_fast(list(texts), add_special_tokens=special_tokens), CANNOT)


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
