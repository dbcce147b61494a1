"""`tokenizers` behind one small class: text in, ids out, and back. Knows no torch and no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import tokenizers

from qkv.schema import UserError

MASKS = ("[MASK]", "<mask>")
T = TypeVar("T")


@dataclass(frozen=True)
class Encoded:
    """A text as the model sees it. `cut` says that not all of it fitted."""

    ids: list[int]
    segments: list[int]
    cut: bool


class Tokenizer:
    """A tokenizer.json. Special tokens are added as the file says; padding and cutting are ours to decide."""

    def __init__(self, inner: tokenizers.Tokenizer) -> None:
        self.inner = inner
        inner.no_padding()
        inner.no_truncation()

    @staticmethod
    def from_file(path: Path) -> Tokenizer:
        return Tokenizer(_guarded(lambda: tokenizers.Tokenizer.from_file(str(path)), f"{path}: not a tokenizer.json"))

    @property
    def size(self) -> int:
        """Number of ids, added tokens included."""
        return self.inner.get_vocab_size(with_added_tokens=True)

    @property
    def mask(self) -> str | None:
        """The token that stands for a missing word, if this tokenizer has one."""
        return next((token for token in MASKS if self.inner.token_to_id(token) is not None), None)

    def encode(
        self, texts: Sequence[str], limit: int | None = None, *, cut: Literal["left", "right"] = "right"
    ) -> list[Encoded]:
        """Ids of each text, special tokens added; one longer than `limit` is cut on that side, special tokens kept."""
        for number, text in enumerate(texts, 1):
            try:
                text.encode("utf-8")
            except UnicodeEncodeError as error:
                found = f"character {error.start} is {text[error.start]!r}"
                raise UserError(f"text {number}: {found}, half of a character (a lone surrogate), not text") from None
        encoded = [Encoded(ids, segments, cut=False) for ids, segments in self._encoded(texts)]
        long = [n for n, one in enumerate(encoded) if limit is not None and len(one.ids) > limit]
        if long and limit is not None:
            if self.inner.num_special_tokens_to_add(is_pair=False) >= limit:
                raise UserError(f"{limit} tokens have no room for a text beside the special tokens")
            self.inner.enable_truncation(limit, direction=cut)
            try:
                for number, (ids, segments) in zip(long, self._encoded([texts[n] for n in long]), strict=True):
                    encoded[number] = Encoded(ids, segments, cut=True)
            finally:
                self.inner.no_truncation()
        return encoded

    def _encoded(self, texts: Sequence[str]) -> list[tuple[list[int], list[int]]]:
        made = _guarded(lambda: self.inner.encode_batch_fast(list(texts)), "tokenizer.json cannot encode these texts")
        return [(one.ids, one.type_ids) for one in made]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return _guarded(lambda: self.inner.decode(list(ids)), "tokenizer.json cannot decode its own ids")

    def id_of(self, token: str) -> int | None:
        return self.inner.token_to_id(token)

    def word(self, token_id: int) -> str:
        """One token as a reader would write it."""
        return self.decode([token_id]).strip() or self.inner.id_to_token(token_id) or f"<{token_id}>"


def _guarded(call: Callable[[], T], sentence: str) -> T:
    """Call into the library. What is wrong in a file it reports as a plain Exception, or as a Rust panic, which is no
    Exception at all."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:
        raise UserError(f"{sentence}: {str(error)[:200]!r}") from None
