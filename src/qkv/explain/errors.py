"""The rows that a classifier gets wrong: how sure it was, which words decided, and which labels are doubtful."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from qkv import disk
from qkv.corpus.files import Row
from qkv.corpus.table_writer import Added, check_written, write_rows
from qkv.explain.attribution import deciding_words
from qkv.predict.prediction import Prediction
from qkv.predict.predictor import Predictor

MOST_WORDS = 5  # of a row
SURE, DOUBTFUL = 0.9, 0.05  # probability of the predicted label, and of the given one, where a label looks wrong
COLUMNS = (
    "place",
    "text",
    "pair",
    "label",
    "predicted",
    "probability",
    "label_probability",
    "looks_mislabelled",
    "words",
)


@dataclass(frozen=True)
class ErrorRow:
    """A row whose predicted label is not its own."""

    row: Row
    label: str
    predicted: str
    probability: float  # of the predicted label
    label_probability: float  # of the row's own label

    @property
    def looks_mislabelled(self) -> bool:
        return looks_mislabelled(self.label_probability, self.probability)


def looks_mislabelled(own: float, predicted: float) -> bool:
    """Whether a label looks wrong: the model is sure of another one (probability above 0.9) and rules out the given one
    (below 0.05). By a model that was not trained on the row: one that was has learnt the wrong label."""
    return predicted > SURE and own < DOUBTFUL


class WrongRows:
    """Collects the wrong rows of an evaluation; see `Task.test_keeping`."""

    def __init__(self) -> None:
        self.found: list[ErrorRow] = []

    def keep(self, label: str, row: Row, prediction: Prediction) -> None:
        if prediction.label != label and prediction.label is not None and prediction.probabilities is not None:
            shares = prediction.probabilities
            self.found.append(ErrorRow(row, label, prediction.label, shares[prediction.label], shares[label]))

    def most_confident_first(self) -> list[ErrorRow]:
        return sorted(self.found, key=lambda one: -one.probability)


def words_of(predictor: Predictor, one: ErrorRow) -> str:
    """The words that decided for the predicted label, the strongest first: `horrible +1.23 dull +0.40`. Integrated
    gradients; not for pairs."""
    if one.row.pair is not None:
        return ""
    scores = sorted(deciding_words(predictor, one.row.text, one.predicted), key=lambda word: -word.score)
    return " ".join(
        f"{' '.join(word.word.split())} {word.score:+.2f}" for word in scores[:MOST_WORDS] if word.score > 0
    )


def write_errors(
    path: Path,
    predictor: Predictor,
    rows: Sequence[ErrorRow],
    most_words: int,
    progress: Callable[[int], None] = lambda rows: None,
) -> None:
    """A table of the wrong rows, in the order given. The first `most_words` of them get their deciding words, each of
    which costs as much as some hundred predictions."""
    check_written(path)
    cells = []
    for number, one in enumerate(rows):
        words = words_of(predictor, one) if number < most_words else ""
        doubt = "yes" if one.looks_mislabelled else ""
        probabilities = (round(one.probability, 6), round(one.label_probability, 6))
        cells.append(
            [one.row.place, one.row.text, one.row.pair, one.label, one.predicted, *probabilities, doubt, words]
        )
        progress(number + 1)
    pairs = any(one.row.pair is not None for one in rows)
    kept = [place for place, name in enumerate(COLUMNS) if pairs or name != "pair"]
    columns = Added([COLUMNS[place] for place in kept], frozenset({"probability", "label_probability"}))
    disk.replace_file(
        path, lambda file: write_rows(file, path.suffix.lower(), columns, [[c[k] for k in kept] for c in cells])
    )
