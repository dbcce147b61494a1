"""Classification of a text or a pair: cross-entropy, accuracy, calibrated probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from qkv import calibration, metrics
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import RowFormat
from qkv.data.prepare import Prepared
from qkv.model.transformer import Model
from qkv.predict.predictor import Predictor
from qkv.schema import Say, UserError, listed
from qkv.tasks.linear_probe import MOST_TO_FIT, fit_classes
from qkv.tasks.task import Keep, Labelled, Loss, Task, Validation, training_rows
from qkv.tasks.texts import (
    LabelBatch,
    TextDataset,
    example_vectors,
    output_layer,
    row_logits,
    set_output_layer,
    text_dataset,
    text_logits,
    text_of,
    truncation_notes,
    whole_rows,
)  # fmt: skip


def datasets(recipe: Recipe, prepared: Prepared) -> tuple[TextDataset, TextDataset]:
    """Validation rows have the weights of the training rows of their class: the loss that is trained selects."""
    stores = training_rows(prepared.train, recipe), prepared.validation
    train, validation = (text_dataset(recipe, store, prepared.tokenizer) for store in stores)
    labels_R = train.store.labels_R.astype(np.int64)
    weights_C = _class_weights(labels_R[train.examples.rows_N], max(1, len(prepared.labels)), recipe.data.balance)
    return _labelled(train, weights_C), _labelled(validation, weights_C)


def _labelled(dataset: TextDataset, weights_C: NDArray[np.float32]) -> TextDataset:
    labels_R = dataset.store.labels_R.astype(np.int64)
    return replace(dataset, labels_R=labels_R, weights_R=weights_C[labels_R])


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
    """The loss is weighted as in training. So is the one that the temperature is fitted by: a model that was trained
    on weighted rows says how probable a class is where classes are as frequent as the weights make them, and a single
    temperature cannot turn that into the frequencies of the data; it would only blur or sharpen every prediction."""
    logits_RC = row_logits(model, dataset, output_layer(model).out_features)
    labels_R, weights_R = dataset.labels_R, dataset.weights_R
    enough = len(labels_R) >= calibration.FEWEST_TO_CALIBRATE
    temperature = calibration.fit_temperature(logits_RC, labels_R, weights_R) if enough else 1.0
    by_row = {
        "accuracy": (logits_RC.argmax(1) == labels_R).astype(np.float64),
        "log loss": calibration.cross_entropies(logits_RC, labels_R, temperature),
    }
    found = {
        "raw_loss": calibration.cross_entropy(logits_RC, labels_R, 1.0, weights_R),
        "accuracy": metrics.accuracy(logits_RC, labels_R),
        "temperature": temperature,
    }
    loss = calibration.cross_entropy(logits_RC, labels_R, temperature, weights_R)
    return Validation(loss, found, temperature, by_row)


def fit_head(model: Model, train: TextDataset, recipe: Recipe) -> None:
    """Logistic regression on the vectors of the training examples becomes the output layer."""
    output = output_layer(model)
    chosen_N, vectors_ND = example_vectors(model, train, MOST_TO_FIT)
    rows_N, bias = train.examples.rows_N[chosen_N], output.bias is not None
    labels_N, weights_N = train.labels_R[rows_N].astype(np.int64), train.weights_R[rows_N]
    set_output_layer(model, *fit_classes(vectors_ND, labels_N, weights_N, output.out_features, bias=bias))


@torch.no_grad()
def fold(model: Model, recipe: Recipe, prepared: Prepared, temperature: float) -> None:
    """Divide the last layer by the temperature: whoever loads the model gets calibrated probabilities."""
    if temperature != 1.0:
        for weight in output_layer(model).parameters():
            weight.div_(temperature)


def test(
    predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say
) -> dict[str, metrics.ClassificationMetrics]:
    return test_keeping(predictor, rows, recipe, say, lambda label, row, prediction: None)


def test_keeping(
    predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say, keep: Keep
) -> dict[str, metrics.ClassificationMetrics]:
    """Metrics of all rows under "all", and by group where rows have one. `keep` gets each row."""
    whole, id_of = whole_rows(rows, say), {name: number for number, name in enumerate(predictor.labels)}
    for label, row in whole:
        if label not in id_of:
            raise UserError(f"{row.place}: label {label!r} is unknown to this model; known: {listed(predictor.labels)}")
    labels_N = np.array([id_of[label] for label, _ in whole])
    groups_N = np.array([row.group or "" for _, row in whole])
    predictions = predictor.predict([text_of(row) for _, row in whole])
    for (label, row), prediction in zip(whole, predictions, strict=True):
        keep(label, row, prediction)
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


def summary(found: Mapping[str, metrics.ClassificationMetrics], rows: str) -> list[str]:
    """How often it is right, and what that is worth."""
    one, times = found["all"], metrics.per_hundred
    low, high = (times(end) for end in one.interval)
    sentences = [f"Right {times(one.accuracy)} times in 100 on {one.rows:,} {rows} (95% interval {low} to {high})."]
    sentences.append(f"Always predicting {one.majority!r} would be right {times(one.majority_share)} times.")
    if one.shows_calibration:
        points = round(100 * one.ece)
        shown = "less than 1 point" if points < 1 else "1 point" if points == 1 else f"{points} points"
        sentences.append(f"Its probabilities are off by {shown} on average.")
    else:
        fewest = calibration.FEWEST_TO_JUDGE
        sentences.append(
            f"Too few rows to say how far its probabilities can be trusted (at least {fewest} are needed)."
        )
    worst = one.most_confused
    if worst is not None:
        counted = f"({worst.count:,} of {worst.rows:,})"
        sentences.append(f"Most confused: {worst.true!r} taken for {worst.predicted!r} {counted}.")
    return sentences


CLASSIFY = Task(
    name="classify",
    format=lambda recipe: RowFormat(),
    head=lambda recipe: "classification",
    fits=lambda config: config.head == "classification",
    datasets=datasets,
    loss=loss,
    validate=validate,
    test=test,
    test_keeping=test_keeping,
    title=title,
    summary=summary,
    metrics=(metrics.ValidationMetric("accuracy", "accuracy", curve=True),),
    notes=truncation_notes,
    fit_head=fit_head,
    fold=fold,
    calibrated=True,
)
