"""How good a model is: on tokenised rows while it learns, and on raw text once it is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from qkv.learn import metrics
from qkv.learn.material import Material
from qkv.learn.objectives import label_scores
from qkv.model.transformer import Model
from qkv.predict import Predictor
from qkv.schema import UserError, listed
from qkv.text.corpus import Row


@dataclass(frozen=True)
class Evaluation:
    """The validation rows by a model that is still learning. `loss` is that after calibration: the loss of the model
    one would ship, which does not punish mere over-confidence, and by which the best weights are chosen."""

    loss: float
    raw_loss: float
    accuracy: float
    temperature: float


@torch.no_grad()
def evaluate(model: Model, material: Material) -> Evaluation | None:
    """None where there are no validation rows."""
    if not len(material.store):
        return None
    was_training = model.training
    model.eval()
    scores_RC, labels_R = _scores(model, material)
    model.train(was_training)
    temperature = metrics.fit_temperature(scores_RC, labels_R)
    return Evaluation(
        loss=metrics.cross_entropy(scores_RC, labels_R, temperature),
        raw_loss=metrics.cross_entropy(scores_RC, labels_R),
        accuracy=metrics.accuracy(scores_RC, labels_R),
        temperature=temperature,
    )


def _scores(model: Model, material: Material) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Scores of every row: the mean over its windows."""
    rows_N = material.examples.rows_N
    sums_RC = np.zeros((len(material.store), material.classes))
    for numbers_B in material.sampler.in_order():
        scores_BC = label_scores(model, material.collate(numbers_B)).double().numpy()
        np.add.at(sums_RC, rows_N[numbers_B], scores_BC)
    windows_R = np.bincount(rows_N, minlength=len(sums_RC))
    return sums_RC / windows_R[:, None], material.store.labels_R.astype(np.int64)


def score_rows(
    predictor: Predictor, rows: Iterable[tuple[str | None, Row]], say: Callable[[str], None] = lambda sentence: None
) -> dict[str, metrics.Scores]:
    """Scores of a finished model by the same road that `predict` takes: under "all", and by group where rows have one.

    Each row comes with its label as the model names it. Rows without text or label are left out, and `say` is told.
    """
    left_out: list[str] = []
    names = predictor.names.labels
    number_of = {name: number for number, name in enumerate(names)}
    texts: list[str | tuple[str, str]] = []
    labels, groups = list[int](), list[str]()
    for label, row in rows:
        if label is None or not (row.text.strip() or (row.pair or "").strip()):
            left_out.append(row.place)
            continue
        if label not in number_of:
            raise UserError(f"{row.place}: label {label!r} is not one this model knows; known: {listed(names)}")
        texts.append(row.text if row.pair is None else (row.text, row.pair))
        labels.append(number_of[label])
        groups.append(row.group or "")
    if left_out:
        say(f"note: {len(left_out):,} rows without text or label are left out, first {left_out[0]}")
    if not texts:
        raise UserError("no rows with text and label to evaluate on")
    shares_NC = np.array(
        [list(answer.probabilities.values()) for answer in predictor.predict(texts) if answer.probabilities]
    )
    labels_N, groups_N = np.array(labels), np.array(groups)
    raw_NC = metrics.softmax(np.log(np.maximum(shares_NC, 1e-300)) * predictor.reading.temperature)
    raw_bins = metrics.reliability(raw_NC, labels_N)
    scores = {"all": replace(metrics.score(shares_NC, labels_N, names), raw_bins=raw_bins)}
    for group in sorted(set(groups) - {""}):
        chosen = groups_N == group
        scores[group] = metrics.score(shares_NC[chosen], labels_N[chosen], names)
    return scores
