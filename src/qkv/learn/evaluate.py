"""How good a model is while it learns: on the tokenised validation rows."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from qkv.learn import metrics
from qkv.learn.material import JUDGED, Documents, Material, Texts
from qkv.learn.objectives import label_scores, next_scores, word_scores
from qkv.learn.sequences import Pairs, Running
from qkv.model.transformer import Model


@dataclass(frozen=True)
class Evaluation:
    """The validation rows by a model that is still learning. The best weights are chosen by `loss`: that of classes is
    the one after calibration, of the model one would ship, which does not punish mere over-confidence."""

    loss: float
    figures: dict[str, float]
    temperature: float = 1.0


def evaluate(model: Model, material: Material) -> Evaluation | None:
    """None where there are no validation rows."""
    if not len(material):
        return None
    was_training = model.training
    model.eval()
    with torch.no_grad():
        if isinstance(material, Documents):
            found = judge_words(model, material)
        elif isinstance(material, Running | Pairs):
            found = judge_next(model, material)
        else:
            assert isinstance(material, Texts), "there is no other kind"
            found = _judge_classes(model, material) if material.standard is None else _judge_grades(model, material)
    model.train(was_training)
    return found


def _judge_classes(model: Model, material: Texts) -> Evaluation:
    scores_RC, labels_R = _scores(model, material), material.store.labels_R.astype(np.int64)
    temperature = metrics.fit_temperature(scores_RC, labels_R)
    figures = {
        "raw_loss": metrics.cross_entropy(scores_RC, labels_R),
        "accuracy": metrics.accuracy(scores_RC, labels_R),
        "temperature": temperature,
    }
    return Evaluation(metrics.cross_entropy(scores_RC, labels_R, temperature), figures, temperature)


def _judge_grades(model: Model, material: Texts) -> Evaluation:
    assert material.standard is not None
    grades_R = material.standard.mean + material.standard.deviation * _scores(model, material)[:, 0]
    return Evaluation(*metrics.grade_figures(grades_R, material.store.labels_R))


def _scores(model: Model, material: Texts) -> NDArray[np.float64]:
    """Scores of every row: the mean over its windows."""
    rows_N = material.examples.rows_N
    sums_RC = np.zeros((len(material.store), material.classes))
    for numbers_B in material.sampler.in_order():
        scores_BC = label_scores(model, material.collate(numbers_B)).double().numpy()
        np.add.at(sums_RC, rows_N[numbers_B], scores_BC)
    windows_R = np.bincount(rows_N, minlength=len(sums_RC))
    return sums_RC / windows_R[:, None]


@torch.no_grad()
def judge_words(model: Model, material: Documents) -> Evaluation:
    """How well hidden words are guessed and next sentences told from strangers, always by the same words and pairs."""
    sums: dict[str, float] = defaultdict(float)
    for numbers_B in material.judged():
        batch = material.words.collate(numbers_B, JUDGED)
        words_NV, pairs_M2 = word_scores(model, batch)
        sums["words"] += len(batch.words_N)
        sums["word_loss"] += F.cross_entropy(words_NV, batch.words_N, reduction="sum").item()
        sums["word_hits"] += int((words_NV.argmax(1) == batch.words_N).sum())
        if pairs_M2 is not None:
            sums["pairs"] += len(batch.pairs_M)
            sums["next_loss"] += F.cross_entropy(pairs_M2, batch.strangers_M, reduction="sum").item()
            sums["next_hits"] += int((pairs_M2.argmax(1) == batch.strangers_M).sum())
    word_loss = sums["word_loss"] / max(1, sums["words"])
    figures = {
        "word_loss": word_loss,
        "word_accuracy": sums["word_hits"] / max(1, sums["words"]),
        "perplexity": math.exp(min(word_loss, 700.0)),
    }
    if sums["pairs"]:
        figures["next_loss"] = sums["next_loss"] / sums["pairs"]
        figures["next_accuracy"] = sums["next_hits"] / sums["pairs"]
    return Evaluation(word_loss + figures.get("next_loss", 0.0), figures)


@torch.no_grad()
def judge_next(model: Model, material: Running | Pairs) -> Evaluation:
    """How well next words are guessed: the loss of a word, what it comes to, and by the bytes of the text where all of
    it was guessed, which does not depend on how the text was cut into tokens."""
    words, hits, total = 0, 0, 0.0
    for batch in material.judged():
        scores_NV = next_scores(model, batch)
        words += len(batch.words_N)
        hits += int((scores_NV.argmax(1) == batch.words_N).sum())
        total += F.cross_entropy(scores_NV, batch.words_N, reduction="sum").double().item()
    loss = total / max(1, words)
    figures = {"perplexity": math.exp(min(loss, 700.0)), "word_accuracy": hits / max(1, words)}
    if isinstance(material, Running) and material.text_bytes and words == int(material.windows.sizes_R.sum()):
        figures["bits_per_byte"] = total / math.log(2) / material.text_bytes
    return Evaluation(loss, figures)
