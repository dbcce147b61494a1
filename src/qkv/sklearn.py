"""A scikit-learn compatible text classifier: `fit`, `predict`, `predict_proba`, in pipelines and searches.

There is no second way to train: `fit` writes its texts as JSON lines and calls `qkv.train`. It trains on all of them,
as scikit-learn users hold out rows before `fit`.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import assert_all_finite, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from qkv import api
from qkv.autotrain.frames import write_rows
from qkv.config import presets, recipes
from qkv.config.recipe import Recipe
from qkv.corpus.split import hash_position
from qkv.predict.prediction import Text
from qkv.predict.predictor import Predictor
from qkv.schema import UserError, override
from qkv.tasks import TASKS
from qkv.tokenizer.tokenizer import check_text

# For hundreds or a few thousand texts: as `reviews-quick`, but in small steps and many epochs.
SMALL: dict[str, Any] = {
    "data": {"length": 256},
    "tokenizer": {"kind": "wordpiece", "vocab_size": 4000, "lowercase": True},
    "model": {
        "context": 512,
        "width": 64,
        "heads": 2,
        "layers": 1,
        "feedforward": 64,
        "positions": "rotary",
        "embedding_norm": True,
        "pooler": "gelu",
    },
    "train": {"epochs": 10, "batch_tokens": 1024, "learning_rate": 1e-3, "warmup": 20, "token_dropout": 0.2},
}
OF_FIT = ("corpus", "validation", "test", "text", "pair", "label", "label_names", "group")  # of [data]: not to be set


class TransformerClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A Transformer text classifier.

    X is a list, a one-dimensional array or a series of texts, or of pairs of texts. y holds labels of any kind.

    recipe: a recipe's name or a TOML file; None is a small model, trained for ten epochs in small batches.
        (`reviews-quick` trains for two epochs in large batches, too little for hundreds of texts.)
    settings: recipe keys as `train.dropout=0.2`, except those that name the data. With several fits at once (`n_jobs`)
        set `runtime.threads=1`.
    epochs, learning_rate: `train.epochs` and `train.learning_rate`, as parameters so that a search can vary them.
    validation: share of the rows of each class that is held out to select the checkpoint and to calibrate the
        probabilities. The default 0 trains on every row, keeps the last weights and leaves the probabilities
        uncalibrated; so does a share of less than one row of each class.
    random_state: the random seed; None: that of the recipe (7 by default).
    output: run folder, in which `fit` resumes when interrupted; it belongs to one set of texts and parameters, so leave
        it out of cross-validation. None: a temporary folder.

    After `fit`: `classes_`, and `predictor_`, which is what `qkv.load` gives. Tokenised rows stay in the cache
    (QKV_CACHE), so that a search tokenises each fold once.
    """

    def __init__(
        self,
        recipe: str | PathLike[str] | None = None,
        *,
        settings: Sequence[str] = (),
        epochs: int | None = None,
        learning_rate: float | None = None,
        validation: float = 0.0,
        random_state: int | np.random.RandomState | None = None,
        output: str | PathLike[str] | None = None,
    ) -> None:
        self.recipe = recipe
        self.settings = settings
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.validation = validation
        self.random_state = random_state
        self.output = output

    def fit(self, X: Iterable[Any], y: Any) -> Self:
        """Train on texts X with labels y. Empty texts are left out, with a warning."""
        texts = _texts(X)
        self.classes_, numbers = _classes(y, len(texts))
        blank = [not any(part.strip() for part in _parts(text)) for text in texts]
        _check_blank(blank, numbers, self.classes_)
        if any(blank):
            warnings.warn(f"{sum(blank)} of {len(texts)} texts are empty and left out", stacklevel=2)
        rows = [(text, n) for text, n, empty in zip(texts, numbers, blank, strict=True) if not empty]
        recipe = self._recipe()
        if self.output is not None:
            self.predictor_ = self._train(recipe, rows, Path(self.output).expanduser().absolute())
        else:
            with tempfile.TemporaryDirectory(prefix="qkv-") as folder:
                self.predictor_ = self._train(recipe, rows, Path(folder))
        return self

    def predict(self, X: Iterable[Any]) -> NDArray[Any]:
        """The likeliest class of each text."""
        shares = self.predict_proba(X)  # first, since it says where nothing is fitted yet
        return self.classes_[shares.argmax(1)]

    def predict_proba(self, X: Iterable[Any]) -> NDArray[np.float64]:
        """The probability of each class, in the order of `classes_`, for each text."""
        check_is_fitted(self)
        texts, pairs = _texts(X), self.predictor_.input_options.pairs
        if texts and isinstance(texts[0], tuple) != pairs:
            found, wanted = ("texts", "pairs of texts") if pairs else ("pairs of texts", "texts")
            raise UserError(f"X holds {found}; this classifier was fitted on {wanted}")
        answers = self.predictor_.predict(texts)
        shares = [list((answer.probabilities or {}).values()) for answer in answers]
        return np.array(shares, np.float64).reshape(len(texts), len(self.classes_))

    def __sklearn_tags__(self) -> Any:
        """What kind of input is taken: texts, one to a row, and no table of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        return tags

    def _recipe(self) -> Recipe:
        """The recipe with all that the parameters say, and still without its data."""
        if isinstance(self.settings, str):
            raise UserError(f"settings is one string, {self.settings[:60]!r}; give a list: [{self.settings[:60]!r}]")
        settings = [*self.settings]
        for setting in settings:
            table, _, name = setting.partition("=")[0].partition(".")
            if table.strip() == "data" and name.strip() in OF_FIT:
                raise UserError(f"settings: {setting!r}: data.{name.strip()} is set by fit; remove it")
        chosen = {"train.epochs": self.epochs, "train.learning_rate": self.learning_rate, "seed": self._seed()}
        settings += [f"{name}={value}" for name, value in chosen.items() if value is not None]
        if self.recipe is None:
            fine_tunes = any(setting.partition("=")[0].strip() == "init" for setting in settings)
            parts = {
                name: table for name, table in SMALL.items() if not (fine_tunes and name in ("model", "tokenizer"))
            }
            recipe = presets.expand(override(parts, settings), where="settings")
        else:
            recipe = recipes.resolve(os.fspath(self.recipe), settings)
        if TASKS[recipe.task].head(recipe) != "classification":
            raise UserError(f"task = {recipe.task!r}: this estimator is a classifier; accepted: task = 'classify'")
        return recipe

    def _seed(self) -> int | None:
        """A generator gives a number, and another one at each fit, as everywhere in scikit-learn."""
        if isinstance(self.random_state, np.random.RandomState):
            return int(self.random_state.randint(2**31 - 1))
        return self.random_state

    def _train(self, recipe: Recipe, rows: list[tuple[Text, int]], folder: Path) -> Predictor:
        """Write the rows to files and train on them. No row is split off where validation and test are separate files;
        these may be empty."""
        held_out = _held_out(rows, self.validation)
        files = {
            "corpus": [row for row, held in zip(rows, held_out, strict=True) if not held],
            "validation": [row for row, held in zip(rows, held_out, strict=True) if held],
            "test": [],
        }
        places = {name: folder / "data" / f"{name}.jsonl" for name in files}
        for name, part in files.items():
            write_rows(places[name], [_row(text, number) for text, number in part], folder)
        data = {
            **recipe.data.model_dump(),
            **{name: str(place) for name, place in places.items()},
            "text": "text",
            "pair": "pair" if isinstance(rows[0][0], tuple) else "none",
            "label": "label",
            "label_names": _label_names(self.classes_),
            "group": "none",
        }
        return api.train(recipe.replace(data=data), folder)


def _texts(X: Iterable[Any]) -> list[Text]:
    """Texts or pairs as a list, whatever they came in."""
    if isinstance(X, str | bytes):
        raise UserError(f"X is one string, {X[:40]!r}; give a list of texts: [{X[:40]!r}]")
    if hasattr(X, "to_numpy"):  # a series of pandas or polars; iterating over a table would give its column names
        X = X.to_numpy()
    if isinstance(X, np.ndarray) and X.ndim:
        X = X.tolist()
    try:
        found = [_text(one, number) for number, one in enumerate(X, 1)]
    except TypeError:
        raise UserError(f"X is of type {type(X).__name__}; must be a list, an array or a series of texts") from None
    kinds = {isinstance(text, tuple) for text in found}
    if len(kinds) > 1:
        raise UserError("X holds single texts and pairs of texts; must be of one kind")
    return found


def _text(one: Any, number: int) -> Text:
    parts = (one,) if isinstance(one, str) else tuple(one) if isinstance(one, tuple | list | np.ndarray) else ()
    if not parts or not all(isinstance(part, str) for part in parts) or (len(parts) != 2 and one is not parts[0]):
        raise UserError(f"X: text {number} is {_kind(one)}; must be str, or a pair of them")
    for part in parts:
        check_text(part, number)
    return (parts[0], parts[1]) if len(parts) == 2 else parts[0]


def _kind(one: Any) -> str:
    if isinstance(one, tuple | list) and one:
        inner = sorted({type(part).__name__ for part in one})
        return f"a {type(one).__name__} of {len(one)} ({', '.join(inner)})"
    return f"of type {type(one).__name__}"


def _parts(text: Text) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else text


def _classes(y: Any, texts: int) -> tuple[NDArray[Any], list[int]]:
    """The different labels, sorted, and the number of each row's label among them."""
    if y is None:
        raise UserError("requires y to be passed, but the target y is None; give a label for each text")
    labels = column_or_1d(y, warn=True)
    if not texts:
        raise UserError("X is empty; fit needs texts of at least two classes")
    if len(labels) != texts:
        raise UserError(f"X has {texts:,} texts and y has {len(labels):,} labels; must be equally many")
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    classes, numbers = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        only = classes.tolist()[0]
        raise UserError(f"y has only one class, {only!r}, in {texts:,} rows; a classifier needs at least two")
    return classes, numbers.tolist()


def _check_blank(blank: list[bool], numbers: list[int], classes: NDArray[Any]) -> None:
    """Refuse a class without text."""
    left = {number for number, empty in zip(numbers, blank, strict=True) if not empty}
    for number, label in enumerate(classes.tolist()):
        if number not in left:
            raise UserError(f"all texts of class {label!r} are empty; a class needs text")


def _held_out(rows: list[tuple[Text, int]], share: float) -> list[bool]:
    """The validation rows: of each class those with the lowest hashes, at most that share, so that equal texts are on
    one side. Never all of a class."""
    if not 0 <= share < 1:
        raise UserError(f"validation = {share!r}: must be at least 0 and below 1")
    places = [hash_position(*_parts(text)) for text, _ in rows]
    by_class: dict[int, list[float]] = {}
    for place, (_, number) in zip(places, rows, strict=True):
        by_class.setdefault(number, []).append(place)
    bounds = {number: sorted(own)[int(share * len(own))] for number, own in by_class.items()}
    if not all(place > min(by_class[n]) for n, place in bounds.items()):
        return [False] * len(rows)  # too few rows: a class would be missing
    return [place < bounds[number] for place, (_, number) in zip(places, rows, strict=True)]


def _row(text: Text, number: int) -> dict[str, Any]:
    return {**dict(zip(("text", "pair"), _parts(text), strict=False)), "label": number}


def _label_names(classes: NDArray[Any]) -> str:
    """The names of the classes for the run. Rows have numbers, so that labels may be of any type; where a recipe cannot
    hold the names, the numbers are the names."""
    names = [str(label).strip() for label in classes.tolist()]
    plain = all(name and not set(name) & set(",=") for name in names) and len(set(names)) == len(names)
    return ", ".join(f"{number}={name}" for number, name in enumerate(names)) if plain else "none"
