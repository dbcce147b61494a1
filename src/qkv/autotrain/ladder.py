"""The ladder: a model is compared with simpler ones on the same rows, from the most frequent label upwards.

With few rows the comparison is by cross-validation: each row is predicted by models that were not trained on it. Folds
are stratified, and rows of the same text are in one fold.

R rows · C outputs: classes, or one number
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qkv.autotrain.scoring import MEASURED, Labels, Scoring
from qkv.corpus.corpus import Corpus
from qkv.corpus.files import Row
from qkv.corpus.split import Split, hash_position
from qkv.data.prepare import is_whole
from qkv.tasks.texts import TextDataset, row_logits
from qkv.training.build import TrainingData, build_state
from qkv.training.comparison import BaselineComparison, Rung
from qkv.training.loop import train

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NEVER = 10**9
FROZEN = 2  # the first rung that is a Transformer
MOST_ROWS = 100_000  # that a baseline is trained on


@dataclass(frozen=True)
class Ladder:
    """A comparison by cross-validation, and what it decides: whether to fine-tune, and the temperature."""

    comparison: BaselineComparison
    fine_tune: bool
    temperature: float


def scoring_of(data: TrainingData) -> Scoring:
    """How models of this task are measured and what they are compared with."""
    return MEASURED[data.task.head(data.recipe)](data.prepared.labels)


def texts_of(corpus: Corpus, split: Split) -> list[str]:
    """The texts of a split, in the order of its store; a pair as one text."""
    return [_text(row) for _, row in corpus.rows([split]) if is_whole(corpus, row)]


def _text(row: Row) -> str:
    return row.text if row.pair is None else f"{row.text}\n{row.pair}"


def folds_of(texts: Sequence[str], classes_R: Ints, folds: int) -> Ints:
    """The fold of each row. The different texts of each class are dealt out in the order of their hashes."""
    positions_R = np.array([hash_position(text) for text in texts])
    fold_of: dict[float, int] = {}
    for label in np.unique(classes_R):
        new = [one for one in np.unique(positions_R[classes_R == label]).tolist() if one not in fold_of]
        fold_of |= {position: (number + int(label)) % folds for number, position in enumerate(new)}
    return np.array([fold_of[position] for position in positions_R.tolist()])


def fold_rows(data: TrainingData, folds: int) -> Iterator[tuple[Ints, Ints]]:
    """The training rows inside and outside of each fold: a function of texts and labels, whatever is trained."""
    strata_R = scoring_of(data).strata(data.prepared.train.labels_R)
    folds_R = folds_of(texts_of(data.corpus, "train"), strata_R, folds)
    for fold in range(folds):
        yield np.flatnonzero(folds_R != fold), np.flatnonzero(folds_R == fold)


def cross_validate_fine_tuned(data: TrainingData, folds: int) -> Rung:
    """Cross-validate only the fine-tuned model of a recipe on its training rows."""
    scoring, labels_R = scoring_of(data), data.prepared.train.labels_R
    outputs_RC, weights_R = np.zeros((len(labels_R), scoring.outputs)), np.ones(len(labels_R))
    for inside, outside in fold_rows(data, folds):
        if len(outside):
            models, weights_R[outside] = _transformers(data, inside, outside, scoring)
            outputs_RC[outside] = models[-1]
    return scoring.rung(scoring.names[-1], outputs_RC, labels_R, weights_R)


def cross_validate(data: TrainingData, folds: int, tick: Callable[[int], None] = lambda fold: None) -> Ladder:
    """Cross-validate the baselines, the fitted output layer and the fine-tuned model of a recipe on its training rows.
    `tick` is called with the number of each fold that is done."""
    scoring, texts, labels_R = scoring_of(data), texts_of(data.corpus, "train"), data.prepared.train.labels_R
    names = [name for name in scoring.names if data.recipe.train.fit_head or name != scoring.names[FROZEN]]
    outputs = {name: np.zeros((len(texts), scoring.outputs)) for name in names}
    weights_R = np.ones(len(texts))
    for fold, (inside, outside) in enumerate(fold_rows(data, folds)):
        if len(outside):
            own, others = [texts[n] for n in inside], [texts[n] for n in outside]
            models, weights_R[outside] = _transformers(data, inside, outside, scoring)
            found = [*scoring.baselines(own, labels_R[inside], others), *models]
            for name, outputs_RC in zip(names, found, strict=True):
                outputs[name][outside] = outputs_RC
        tick(fold + 1)
    rungs = tuple(scoring.rung(name, one, labels_R, weights_R) for name, one in outputs.items())
    best = min(rungs[FROZEN:], key=lambda rung: rung.loss).name
    temperature, figures = scoring.figures(outputs[best], labels_R, weights_R)
    how = f"{folds}-fold cross-validation"
    comparison = BaselineComparison(rungs, len(texts), scoring.metric, how, figures)
    return Ladder(comparison, best == rungs[-1].name, temperature)


def baselines(data: TrainingData) -> BaselineComparison:
    """The baselines on the test rows of a recipe."""
    return baselines_by_group(data)["all"]


def baselines_by_group(data: TrainingData) -> dict[str, BaselineComparison]:
    """The baselines on all test rows of a recipe, and on those of each group. They are trained once, on at most
    MOST_ROWS training rows."""
    corpus, scoring = data.corpus, scoring_of(data)
    rows = [row for _, row in corpus.labelled(["test"], data.prepared.labels) if is_whole(corpus, row)]
    truth_R = scoring.numbered([corpus.label_of(row) or "" for row in rows])
    texts, labels_R = texts_of(corpus, "train"), data.prepared.train.labels_R
    if len(texts) > MOST_ROWS:
        some = np.sort(np.random.RandomState(0).permutation(len(texts))[:MOST_ROWS])
        texts, labels_R = [texts[n] for n in some], labels_R[some]
    found = scoring.baselines(texts, labels_R, [_text(row) for row in rows])
    named = dict(zip(scoring.names, found, strict=False))
    groups_R = np.array([row.group or "" for row in rows])
    places = {group: np.flatnonzero(groups_R == group) for group in sorted({*groups_R.tolist()} - {""})}
    chosen = {"all": np.arange(len(rows)), **places}
    return {group: _on_test_rows(scoring, named, truth_R, own) for group, own in chosen.items()}


def _on_test_rows(scoring: Scoring, named: dict[str, Floats], truth_R: Labels, own: Ints) -> BaselineComparison:
    """The baselines on some of the test rows."""
    rungs = [scoring.rung(name, one[own], truth_R[own], np.ones(len(own))) for name, one in named.items()]
    return BaselineComparison(tuple(rungs), len(own), scoring.metric, "test set")


def _transformers(
    data: TrainingData, inside: Ints, outside: Ints, scoring: Scoring
) -> tuple[list[Floats], NDArray[np.float32]]:
    """Outputs for the rows outside, by the output layer that is fitted to the rows inside (if the recipe fits one) and
    after fine-tuning; and the weights of these rows in the loss."""
    store = data.prepared.train
    settings = {**data.recipe.train.model_dump(), "keep": "last", "eval_every": NEVER, "patience": 0}
    prepared = replace(data.prepared, train=store.take(inside), validation=store.take(outside))
    state, _ = build_state(replace(data, recipe=data.recipe.replace(train=settings), prepared=prepared))
    held_out = state.validation
    assert isinstance(held_out, TextDataset), "a ladder is for labels and numbers"
    found = list[Floats]()
    for report in train(state):
        if report.step in (0, state.steps):
            outputs_RC = row_logits(state.model.eval(), held_out, scoring.outputs)
            found.append(held_out.mean + held_out.deviation * outputs_RC)
    return found, held_out.weights_R
