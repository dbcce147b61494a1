"""`tokenizers` behind one small class: text in, ids out, and back. Knows no torch and no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tokenizers

from qkv.schema import UserError

MASKS = ("[MASK]", "<mask>")


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
        try:
            return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises plain Exception for a missing or malformed file
            raise UserError(f"{path}: not a tokenizer.json that `tokenizers` can read: {error}") from None

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
        whole = self.inner.encode_batch_fast(list(texts))
        if limit is None or all(len(one.ids) <= limit for one in whole):
            return [Encoded(one.ids, one.type_ids, cut=False) for one in whole]
        self.inner.enable_truncation(limit, direction=cut)
        short = self.inner.encode_batch_fast(list(texts))
        self.inner.no_truncation()
        return [Encoded(s.ids, s.type_ids, cut=len(w.ids) > limit) for w, s in zip(whole, short, strict=True)]

    def decode(self, ids: Sequence[int]) -> str:
        """Text without special tokens."""
        return self.inner.decode(list(ids))

    def id_of(self, token: str) -> int | None:
        return self.inner.token_to_id(token)

    def word(self, token_id: int) -> str:
        """One token as a reader would write it."""
        return self.inner.decode([token_id]).strip() or self.inner.id_to_token(token_id) or f"<{token_id}>"
