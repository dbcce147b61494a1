"""Classification of a text or a pair: cross-entropy, accuracy, calibrated probabilities."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from qkv import calibration, metrics
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import RowFormat
from qkv.data.prepare import Prepared
from qkv.data.store import Store
from qkv.model.transformer import Model
from qkv.predict.predictor import Predictor
from qkv.schema import Say, UserError, listed
from qkv.tasks.task import Labelled, Loss, Task, Validation, training_rows
from qkv.tasks.texts import (
    LabelBatch,
    TextDataset,
    output_layer,
    row_logits,
    text_dataset,
    text_logits,
    text_of,
    truncation_notes,
    whole_rows,
)  # fmt: skip


def datasets(recipe: Recipe, prepared: Prepared) -> tuple[TextDataset, TextDataset]:
    train = training_rows(prepared.train, recipe)
    return _dataset(recipe, prepared, train), _dataset(recipe, prepared, prepared.validation)


def _dataset(recipe: Recipe, prepared: Prepared, store: Store) -> TextDataset:
    made = text_dataset(recipe, store, prepared.tokenizer)
    labels_R = store.labels_R.astype(np.int64)
    weights_C = _class_weights(labels_R[made.examples.rows_N], max(1, len(prepared.labels)), recipe.data.balance)
    return replace(made, labels_R=labels_R, weights_R=weights_C[labels_R])


def _class_weights(labels_N: NDArray[np.int64], classes: int, balance: str) -> NDArray[np.float32]:
    """Equal, or inverse to the frequency of a class. It counts examples, not rows: a long row may be many windows."""
    if balance == "none":
        return np.ones(classes, np.float32)
    counts_C = np.bincount(labels_N, minlength=classes)
    return (len(labels_N) / (classes * np.maximum(counts_C, 1))).astype(np.float32)


def loss(model: Model, batch: LabelBatch, recipe: Recipe) -> Loss:
    """Weighted cross-entropy; label smoothing after Szegedy et al., 2016."""
    smoothing = recipe.train.label_smoothing
    losses_B = F.cross_entropy(text_logits(model, batch), batch.labels_B, reduction="none", label_smoothing=smoothing)
    return {"labels": (losses_B * batch.weights_B).sum()}


def validate(model: Model, dataset: TextDataset) -> Validation:
    logits_RC = row_logits(model, dataset, output_layer(model).out_features)
    labels_R = dataset.labels_R
    temperature = calibration.fit_temperature(logits_RC, labels_R)
    found = {
        "raw_loss": calibration.cross_entropy(logits_RC, labels_R),
        "accuracy": metrics.accuracy(logits_RC, labels_R),
        "temperature": temperature,
    }
    return Validation(calibration.cross_entropy(logits_RC, labels_R, temperature), found, temperature)


@torch.no_grad()
def fold(model: Model, recipe: Recipe, prepared: Prepared, temperature: float) -> None:
    """Divide the last layer by the temperature: whoever loads the model gets calibrated probabilities."""
    if temperature != 1.0:
        for weight in output_layer(model).parameters():
            weight.div_(temperature)


def test(
    predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say
) -> dict[str, metrics.ClassificationMetrics]:
    """Metrics of all rows under "all", and by group where rows have one."""
    whole, id_of = whole_rows(rows, say), {name: number for number, name in enumerate(predictor.labels)}
    for label, row in whole:
        if label not in id_of:
            raise UserError(f"{row.place}: label {label!r} is unknown to this model; known: {listed(predictor.labels)}")
    labels_N = np.array([id_of[label] for label, _ in whole])
    groups_N = np.array([row.group or "" for _, row in whole])
    predictions = predictor.predict([text_of(row) for _, row in whole])
    probabilities_NC = np.array([list((one.probabilities or {}).values()) for one in predictions])
    raw_NC = calibration.uncalibrated(probabilities_NC, predictor.input_options.temperature)
    raw_bins = calibration.reliability(raw_NC, labels_N)
    everything = metrics.classification_metrics(probabilities_NC, labels_N, predictor.labels)
    found = {"all": replace(everything, raw_bins=raw_bins)}
    for group in sorted(set(groups_N.tolist()) - {""}):
        own = groups_N == group
        found[group] = metrics.classification_metrics(probabilities_NC[own], labels_N[own], predictor.labels)
    return found


def title(prepared: Prepared, found: metrics.TestMetrics | None) -> str:
    labels = prepared.labels
    return f"A text classifier with {len(labels)} labels ({listed(labels[:10])}{', ...' if len(labels) > 10 else ''})"


CLASSIFY = Task(
    name="classify",
    format=lambda recipe: RowFormat(),
    head=lambda recipe: "classification",
    fits=lambda config: config.head == "classification",
    datasets=datasets,
    loss=loss,
    validate=validate,
    test=test,
    title=title,
    metrics=(metrics.ValidationMetric("accuracy", "accuracy", curve=True),),
    notes=truncation_notes,
    fold=fold,
    calibrated=True,
)
