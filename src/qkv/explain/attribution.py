"""Which words decided: integrated gradients.

L length · N steps · D width · C classes
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.config.recipe import TEXT_HEADS
from qkv.data.truncation import spans_of
from qkv.model.masks import positions_of
from qkv.model.transformer import Decoder, Encoder, EncoderDecoder
from qkv.predict.prediction import TextBatch
from qkv.predict.predictor import Predictor
from qkv.schema import UserError, nearest
from qkv.tokenizer.tokenizer import Encoded

IDEOGRAPHS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"  # Chinese and Japanese have no blanks
STEPS = 32  # from the baseline to the text
PASS_TOKENS = 2048  # of one forward and backward pass
Span = tuple[int, int]  # from which character to which
WORD = re.compile(rf"[{IDEOGRAPHS}]|[^\s{IDEOGRAPHS}]+")


@dataclass(frozen=True)
class WordScore:
    """A word with what follows it until the next one, as written: all words together are the text."""

    word: str
    score: float  # above 0: for the label; below 0: against it


def deciding_words(predictor: Predictor, text: str, label: str | None = None) -> list[WordScore]:
    """Which words decided: integrated gradients (Sundararajan et al., 2017).

    The attributed value is the label's logit minus the mean logit of the others (without a label: of the predicted
    one), or the number of a regression. All scores of a text sum, nearly, to the difference of this value from the
    baseline, where each token has the mean embedding of the vocabulary. A word has the sum of its tokens; special
    tokens belong to no word, and words that were truncated have 0.
    """
    if not isinstance(text, str) or predictor.input_options.pairs:
        raise UserError("attributions are for single texts, not for pairs")
    wanted = _label_number(predictor, text, label)
    starts = [found.start() for found in WORD.finditer(text)]
    sums = [0.0] * len(starts)
    pieces = _read(predictor, text) if starts else []
    for encoded, spans in pieces:
        own = torch.tensor([end > begin for begin, end in spans])
        scores = token_scores(predictor, TextBatch.of([0], [text], [encoded]), own, wanted)
        for (begin, end), score in zip(spans, scores, strict=True):
            piece = text[begin:end]
            if piece:
                begin += len(piece) - len(piece.lstrip()) if piece.strip() else 0  # some begin with the blank before
                sums[max(0, bisect_right(starts, begin) - 1)] += score / len(pieces)
    edges = [0, *starts[1:], len(text)]
    return [WordScore(text[a:b], total) for a, b, total in zip(edges, edges[1:], sums, strict=False)]


def token_scores(predictor: Predictor, batch: TextBatch, own_L: Tensor, label: int) -> list[float]:
    """The score of each of a text's own tokens.

    All embeddings go from the mean of the vocabulary to their own in STEPS steps; a token's score is the gradient along
    its part of the path, summed. The gradient at the end alone (gradient times input) is not enough: a norm ignores the
    length of a vector, and the output of a confident model is saturated.
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
    """The gradient with respect to each embedding (N, L, D). First order: the fused kernel has no second."""
    assert model.text is not None
    with torch.enable_grad():
        x_NLD = x_NLD.detach().requires_grad_()
        hidden_NLD, _ = model.stack(x_NLD, positions_of(x_NLD, None), None)
        scores_NC = model.text(hidden_NLD)
        others_N = (scores_NC.sum(1) - scores_NC[:, label]) / max(1, scores_NC.shape[1] - 1)
        return torch.autograd.grad((scores_NC[:, label] - others_N).sum(), x_NLD)[0]


def _label_number(predictor: Predictor, text: str, label: str | None) -> int:
    """The output to attribute: that of the label, or the only one there is."""
    head, labels = predictor.config.head, predictor.labels
    if head not in TEXT_HEADS:
        raise UserError(f"this model has head = {head!r}; attributions need classification or regression")
    if label is not None and label not in labels:
        raise UserError(
            f"label = {label!r}: " + (nearest(label, labels) if labels else "a regression model has no labels")
        )
    if head == "regression":
        return 0
    return labels.index(str(predictor.predict([text])[0].label) if label is None else label)


def _read(predictor: Predictor, text: str) -> list[tuple[Encoded, list[Span]]]:
    """The text as the model reads it, whole, in windows or by its two ends, and which characters each token stands
    for."""
    limit, tokenizer = predictor.max_length(), predictor.tokenizer
    literal, truncation = predictor.input_options.literal, predictor.input_options.truncation
    (whole,), spans = tokenizer.encode([text], literal=literal), tokenizer.spans(text, literal=literal)
    if limit is None or len(whole.ids) <= limit:
        return [(whole, spans)]
    if truncation == "head":
        cut = tokenizer.encode([text], limit, literal=literal)[0]
        return [(cut, tokenizer.spans(text, limit, literal=literal))]
    template = tokenizer.template(pair=False)
    before, after = len(template.before), len(template.after)
    last = len(whole.ids) - after
    made = []
    for parts in spans_of(last - before, max(1, limit - before - after), truncation):
        read = [n for a, b in parts for n in range(before + a, before + b)]
        ids = [*template.before, *(whole.ids[n] for n in read), *template.after]
        own = [*before * [(0, 0)], *(spans[n] for n in read), *after * [(0, 0)]]
        made.append((Encoded(ids, [0] * len(ids), truncated=truncation == "head+tail"), own))
    return made
