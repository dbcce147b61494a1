"""A model looked at from inside: attention with one head worked through step by step, and which words decided.

B batch · L length · N steps · D width · H heads · K head width · C classes
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.examples import stretches
from qkv.model.attention import Attention, How, View, fused, weigh
from qkv.model.masks import positions_of
from qkv.model.transformer import Decoder, Encoder, EncoderDecoder
from qkv.predict import Predictor
from qkv.prediction import Padded
from qkv.schema import UserError, nearest
from qkv.text.tokenizer import Encoded

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Chinese and Japanese have no blanks
STEPS = 32  # from average words to the text
PASS_TOKENS = 2048  # of one forward and backward pass
Span = tuple[int, int]  # from which character to which
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+")


@dataclass(frozen=True)
class Inside:
    """One self-attention over one sequence. H heads, L tokens, head width K."""

    q_HLK: Tensor  # what each token looks for, before scaling
    k_HLK: Tensor  # what each token offers
    v_HLK: Tensor  # what each token holds
    scale: float
    weights_HLL: Tensor
    mixed_HLK: Tensor  # by the fused kernel, which never sees the weights


@dataclass(frozen=True)
class Worked:
    """What one query of one head does, in the order of the arithmetic."""

    products: list[float]  # query . key, one for each key
    scaled: list[float]  # times the scale
    exponentials: list[float]  # e to the power of that
    weights: list[float]  # divided by their sum
    output: list[float]  # the values in these proportions


def look_inside(attention: Attention, x_LD: Tensor, keep: Tensor | None = None) -> Inside:
    """Run one attention and keep everything. `keep` is a mask as in `qkv.model.masks`."""
    seen: list[Inside] = []

    def attend(q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, how: How) -> Tensor:
        mixed = fused(q_BHLK, k_BHLK, v_BHLK, how)
        q = q_BHLK / attention.scale
        seen.append(Inside(q[0], k_BHLK[0], v_BHLK[0], attention.scale, weigh(q_BHLK, k_BHLK, how)[0], mixed[0]))
        return mixed

    with torch.no_grad():
        attention(x_LD[None], View(keep=keep, attend=attend))
    return seen[0]


def work_through(inside: Inside, position: int, head: int = 0) -> Worked:
    """One query's answer in plain Python numbers, from q, k and v alone: softmax(q . k x scale) v, written out."""
    query, keys, values = (t[head].tolist() for t in (inside.q_HLK, inside.k_HLK, inside.v_HLK))
    products = [sum(a * b for a, b in zip(query[position], key, strict=True)) for key in keys]
    scaled = [product * inside.scale for product in products]
    exponentials = [math.exp(score) for score in scaled]
    weights = [e / sum(exponentials) for e in exponentials]
    output = [sum(w * value[i] for w, value in zip(weights, values, strict=True)) for i in range(len(values[0]))]
    return Worked(products, scaled, exponentials, weights, output)


@dataclass(frozen=True)
class WordScore:
    """A word with what follows it until the next one, as written: all words together are the text."""

    word: str
    score: float  # above 0: speaks for the label; below 0: against it


def deciding_words(predictor: Predictor, text: str, label: str | None = None) -> list[WordScore]:
    """Which words decided: integrated gradients (Sundararajan et al., 2017).

    The decision is the label's score less the mean score of the others; without a label it is the predicted one, and
    of a grade it is the grade. All scores of a text sum, nearly, to how far its words move the decision away from
    where it is when each of them is the average of all words. A word has the sum of its pieces; special tokens belong
    to no word, and words that did not fit have 0.
    """
    if not isinstance(text, str) or predictor.reading.pairs:
        raise UserError("which words decided is only known for single texts, not for pairs")
    wanted = _label_number(predictor, text, label)
    starts = [found.start() for found in WORD.finditer(text)]
    sums = [0.0] * len(starts)
    pieces = _read(predictor, text) if starts else []
    for encoded, spans in pieces:
        own = torch.tensor([end > begin for begin, end in spans])
        scores = token_scores(predictor, Padded.of([0], [text], [encoded]), own, wanted)
        for (begin, end), score in zip(spans, scores, strict=True):
            piece = text[begin:end]
            if piece:
                begin += len(piece) - len(piece.lstrip()) if piece.strip() else 0  # some begin with the blank before
                sums[max(0, bisect_right(starts, begin) - 1)] += score / len(pieces)
    edges = [0, *starts[1:], len(text)]
    return [WordScore(text[a:b], total) for a, b, total in zip(edges, edges[1:], sums, strict=False)]


def token_scores(predictor: Predictor, batch: Padded, own_L: Tensor, label: int) -> list[float]:
    """What each of a text's own tokens adds to the decision.

    All of them go from the average vector of the vocabulary to their own in STEPS steps; a token's score is the
    derivative along its part of the way, summed. The derivative at the end alone (gradient times input) is not enough:
    a norm does not see how long a vector is, and a sure model hardly changes any more.
    """
    model, config = predictor.model, predictor.config
    assert not isinstance(model, EncoderDecoder)
    segments_BL = batch.segments_BL.clamp(max=config.segments - 1) if config.segments else None
    with torch.no_grad():
        end_1LD = model.embedding(batch.tokens_BL, segments_BL)
        words_1LD = F.embedding(batch.tokens_BL, model.embedding.table_VD) * model.embedding.factor
        way_1LD = (words_1LD - model.embedding.table_VD.mean(0) * model.embedding.factor) * own_L[:, None]
    sums_LD = torch.zeros_like(way_1LD[0])
    left_N = (torch.arange(STEPS, dtype=way_1LD.dtype) + 0.5) / STEPS
    for some in left_N.split(max(1, PASS_TOKENS // max(1, len(own_L)))):
        sums_LD += _gradient(model, end_1LD - some[:, None, None] * way_1LD, label).sum(0)
    return (sums_LD * way_1LD[0]).sum(-1).div(STEPS).tolist()


def _gradient(model: Encoder | Decoder, x_NLD: Tensor, label: int) -> Tensor:
    """How the decision changes with each token's vector (N, L, D). First order: the fused kernel has no second."""
    assert model.text is not None
    with torch.enable_grad():
        x_NLD = x_NLD.detach().requires_grad_()
        hidden_NLD, _ = model.stack(x_NLD, positions_of(x_NLD, None), None)
        scores_NC = model.text(hidden_NLD)
        others_N = (scores_NC.sum(1) - scores_NC[:, label]) / max(1, scores_NC.shape[1] - 1)
        return torch.autograd.grad((scores_NC[:, label] - others_N).sum(), x_NLD)[0]


def _label_number(predictor: Predictor, text: str, label: str | None) -> int:
    """Which score is asked about: the label's, or the only one there is."""
    head, labels = predictor.config.head, predictor.names.labels
    if head not in ("classes", "grade"):
        raise UserError(f"this model decides nothing about a text: its head is {head}, it would have to be classes")
    if label is not None and label not in labels:
        raise UserError(f"label = {label!r}: " + (nearest(label, labels) if labels else "a grade has no labels"))
    if head == "grade":
        return 0
    return labels.index(str(predictor.predict([text])[0].label) if label is None else label)


def _read(predictor: Predictor, text: str) -> list[tuple[Encoded, list[Span]]]:
    """The text as the model reads it, whole, in windows or by its two ends, and which characters each token stands
    for."""
    limit, tokenizer = predictor.limit(), predictor.tokenizer
    literal = predictor.reading.trained
    (whole,), spans = tokenizer.encode([text], literal=literal), tokenizer.spans(text, literal=literal)
    if limit is None or len(whole.ids) <= limit:
        return [(whole, spans)]
    if predictor.reading.long == "cut":
        cut = tokenizer.encode([text], limit, literal=literal)[0]
        return [(cut, tokenizer.spans(text, limit, literal=literal))]
    frame = tokenizer.frame(pair=False)
    before, after = len(frame.before), len(frame.after)
    last = len(whole.ids) - after
    made = []
    for parts in stretches(last - before, max(1, limit - before - after), predictor.reading.long):
        read = [n for a, b in parts for n in range(before + a, before + b)]
        ids = [*frame.before, *(whole.ids[n] for n in read), *frame.after]
        own = [*before * [(0, 0)], *(spans[n] for n in read), *after * [(0, 0)]]
        made.append((Encoded(ids, [0] * len(ids), cut=predictor.reading.long == "ends"), own))
    return made
