"""A beam search as plain data: every hypothesis of every step, and its attention to the source.

H heads · L target tokens · S source tokens
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch

from qkv.model.attention import Recorder
from qkv.model.transformer import Encoder, EncoderDecoder
from qkv.predict.decode import BeamStep, Hypothesis, backtrack, length_penalty, links, ranked
from qkv.predict.generate import output_limits, search
from qkv.predict.prediction import TextBatch
from qkv.predict.predictor import Predictor
from qkv.schema import UserError

Alignments = dict[tuple[int, int], tuple[float, ...]]  # by length and number of a hypothesis


@dataclass(frozen=True)
class Node:
    """One hypothesis at one step: its last token, and the hypothesis it continues."""

    token: str
    token_id: int
    parent: int | None  # number of the hypothesis of the step before; None: this is the first token
    log_probability: float  # of all its tokens
    length_penalty: float
    score: float  # log-probability / length penalty
    ended: bool
    alignment: tuple[float, ...]  # cross-attention of its last token to each source token; empty: no source


@dataclass(frozen=True)
class BeamTrace:
    """A whole beam search."""

    text: str
    source: tuple[str, ...]  # the source's tokens; empty for a decoder
    steps: tuple[tuple[Node, ...], ...]
    outputs: tuple[tuple[str, Hypothesis], ...]  # best first, as text and as tokens
    truncated: bool  # not all of the text fitted

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@torch.no_grad()
def trace_beams(predictor: Predictor, text: str, **options: Any) -> BeamTrace:
    """Beam search for one text, with everything it went through."""
    model, chosen = predictor.model, predictor.generation_options(**options)
    if not predictor.generates or isinstance(model, Encoder):
        raise UserError("only a model that generates text has a beam search to show")
    batch = predictor.prompt(text, chosen)
    limit, alpha = output_limits(model, batch, chosen), chosen.decode.length_penalty
    steps = list(search(model, batch, predictor.special_tokens, chosen))
    found = ranked(steps, texts=1, limit=limit, alpha=alpha, best=chosen.best)[0]
    source, alignments = list[int](), Alignments()
    if isinstance(model, EncoderDecoder):
        source = batch.encoded[0].ids
        alignments = _alignments(model, batch, predictor.special_tokens.start or 0, steps)
    nodes = tuple(_nodes(predictor, one, alpha, alignments) for one in steps)
    tokens = tuple(predictor.tokenizer.token(token) for token in source)
    outputs = tuple((predictor.target_tokenizer.decode(one.tokens), one) for one in found)
    return BeamTrace(text, tokens, nodes, outputs, batch.encoded[0].truncated)


def _nodes(predictor: Predictor, step: BeamStep, alpha: float, alignments: Alignments) -> tuple[Node, ...]:
    penalty = length_penalty(step.length, alpha)
    columns = (step.tokens_M, step.parents_M, step.log_probabilities_M, step.ended_M)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return tuple(
        Node(
            token=predictor.target_tokenizer.token(token),
            token_id=token,
            parent=parent if step.length > 1 else None,
            log_probability=total,
            length_penalty=penalty,
            score=total / penalty,
            ended=ended,
            alignment=alignments.get((step.length, number), ()),
        )
        for number, (token, parent, total, ended) in enumerate(rows)
    )


def _alignments(model: EncoderDecoder, batch: TextBatch, start: int, steps: list[BeamStep]) -> Alignments:
    """The attention of each hypothesis's last token to the source: the mean over the heads of the last layer. Every
    branch of the tree is read once, from its tip."""
    memory, tree = model.encode(batch.tokens_BL, batch.keep_BL), [links(step) for step in steps]
    found = Alignments()
    for step in reversed(steps):
        for tip in range(len(step.tokens_M)):
            if (step.length, tip) in found:
                continue
            path = backtrack(tree, step.length, tip)
            tokens = [start, *(token for _, token in path[:-1])]
            recorder = Recorder()
            model.step(torch.tensor([tokens]), model.start(memory, batch.keep_BL), attend=recorder)
            cross_LS = recorder.weights[-1][0].mean(0)  # cross-attention comes last in the last layer
            for position, (number, _) in enumerate(path):
                found.setdefault((position + 1, number), tuple(cross_LS[position].tolist()))
    return found
