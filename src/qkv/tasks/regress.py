"""Regression: a number for a text or a pair. Labels are trained on with variance 1, those of an encoder with mean 0."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
from qkv.tasks.linear_probe import MOST_TO_FIT, fit_numbers
from qkv.tasks.task import Labelled, Loss, Task, Validation, subset, training_rows
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
    targets_R = dataset.store.labels_R.astype(np.float64)
    error, found = metrics.regression_metrics(predicted_R, targets_R)
    return Validation(error / dataset.deviation**2, found, by_row={"squared error": (predicted_R - targets_R) ** 2})


def fit_head(model: Model, train: TextDataset, recipe: Recipe) -> None:
    """Ridge regression on the vectors of the training examples becomes the output layer."""
    chosen_N, vectors_ND = example_vectors(model, train, MOST_TO_FIT)
    targets_N = train.labels_R[train.examples.rows_N[chosen_N]].astype(np.float64)
    set_output_layer(model, *fit_numbers(vectors_ND, targets_N, bias=output_layer(model).bias is not None))


@torch.no_grad()
def fold(model: Model, recipe: Recipe, prepared: Prepared, temperature: float) -> None:
    """Put mean and deviation into the last layer: whoever loads the model gets numbers on the original scale."""
    mean, deviation = mean_and_deviation(recipe, prepared)
    output = output_layer(model)
    for weight in output.parameters():
        weight.mul_(deviation)
    if output.bias is not None:
        output.bias.add_(mean)


@torch.no_grad()
def unfold(model: Model, recipe: Recipe, prepared: Prepared) -> None:
    """The inverse of `fold`, for a last layer that was trained on other numbers: it predicts the same as before."""
    mean, deviation = mean_and_deviation(recipe, prepared)
    output = output_layer(model)
    if output.bias is not None:
        output.bias.sub_(mean)
    for weight in output.parameters():
        weight.div_(deviation)


def test(predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say) -> dict[str, metrics.Metrics]:
    whole = whole_rows(rows, say)
    targets = [parse_number(label, row.place) for label, row in whole]
    values = [one.value for one in predictor.predict([text_of(row) for _, row in whole])]
    return {"all": metrics.number_metrics(np.array(values, np.float64), targets)}


def summary(found: Mapping[str, metrics.Metrics], rows: str) -> list[str]:
    one = found["all"]
    value = one.values
    return [
        f"Off by {value['rmse']:.3g} (root mean square) on {one.rows:,} {rows}.",
        f"Always predicting the mean of these rows would be off by {value['rmse_of_mean']:.3g}.",
        f"Correlation with the true numbers: {value['pearson']:.2f} (Pearson), {value['spearman']:.2f} (Spearman).",
    ]


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
    summary=summary,
    metrics=(metrics.ValidationMetric("pearson", "Pearson", curve=True),),
    loss_name="squared error / variance of the labels",
    notes=truncation_notes,
    fit_head=fit_head,
    fold=fold,
    unfold=unfold,
)
