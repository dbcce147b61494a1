"""What a beam search went through, as plain data: every hypothesis of every step, and which source words it looked at.

H heads · L target tokens · S source tokens
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from qkv.decode import Grown, Hypothesis, length_penalty, ranked
from qkv.generation import search
from qkv.model.attention import Recorder
from qkv.model.transformer import Decoder, EncoderDecoder
from qkv.predict import Predictor
from qkv.prediction import Padded
from qkv.schema import UserError


@dataclass(frozen=True)
class Node:
    """One hypothesis at one step: its last word, and where it came from."""

    word: str
    token: int
    parent: int | None  # number of the hypothesis of the step before that it continues; None: it is the first word
    log_probability: float  # of all its words
    length_penalty: float
    score: float  # the one divided by the other
    ended: bool
    alignment: tuple[float, ...]  # share of each source token in its last word (cross-attention); empty: no source


@dataclass(frozen=True)
class BeamTrace:
    """A search from begin to end."""

    text: str
    source: tuple[str, ...]  # the source's tokens; empty for a decoder
    steps: tuple[tuple[Node, ...], ...]
    answers: tuple[tuple[str, Hypothesis], ...]  # best first, as text and as tokens

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def trace_beams(predictor: Predictor, text: str, **wanted: Any) -> BeamTrace:
    """Search for the continuation or translation of one text, and keep everything."""
    model, asked = predictor.model, predictor.asked(**wanted)
    if not isinstance(model, Decoder | EncoderDecoder) or predictor.config.head != "words":
        raise UserError("only a model that continues or translates has beams to show")
    batch = Padded.of([0], [text], predictor.prompts([text], asked))
    limit, alpha = asked.limit(predictor.config.family, batch.tokens_BL.shape[1]), asked.decode.length_penalty
    grown = list(search(model, batch, predictor.names, asked, limit))
    found = ranked(grown, texts=1, limit=limit, alpha=alpha, best=asked.best)[0]
    source = batch.encoded[0].ids if isinstance(model, EncoderDecoder) else []
    looks = _alignments(model, batch, predictor.names.start or 0, grown) if isinstance(model, EncoderDecoder) else {}
    steps = tuple(_nodes(predictor, one, alpha, looks) for one in grown)
    words = tuple(predictor.tokenizer.word(token) for token in source)
    return BeamTrace(text, words, steps, tuple((predictor.target.decode(one.tokens), one) for one in found))


def _nodes(
    predictor: Predictor, grown: Grown, alpha: float, looks: dict[tuple[int, int], tuple[float, ...]]
) -> tuple[Node, ...]:
    penalty = length_penalty(grown.length, alpha)
    columns = (grown.tokens_M, grown.parents_M, grown.log_probabilities_M, grown.ended_M)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        Node(
            word=predictor.target.word(token),
            token=token,
            parent=parent if grown.length > 1 else None,
            log_probability=total,
            length_penalty=penalty,
            score=total / penalty,
            ended=ended,
            alignment=looks.get((grown.length, number), ()),
        )
        for number, (token, parent, total, ended) in enumerate(rows)
    )


def _alignments(
    model: EncoderDecoder, batch: Padded, start: int, grown: list[Grown]
) -> dict[tuple[int, int], tuple[float, ...]]:
    """Of each hypothesis, by length and number: how its last word shares its attention among the source's tokens, the
    mean over the heads of the last layer. Every branch of the tree is read once, from its tip."""
    memory = model.encode(batch.tokens_BL, batch.keep_BL)
    found: dict[tuple[int, int], tuple[float, ...]] = {}
    for step in reversed(grown):
        for tip in range(len(step.tokens_M)):
            if (step.length, tip) in found:
                continue
            path = _path(grown, step.length, tip)
            tokens = [start, *(token for _, token in path[:-1])]
            recorder = Recorder()
            model.step(torch.tensor([tokens]), model.start(memory, batch.keep_BL), attend=recorder)
            cross_LS = recorder.weights[-1][0].mean(0)  # the last layer asks the source last
            for place, (number, _) in enumerate(path):
                found.setdefault((place + 1, number), tuple(cross_LS[place].tolist()))
    return found


def _path(grown: list[Grown], length: int, number: int) -> list[tuple[int, int]]:
    """The hypotheses that lead to one, from the first word on: their numbers and tokens."""
    path = []
    for step in reversed(grown[:length]):
        path.append((number, int(step.tokens_M[number])))
        number = int(step.parents_M[number])
    return path[::-1]
