"""Regression: a number for a text or a pair. Labels are trained on with variance 1, those of an encoder with mean 0."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F

from qkv import metrics
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import RowFormat, parse_number
from qkv.data.prepare import Prepared
from qkv.model.transformer import Model
from qkv.predict.predictor import Predictor
from qkv.schema import Say
from qkv.tasks.task import Labelled, Loss, Task, Validation, subset, training_rows
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
    mean, deviation = mean_and_deviation(recipe, prepared)
    train = training_rows(prepared.train, recipe)
    made = [text_dataset(recipe, store, prepared.tokenizer) for store in (train, prepared.validation)]
    first, second = (
        replace(
            one,
            labels_R=((one.store.labels_R.astype(np.float64) - mean) / deviation).astype(np.float32),
            mean=mean,
            deviation=deviation,
        )
        for one in made
    )
    return first, second


def mean_and_deviation(recipe: Recipe, prepared: Prepared) -> tuple[float, float]:
    """Of the numbers that are trained on. A decoder's head has no bias to hold a mean."""
    numbers = prepared.train.labels_R[subset(len(prepared.train), recipe)].astype(np.float64)
    return float(numbers.mean()) if recipe.model.family == "encoder" else 0.0, float(numbers.std()) or 1.0


def loss(model: Model, batch: LabelBatch, recipe: Recipe) -> Loss:
    """Squared error."""
    return {"labels": F.mse_loss(text_logits(model, batch)[:, 0], batch.labels_B, reduction="sum")}


def validate(model: Model, dataset: TextDataset) -> Validation:
    """The loss is on the scale of training, the metrics on that of the labels."""
    predicted_R = dataset.mean + dataset.deviation * row_logits(model, dataset, 1)[:, 0]
    error, found = metrics.regression_metrics(predicted_R, dataset.store.labels_R)
    return Validation(error / dataset.deviation**2, found)


@torch.no_grad()
def fold(model: Model, recipe: Recipe, prepared: Prepared, temperature: float) -> None:
    """Put mean and deviation into the last layer: whoever loads the model gets numbers on the original scale."""
    mean, deviation = mean_and_deviation(recipe, prepared)
    output = output_layer(model)
    for weight in output.parameters():
        weight.mul_(deviation)
    if output.bias is not None:
        output.bias.add_(mean)


def test(predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say) -> dict[str, metrics.Metrics]:
    whole = whole_rows(rows, say)
    targets = [parse_number(label, row.place) for label, row in whole]
    values = [one.value for one in predictor.predict([text_of(row) for _, row in whole])]
    return {"all": metrics.Metrics(len(whole), metrics.regression_metrics(np.array(values, np.float64), targets)[1])}


REGRESS = Task(
    name="regress",
    format=lambda recipe: RowFormat(labels="numbers"),
    head=lambda recipe: "regression",
    fits=lambda config: config.head == "regression",
    datasets=datasets,
    loss=loss,
    validate=validate,
    test=test,
    title=lambda prepared, found: "A regression model: a number for a text",
    metrics=(metrics.ValidationMetric("pearson", "Pearson", curve=True),),
    loss_name="squared error / variance of the labels",
    notes=truncation_notes,
    fold=fold,
)
