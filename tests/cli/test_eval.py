"""`qkv eval` warns where a classifier is worth less than its accuracy, and its tables can be read."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from qkv.cli.eval import class_table, confusion_table, show_metrics
from qkv.metrics import ClassificationMetrics, classification_metrics
from tests.support.cli import run_json, run_qkv, trained, write_table

RECIPE = """
task = "classify"
seed = 1
[data]
corpus = "mail.csv"
length = 16
[tokenizer]
vocab_size = 100
[model]
width = 16
heads = 2
layers = 1
feedforward = 16
positions = "rotary"
embedding_norm = true
pooler = "gelu"
[train]
epochs = 6
batch_tokens = 512
learning_rate = 5e-3
warmup = 10
[runtime]
threads = 1
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 mails, of which 5% are spam. 7 of 10 spam mails offer a prize, and 1 of 10 others: of those that do, a
    quarter is spam, so whoever counts mails never says spam, and whoever counts both labels alike does."""
    folder, chance = tmp_path_factory.mktemp("mail"), random.Random(5)
    rows = [["text", "label"]]
    for number in range(1500):
        spam = chance.random() < 0.05
        word = "prize" if chance.random() < (0.7 if spam else 0.1) else "lunch"
        rows.append([f"mail {number} about the {word}", "spam" if spam else "ham"])
    write_table(folder / "mail.csv", rows)
    (folder / "my.toml").write_text(RECIPE)
    trained(folder, "plain")
    trained(folder, "weighted", "data.balance=weights")
    return folder


def test_a_classifier_that_always_says_the_same_is_warned_of_first(place: Path) -> None:
    shown = run_qkv(place, "eval", "plain")
    assert shown.code == 0, shown.err
    lines = shown.out.splitlines()
    assert lines[0].startswith("warning: accuracy is no better than always predicting 'ham': 0.9")
    assert lines[1] == "warning: 'spam' is never predicted"
    card = (place / "plain/README.md").read_text()
    assert card.startswith("# plain\n\n**Warning: accuracy is no better than always predicting 'ham': 0.9")
    assert 'train with `data.balance = "weights"`' in card


def test_weighted_classes_are_predicted_also_by_the_weights_that_are_kept(place: Path) -> None:
    """Chosen by the loss that is trained: by the unweighted one, weights that never say spam would be the best."""
    found = run_json(place, "eval", "weighted")
    ham, spam = found["classes"]
    assert (ham["label"], spam["label"]) == ("ham", "spam")
    assert spam["recall"] > 0.4
    assert ham["recall"] > 0.6
    assert found["balanced_accuracy"] > 0.6 > run_json(place, "eval", "plain")["balanced_accuracy"]
    card = (place / "weighted/README.md").read_text()
    assert "probabilities are those of data with equally frequent classes" in card


def test_which_rows_were_evaluated_is_said(place: Path) -> None:
    own = run_qkv(place, "eval", "plain")
    assert "note: the rows are the test set of mail.csv, held out by a hash of the text" in own.err
    assert "all test rows" in own.out
    given = run_qkv(place, "eval", "plain", "--data", "./mail.csv")
    assert re.search(
        r"warning: [\d,]+ of [\d,]+ rows are training rows of this run, .*the metrics are too good", given.err
    )
    assert "all given rows" in given.out
    write_table(place / "new.csv", [["text", "label"], ["a prize", "spam"]])
    other = run_qkv(place, "eval", "plain", "--data", "new.csv", "--json")
    assert "warning" not in other.err
    assert json.loads(other.out)["rows"] == 1


def test_what_is_lowest_is_only_called_best_where_the_best_is_kept(place: Path) -> None:
    ended = trained(place, "last", "train.keep=last", "train.epochs=2")
    assert "best so far" not in ended.err
    assert "(lowest loss so far; the last weights are kept)" in ended.err


# --- tables


def metrics_of(predicted: Sequence[int], labels: Sequence[int], names: Sequence[str]) -> ClassificationMetrics:
    return classification_metrics(np.eye(len(names))[list(predicted)], np.array(labels), names)


def printed(found: object) -> list[str]:
    console = Console(width=120, highlight=False)
    with console.capture() as captured:
        console.print(found)
    return [" ".join(line.split()) for line in captured.get().splitlines()]


def test_a_table_by_class() -> None:
    assert printed(class_table(metrics_of([0, 0, 1, 0], [0, 0, 1, 1], ["[red]", "blue"]))) == [
        "label rows predicted precision recall F1",
        "[red] 2 3 0.6667 1.0000 0.8000",
        "blue 2 1 1.0000 0.5000 0.6667",
    ]


def test_headers_of_long_labels_are_numbers_and_no_two_names_are_alike() -> None:
    names = [f"austen-{'the-same-long-name-' * 4}{n % 2}-of-the-collected-works-of-one" for n in range(4)]
    lines = printed(confusion_table(metrics_of([0, 1, 2, 2], [0, 1, 2, 3], names)))
    assert lines[0] == "1 2 3 4"
    rows = [line.split()[0] for line in lines[1:]]
    assert rows == ["1", "2", "3", "4"]
    assert printed(confusion_table(metrics_of([0, 1], [0, 0], ["good", "bad"]))) == ["good bad", "good 1 1", "bad 0 0"]


def test_few_rows_have_no_verdict_on_calibration() -> None:
    for rows, said in ((299, True), (300, False)):
        found = metrics_of([0] * rows, [0] * (rows - 1) + [1], ["a", "b"])
        console = Console(width=120)
        with console.capture() as captured:
            show_metrics(console, {"all": found})
        assert ("too few rows to say: 299, at least 300 are needed" in captured.get()) == said
        assert ("confidence" in captured.get()) != said
