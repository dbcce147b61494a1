"""What a task is: a record of functions. One file of this room defines one task; `TASKS` lists them all.

The training loop, the model card and the command line ask the record, and never for the name of a task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from qkv.config.recipe import Head, ModelConfig, Recipe, TaskName
from qkv.corpus.corpus import RowFormat
from qkv.corpus.files import Row
from qkv.data.batch import Batch
from qkv.data.prepare import Prepared
from qkv.data.sampler import BatchSampler
from qkv.data.store import Store
from qkv.metrics import TestMetrics, ValidationMetric
from qkv.model.transformer import Model
from qkv.predict.prediction import Prediction
from qkv.predict.predictor import Predictor
from qkv.schema import Say
from qkv.streams import permutation, stream

Ints = NDArray[np.int64]
Loss = dict[str, Tensor]  # part -> total over the batch; totals can be added over micro-batches, means cannot
Labelled = tuple[str | None, Row]  # a row, and its label as the model names it
Keep = Callable[[str, Row, Prediction], None]  # gets the label of a row, the row, and what was predicted for it
EVALUATION = 2**63  # the "epoch" of an evaluation: always the same random choices, and never those of training
EVALUATION_LENGTH = 128  # tokens, to evaluate a model that does not say how long its training examples were


class Dataset(Protocol):
    """One split as a task reads it: example numbers in, Batch out."""

    @property
    def sampler(self) -> BatchSampler: ...

    def __len__(self) -> int:
        """Rows, documents or pairs."""
        ...

    def collate(self, examples_B: Ints, epoch: int) -> Batch:
        """Some examples as a batch. What is random depends on the epoch."""
        ...


@dataclass(frozen=True)
class Validation:
    """Metrics of the validation set during training. `loss` selects the checkpoint. For classes it is the loss after
    temperature scaling, that of the model one would deploy: it does not punish mere over-confidence. `by_row` has the
    values of each row whose mean is a metric, so that two models can be compared row by row."""

    loss: float
    metrics: dict[str, float]
    temperature: float = 1.0
    by_row: dict[str, NDArray[np.float64]] = field(default_factory=dict, compare=False, repr=False)


def _nothing(*arguments: Any) -> None:
    pass


def _no_notes(recipe: Recipe, train: Any) -> list[str]:
    return []


def _no_ids(prepared: Prepared) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Task:
    """Everything that is particular to one task."""

    name: TaskName
    format: Callable[[Recipe], RowFormat]  # how rows are read and stored
    head: Callable[[Recipe], Head]
    fits: Callable[[ModelConfig], bool]  # whether a model that comes without a recipe was made for this task
    datasets: Callable[[Recipe, Prepared], tuple[Any, Any]]  # of training and validation
    loss: Callable[[Model, Any, Recipe], Loss]
    validate: Callable[[Model, Any], Validation]
    test: Callable[[Predictor, Iterable[Labelled], Recipe | None, Say], TestMetrics]  # on raw text, as users give it
    title: Callable[[Prepared, TestMetrics | None], str]  # first words of the model card
    summary: Callable[[Any, str], list[str]]  # test metrics in plain sentences; the text names the rows
    metrics: tuple[ValidationMetric, ...]  # shown while training, the most telling first
    loss_name: str = "loss in nats"
    check: Callable[[Recipe], None] = _nothing  # what can be checked before any data is read
    notes: Callable[[Recipe, Any], list[str]] = _no_notes  # what a user should know about the training set
    fit_head: Callable[[Model, Any, Recipe], None] = _nothing  # fits the output layer before the first step
    fold: Callable[[Model, Recipe, Prepared, float], None] = _nothing  # fitted scales go into the last layer
    unfold: Callable[[Model, Recipe, Prepared], None] = _nothing  # a folded last layer gets the scale of training
    token_ids: Callable[[Prepared], dict[str, Any]] = _no_ids  # special tokens for config.json
    test_keeping: Callable[[Predictor, Iterable[Labelled], Recipe | None, Say, Keep], TestMetrics] | None = None
    calibrated: bool = False  # probabilities are calibrated on the validation set


def subset(count: int, recipe: Recipe) -> Ints:
    """Which of `count` rows are trained on (data.rows), in their order."""
    chosen = permutation(stream(recipe.seed, "order", 0, 2), count)[: recipe.data.rows]
    return np.sort(chosen) if 0 < recipe.data.rows < count else np.arange(count)


def training_rows(store: Store, recipe: Recipe) -> Store:
    """The rows of a store that are trained on."""
    return store if recipe.data.rows == 0 else store.take(subset(len(store), recipe))


def evaluation_recipe(recipe: Recipe | None, task: TaskName, predictor: Predictor) -> Recipe:
    """The recipe of a model's own training; for a model without one, or made for another task, a recipe that reads
    documents in pieces of a length that it takes."""
    if recipe is not None and recipe.task == task:
        return recipe
    length = min(EVALUATION_LENGTH, predictor.max_length() or EVALUATION_LENGTH)
    model = {"vocabulary": predictor.config.vocabulary}
    return Recipe.read({"task": task, "data": {"length": length}, "train": {"batch_tokens": 8192}, "model": model})
