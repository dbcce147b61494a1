"""What a model is asked and what it says: texts side by side, and Predictions.

B batch · L length
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.config import DecodeConfig, Long
from qkv.text.tokenizer import Encoded

BATCH_TOKENS = 8192  # of one forward pass, padding counted
MANY = 10**9  # no bound
Text = str | tuple[str, str]  # one text, or a pair


@dataclass(frozen=True)
class Prediction:
    """What a model says about one text. Which fields are filled depends on its task."""

    text: Text
    label: str | None = None
    probabilities: dict[str, float] | None = None
    value: float | None = None
    output: str | None = None
    log_probability: float | None = None
    alternatives: list[dict[str, Any]] | None = None
    cut: bool = False  # not all of the text fitted

    def to_json(self) -> dict[str, Any]:
        filled = {name: value for name, value in vars(self).items() if value is not None and name != "cut"}
        return {**filled, "cut": True} if self.cut else filled

    def __str__(self) -> str:
        """One line, whatever the text."""
        if self.label is not None and self.probabilities is not None:
            return f"{self.label}  {self.probabilities[self.label]:.4f}"
        if self.value is not None:
            return f"{self.value:.4f}"
        said = " ".join((self.output or "").split())
        if self.alternatives and "word" in self.alternatives[0]:
            return said + "   |" + "".join(f"  {a['word']} {a['probability']:.3f}" for a in self.alternatives)
        others = "".join(f"  |  {' '.join(a['output'].split())}" for a in (self.alternatives or [])[1:])
        return said + others


@dataclass(frozen=True)
class Reading:
    """How a trained model wants its texts. A model from elsewhere says nothing of it."""

    length: int | None = None  # most tokens in one piece
    long: Long = "cut"  # what is done with a longer text
    pairs: bool = False  # every text is a pair
    trained: bool = False  # by us: what looks like a special token in a text is text, as it was in training
    temperature: float = 1.0  # by which its scores were divided already
    decode: DecodeConfig = field(default_factory=DecodeConfig)  # how it gives words


@dataclass(frozen=True)
class Padded:
    """Texts of similar length side by side, padded on the right."""

    numbers: list[int]  # which of all texts these are
    texts: list[Text]
    encoded: list[Encoded]
    tokens_BL: Tensor
    segments_BL: Tensor
    keep_BL: Tensor

    @staticmethod
    def of(numbers: list[int], texts: Sequence[Text], everything: list[Encoded]) -> Padded:
        encoded = [everything[n] for n in numbers]
        length = max(len(one.ids) for one in encoded)
        shape = (len(encoded), length)
        tokens_BL, segments_BL = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        keep_BL = torch.zeros(shape, dtype=torch.bool)
        for row, one in enumerate(encoded):
            tokens_BL[row, : len(one.ids)] = torch.tensor(one.ids, dtype=torch.long)
            segments_BL[row, : len(one.ids)] = torch.tensor(one.segments, dtype=torch.long)
            keep_BL[row, : len(one.ids)] = True
        return Padded(numbers, [texts[n] for n in numbers], encoded, tokens_BL, segments_BL, keep_BL)

    def some(self, rows: list[int]) -> Padded:
        """Some of its rows."""
        if len(rows) == len(self.texts):
            return self
        return Padded(
            [self.numbers[row] for row in rows],
            [self.texts[row] for row in rows],
            [self.encoded[row] for row in rows],
            self.tokens_BL[rows],
            self.segments_BL[rows],
            self.keep_BL[rows],
        )


def batches(lengths: list[int], most: Callable[[int], int] = lambda length: MANY) -> Iterator[list[int]]:
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
