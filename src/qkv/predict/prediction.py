"""Predictions, and the batches of texts they are computed in.

B batch · L length
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from qkv.config.recipe import DecodeConfig, Truncation
from qkv.data.batch import Padded
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Encoded

BATCH_TOKENS = 8192  # of one forward pass, padding included
UNBOUNDED = 10**9
Text = str | tuple[str, str]  # one text, or a pair


class TextError(UserError):
    """One of the texts cannot be answered. Whoever gave only some of many texts says which of all it is."""

    def __init__(self, number: int, problem: str) -> None:
        self.number, self.problem = number, problem  # of the text, from 1
        super().__init__(f"text {number}{problem}")


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for one text. Which fields are set depends on its head."""

    text: Text
    label: str | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = None
    output: str | None = None
    log_probability: float | None = None
    alternatives: list[dict[str, Any]] | None = None
    truncated: bool = False  # not all of the text fitted

    def to_json(self) -> dict[str, Any]:
        filled = {name: value for name, value in vars(self).items() if value is not None and name != "truncated"}
        return {**filled, "truncated": True} if self.truncated else filled

    def __str__(self) -> str:
        """One line, whatever the text."""
        if self.label is not None and self.probabilities is not None:
            return f"{self.label}  {self.probabilities[self.label]:.4f}"
        if self.value is not None:
            return f"{self.value:.4f}"
        output = " ".join((self.output or "").split())
        if self.alternatives and "token" in self.alternatives[0]:
            return output + "   |" + "".join(f"  {a['token']} {a['probability']:.3f}" for a in self.alternatives)
        others = "".join(f"  |  {' '.join(a['output'].split())}" for a in (self.alternatives or [])[1:])
        return output + others


@dataclass(frozen=True)
class InputOptions:
    """How a model reads its texts. One that was not trained by qkv has the defaults."""

    length: int | None = None  # maximum sequence length
    truncation: Truncation = "head"
    pairs: bool = False  # every input is a pair
    literal: bool = False  # special tokens in a text are plain text, as in training
    temperature: float = 1.0  # of temperature scaling, already folded into the weights
    decode: DecodeConfig = field(default_factory=DecodeConfig)


@dataclass(frozen=True)
class TextBatch:
    """Texts of similar length, padded on the right."""

    numbers: list[int]  # which of all texts these are
    texts: list[Text]
    encoded: list[Encoded]
    padded: Padded

    @staticmethod
    def of(numbers: list[int], texts: Sequence[Text], everything: list[Encoded]) -> TextBatch:
        encoded = [everything[n] for n in numbers]
        ids, segments = [one.ids for one in encoded], [one.segments for one in encoded]
        padded = Padded.of(ids, segments, min_length=0)  # the model refuses a text of no tokens
        return TextBatch(numbers, [texts[n] for n in numbers], encoded, padded)

    def some(self, rows: list[int]) -> TextBatch:
        """Some of its rows, with the same padding."""
        if len(rows) == len(self.texts):
            return self
        encoded = [self.encoded[row] for row in rows]
        real_tokens = sum(len(one.ids) for one in encoded)
        padded = Padded(self.tokens_BL[rows], self.keep_BL[rows], self.segments_BL[rows], real_tokens)
        return TextBatch([self.numbers[row] for row in rows], [self.texts[row] for row in rows], encoded, padded)

    @property
    def tokens_BL(self) -> Tensor:
        return self.padded.tokens_BL

    @property
    def keep_BL(self) -> Tensor:
        return self.padded.keep_BL

    @property
    def segments_BL(self) -> Tensor:
        return self.padded.segments_BL


def batches(lengths: list[int], most: Callable[[int], int] = lambda length: UNBOUNDED) -> Iterator[list[int]]:
    """Numbers of texts that go together: shortest first, at most BATCH_TOKENS with padding and at most as many as
    `most` says for the longest, one at least."""
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        length = lengths[number]
        if batch and ((len(batch) + 1) * length > BATCH_TOKENS or len(batch) >= most(length)):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch
