"""The classifier in scikit-learn's hands: its checks, its searches, its pickles; and what it says to wrong input."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks, get_tags
from sklearn.utils.validation import check_is_fitted, validate_data

import qkv
from qkv.schema import UserError
from qkv.sklearn import TransformerClassifier

TINY = (
    *("model.width=16", "model.heads=1", "model.layers=1", "model.feedforward=16"),
    *("tokenizer.kind=characters", "data.length=32", "train.batch_tokens=128", "train.warmup=2"),
    *("train.learning_rate=0.02", "train.token_dropout=0", "train.dropout=0"),
    *("train.eval_every=1000", "runtime.threads=1"),
)
QUICK = (*TINY, "train.steps=2")
X = [f"{word} {number}" for number in range(8) for word in ("good", "dull")]
Y = ["pos", "neg"] * 8


def small(**parameters: Any) -> TransformerClassifier:
    return TransformerClassifier(**{"recipe": None, "settings": TINY, "epochs": 8, **parameters})


def quick(**parameters: Any) -> TransformerClassifier:
    return small(**{"settings": QUICK, **parameters})


@pytest.fixture(autouse=True)
def folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is left outside of the tests' own folders; what is meant to be temporary can be looked for."""
    temporary = tmp_path_factory.mktemp("temporary")
    monkeypatch.setenv("QKV_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    return temporary


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> TransformerClassifier:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QKV_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        return small().fit(X, Y)


# --- learning


def test_a_word_decides(fitted: TransformerClassifier) -> None:
    assert fitted.score(X, Y) == 1.0
    assert fitted.predict(["dull 99", "good 99"]).tolist() == ["neg", "pos"]
    assert fitted.classes_.tolist() == ["neg", "pos"]


def test_probabilities_are_in_the_order_of_the_classes(fitted: TransformerClassifier) -> None:
    shares = fitted.predict_proba(X)
    assert shares.shape == (16, 2)
    assert shares.sum(1) == pytest.approx(np.ones(16))
    assert (fitted.classes_[shares.argmax(1)] == fitted.predict(X)).all()


@pytest.mark.parametrize(
    "labels",
    [["b", "a"], [3, -5], [True, False], [1.0, 0.0], ["a, b", "x=y"], [11, 2]],
    ids=["strings", "ints", "bools", "floats", "signs", "numbers-not-names"],
)
def test_labels_of_any_kind(labels: list[Any]) -> None:
    y = np.array(labels * 8)
    predicted = small().fit(X, y).predict(X)
    assert predicted.dtype == y.dtype
    assert predicted.tolist() == y.tolist()


def test_three_classes_of_which_two_sort_otherwise_as_text() -> None:
    texts = [f"{word} {number}" for number in range(6) for word in ("aaaa", "bbbb", "cccc")]
    y = [10, 9, 100] * 6
    classifier = small(epochs=16).fit(texts, y)
    assert classifier.classes_.tolist() == [9, 10, 100]
    assert classifier.predict(texts).tolist() == y


def test_pairs() -> None:
    texts = [(f"is it {number}", word) for number in range(8) for word in ("good", "dull")]
    classifier = small(epochs=16, learning_rate=0.01).fit(texts, Y)
    assert classifier.predict(texts).tolist() == Y
    assert classifier.predict(np.array(texts)).tolist() == Y
    with pytest.raises(UserError, match="X holds texts; this classifier was fitted on pairs of texts"):
        classifier.predict(["good"])


class Series:
    """As much of a pandas series as anybody relies on."""

    def __init__(self, values: list[str]) -> None:
        self.values = values

    def to_numpy(self) -> Any:
        return np.array(self.values, dtype=object)


@pytest.mark.parametrize("form", [list, tuple, np.array, Series], ids=["list", "tuple", "array", "series"])
def test_texts_in_any_form(fitted: TransformerClassifier, form: Callable[[list[str]], Any]) -> None:
    assert (fitted.predict_proba(form(X)) == fitted.predict_proba(X)).all()
    assert fitted.predict(form([])).tolist() == []


def test_every_row_is_trained_on(tmp_path: Path) -> None:
    """The hash that splits a corpus would hold out some of these rows, and all of a class with one row."""
    texts = [f"text {number}" for number in range(40)]
    quick(output=tmp_path).fit(texts, ["rare", *["usual"] * 39])
    assert "40 train, 0 validation, 0 test rows" in (tmp_path / "README.md").read_text()


def test_a_share_of_each_class_is_held_out(tmp_path: Path) -> None:
    texts = [f"text {number}" for number in range(40)] * 2
    y = [*["rare"] * 10, *["usual"] * 30] * 2
    quick(output=tmp_path, validation=0.3).fit(texts, y)
    read = {name: (tmp_path / "data" / f"{name}.jsonl").read_text().splitlines() for name in ("corpus", "validation")}
    assert [sum('"label": 0' in line for line in read[name]) for name in ("corpus", "validation")] == [14, 6]
    assert [sum('"label": 1' in line for line in read[name]) for name in ("corpus", "validation")] == [42, 18]
    assert not set(read["corpus"]) & set(read["validation"]), "equal texts are on one side"
    assert "validation_loss" in (tmp_path / "metrics.jsonl").read_text()


def test_too_small_a_share_is_trained_on_too(tmp_path: Path) -> None:
    quick(output=tmp_path, validation=0.2).fit([*X, "rare"], [*Y, "rare"])
    assert "17 train, 0 validation, 0 test rows" in (tmp_path / "README.md").read_text()


# --- exactness


def test_the_same_number_gives_the_same_bits() -> None:
    one, same, other = (quick(random_state=n).fit(X, Y).predict_proba(X) for n in (3, 3, 4))
    assert (one == same).all()
    assert (one != other).any()


def test_no_random_state_is_seed_7_unless_the_settings_say_otherwise() -> None:
    nothing = quick().fit(X, Y).predict_proba(X)
    assert (nothing == quick(random_state=np.int64(7)).fit(X, Y).predict_proba(X)).all()
    assert (nothing != quick(settings=[*QUICK, "seed=8"]).fit(X, Y).predict_proba(X)).any()


def test_a_generator_gives_a_seed() -> None:
    first, same = (quick(random_state=np.random.RandomState(1)).fit(X, Y).predict_proba(X) for _ in range(2))
    assert (first == same).all()
    drawing = quick(random_state=np.random.RandomState(1))
    assert (drawing.fit(X, Y).predict_proba(X) != drawing.fit(X, Y).predict_proba(X)).any()


# --- the folder


def test_without_an_output_nothing_is_left(folders: Path) -> None:
    quick().fit(X, Y)
    assert [entry.name for entry in folders.iterdir() if entry.name.startswith("qkv-")] == []


def test_an_output_is_a_run_with_the_classes_by_name(tmp_path: Path) -> None:
    classifier = small(output=tmp_path / "run").fit(X, Y)
    answers = qkv.load(tmp_path / "run").predict(X)
    assert [answer.label for answer in answers] == Y
    assert [list((a.probabilities or {}).values()) for a in answers] == classifier.predict_proba(X).tolist()


def test_fit_resumes_in_its_output(tmp_path: Path) -> None:
    first = quick(output=tmp_path).fit(X, Y)
    written = (tmp_path / "model.safetensors").stat()
    again = quick(output=tmp_path).fit(X, Y)
    assert (tmp_path / "model.safetensors").stat() == written, "a finished run is not trained again"
    assert (again.predict_proba(X) == first.predict_proba(X)).all()
    with pytest.raises(UserError, match="was begun with other texts or labels; choose another folder, or delete it"):
        quick(output=tmp_path).fit(X[::-1], Y)
    with pytest.raises(UserError, match=r"begun with another recipe:\s+train.dropout was 0.0, is 0.5"):
        quick(output=tmp_path, settings=[*QUICK, "train.dropout=0.5"]).fit(X, Y)
    assert (quick(output=tmp_path).fit(X, Y).predict_proba(X) == first.predict_proba(X)).all(), "it is still whole"


# --- scikit-learn


def test_pickle_and_copy(fitted: TransformerClassifier) -> None:
    for other in (pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted)):
        assert (other.predict_proba(X) == fitted.predict_proba(X)).all()
        assert other.get_params() == fitted.get_params()


def test_clone_is_not_fitted(fitted: TransformerClassifier) -> None:
    other = clone(fitted).set_params(epochs=3)
    assert other.get_params() == {**fitted.get_params(), "epochs": 3}
    with pytest.raises(NotFittedError):
        other.predict(X)


def test_cross_validation_in_a_pipeline() -> None:
    pipeline = Pipeline([("upper", FunctionTransformer(_upper)), ("classifier", small())])
    assert cross_val_score(pipeline, X, Y, cv=2, error_score="raise").tolist() == [1.0, 1.0]


def _upper(texts: list[str]) -> list[str]:
    return [text.upper() for text in texts]


def test_a_search_finds_the_better_setting() -> None:
    grid = {"learning_rate": [1e-9, 0.02], "epochs": np.array([8])}
    search = GridSearchCV(small(), grid, cv=2, error_score="raise").fit(np.array(X), np.array(Y))
    assert search.best_params_ == {"epochs": 8, "learning_rate": 0.02}
    assert search.predict(["good 5"]).tolist() == ["pos"]


def test_the_tags_are_those_of_a_text_classifier() -> None:
    tags = get_tags(quick())
    assert tags.estimator_type == "classifier"
    assert (tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array) == (True, True, False)


@pytest.mark.filterwarnings("ignore:Can't test estimator")
def test_check_estimator() -> None:
    """Of text, scikit-learn itself checks little more than that it can be cloned. The next test makes up for it."""
    assert {one["status"] for one in estimator_checks.check_estimator(quick())} == {"passed"}


class OfNumbers(TransformerClassifier):
    """The same classifier, reading numbers as text: so that scikit-learn's checks, which give numbers, can be made."""

    def __init__(self, recipe: Any = None, *, settings: Any = QUICK, random_state: Any = None) -> None:
        super().__init__(recipe, settings=settings, random_state=random_state)

    def fit(self, X: Any, y: Any) -> Any:
        if y is not None:
            X, y = validate_data(self, X, y, dtype=None)
        return super().fit(_as_texts(X), y)

    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self)
        return super().predict_proba(_as_texts(validate_data(self, X, reset=False, dtype=None)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, True
        tags.classifier_tags.poor_score = True  # digits in two steps
        return tags


def _as_texts(X: Any) -> list[str]:
    return [" ".join(f"{float(value):.1f}" for value in row) for row in np.asarray(X)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@estimator_checks.parametrize_with_checks([OfNumbers()])  # type: ignore[untyped-decorator]
def test_scikit_learns_checks(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


# --- wrong input


@pytest.mark.parametrize(
    ("texts", "labels", "sentence"),
    [
        ("good", ["a"], "X is one string, 'good'; give a list of texts: ['good']"),
        ([1, 2], ["a", "b"], "X: text 1 is of type int; must be str, or a pair of them"),
        (["a", None], ["a", "b"], "X: text 2 is of type NoneType; must be str, or a pair of them"),
        (np.ones((2, 2)), ["a", "b"], "X: text 1 is a list of 2 (float); must be str, or a pair of them"),
        ([["a"], ["b"]], ["a", "b"], "X: text 1 is a list of 1 (str); must be str, or a pair of them"),
        (["a", ("a", "b")], ["a", "b"], "X holds single texts and pairs of texts; must be of one kind"),
        (5, ["a"], "X is of type int; must be a list, an array or a series of texts"),
        (["a", "b\ud800"], ["a", "b"], "text 2: character 1 is '\\ud800', half of a character"),
        (["a", "b", "c"], ["a", "b"], "X has 3 texts and y has 2 labels; must be equally many"),
        (["a", "b"], ["a", "a"], "y has only one class, 'a', in 2 rows; a classifier needs at least two"),
        ([], [], "X is empty; fit needs texts of at least two classes"),
        (["a", " ", "\n"], ["a", "b", "b"], "all texts of class 'b' are empty; a class needs text"),
        (["a", "b"], None, "requires y to be passed, but the target y is None"),
        (["a", "b"], [0.5, 0.25], "Unknown label type: continuous"),
    ],
)
def test_wrong_input_is_named(texts: Any, labels: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        quick().fit(texts, labels)


@pytest.mark.parametrize(
    ("parameters", "sentence"),
    [
        ({"recipe": "reviews-quik"}, "reviews-quik: neither a recipe, a preset nor a TOML file; did you mean"),
        ({"settings": "train.epochs=2"}, "settings is one string, 'train.epochs=2'; give a list: ['train.epochs=2']"),
        ({"settings": ["data.corpus=x"]}, "settings: 'data.corpus=x': data.corpus is set by fit; remove it"),
        ({"settings": ["train.epoch=2"]}, "train.epoch: unknown key; did you mean epochs?"),
        ({"epochs": 0}, "train.epochs = 0: nothing would be trained; accepted: at least 1"),
        ({"random_state": -1}, "seed = -1: must be at least 0"),
        ({"validation": 1}, "validation = 1: must be at least 0 and below 1"),
        ({"settings": ["task=fill"]}, "task = 'fill': this estimator is a classifier; accepted: task = 'classify'"),
    ],
)
def test_wrong_parameters_are_named_by_fit(parameters: dict[str, Any], sentence: str) -> None:
    classifier = small(**parameters)
    with pytest.raises(UserError, match=re.escape(sentence)):
        classifier.fit(X, Y)


def test_empty_texts_are_left_out_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="2 of 18 texts are empty and left out"):
        with_empty = quick().fit([*X, "", " "], [*Y, "pos", "neg"])
    assert (with_empty.predict_proba(X) == quick().fit(X, Y).predict_proba(X)).all()
    assert with_empty.predict_proba([""]).shape == (1, 2)


def test_the_named_recipe_is_taken(tmp_path: Path) -> None:
    settings = ["train.steps=1", "runtime.threads=1"]
    classifier = TransformerClassifier("reviews-quick", settings=settings, output=tmp_path).fit(X, Y)
    assert classifier.predictor_.input_options.length == 256
    assert "vocab_size = 16000" in (tmp_path / "recipe.toml").read_text()


def test_the_package_alone_loads_neither_torch_nor_scikit_learn() -> None:
    code = "import qkv, sys; print({'torch', 'sklearn'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
