"""What is minimised: the only file that knows both a Batch and a model.

A loss is a total for each of its parts, never a mean: means of pieces of different size cannot be averaged, totals can
be added over micro-batches and divided once, by what the batches say they count (`Batch.counts`).

B examples · C labels · N words to be guessed · M pairs
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.data.batch import Batch, LabelBatch, NextBatch, WordBatch
from qkv.model.heads import place_in_rows
from qkv.model.transformer import Decoder, Encoder, EncoderDecoder, Model, hidden_states, text_answers

Totals = dict[str, Tensor]  # part of the loss -> its sum over the batch


def label_scores(model: Model, batch: Batch) -> Tensor:
    """A score for each label (B, C), or a grade (B, 1)."""
    assert not isinstance(model, EncoderDecoder), "a recipe's family is checked before"
    return text_answers(model, batch.tokens_BL, batch.keep_BL, batch.segments_BL)


def classify(model: Model, batch: LabelBatch, *, smoothing: float) -> Totals:
    """Cross-entropy of the labels, each example counted by its weight; smoothing after Szegedy et al., 2016."""
    losses_B = F.cross_entropy(label_scores(model, batch), batch.labels_B, reduction="none", label_smoothing=smoothing)
    return {"labels": (losses_B * batch.weights_B).sum()}


def grade(model: Model, batch: LabelBatch) -> Totals:
    """Squared error of the grades, which come with mean 0 and variance 1."""
    return {"labels": F.mse_loss(label_scores(model, batch)[:, 0], batch.labels_B, reduction="sum")}


def word_scores(model: Model, batch: WordBatch) -> tuple[Tensor, Tensor | None]:
    """Scores of every word at the places to be guessed (N, V), and of each pair for next or stranger (M, 2). The last
    layer is computed only at those places and at the token the pairs are judged by; words are scored nowhere else."""
    assert isinstance(model, Encoder), "a recipe's family is checked before"
    head, pairs = model.text, len(batch.pairs_M)
    if head is None or not pairs:
        hidden_ND = hidden_states(model, batch.tokens_BL, batch.keep_BL, batch.segments_BL, batch.places_N)
        return model.logits(hidden_ND), None
    assert head.place is not None, "pool = mean is refused before"
    keep_BL = torch.ones_like(batch.tokens_BL, dtype=torch.bool) if batch.keep_BL is None else batch.keep_BL
    judged_M = place_in_rows(head.place, keep_BL).index_select(0, batch.pairs_M)
    at = torch.cat([batch.places_N, judged_M])
    hidden = hidden_states(model, batch.tokens_BL, batch.keep_BL, batch.segments_BL, at)
    words_ND, pairs_MD = hidden.split_with_sizes([len(batch.places_N), pairs])
    return model.logits(words_ND), head.answer(pairs_MD)


def fill(model: Model, batch: WordBatch) -> Totals:
    """Cross-entropy of the hidden words, and of next sentence or stranger (Devlin et al., 2019). Each has its own
    targets and its own count."""
    words_NV, pairs_M2 = word_scores(model, batch)
    totals = {"word": F.cross_entropy(words_NV, batch.words_N, reduction="sum")}
    if pairs_M2 is not None:
        totals["next"] = F.cross_entropy(pairs_M2, batch.strangers_M, reduction="sum")
    return totals


def next_scores(model: Model, batch: NextBatch) -> Tensor:
    """Scores of every word at each place where the next is to be guessed (N, V), by a decoder or for a translation."""
    if isinstance(model, EncoderDecoder):
        assert batch.source_BS is not None, "the batch is of translations"
        hidden_BLD = model(batch.source_BS, batch.tokens_BL, batch.source_keep_BS, batch.keep_BL)
        hidden_ND = hidden_BLD.flatten(0, 1)
        return model.logits(hidden_ND if batch.places_N is None else hidden_ND.index_select(0, batch.places_N))
    assert isinstance(model, Decoder), "a recipe's family is checked before"
    hidden = model(batch.tokens_BL, batch.keep_BL, at_N=batch.places_N)
    return model.logits(hidden.flatten(0, 1) if batch.places_N is None else hidden)


def guess_next(model: Model, batch: NextBatch, *, smoothing: float) -> Totals:
    """Cross-entropy of every next word (Bengio et al., 2003); smoothing as the 2017 paper has it."""
    scores_NV = next_scores(model, batch)
    return {"word": F.cross_entropy(scores_NV, batch.words_N, reduction="sum", label_smoothing=smoothing)}
