"""`qkv eval` on other tables: other columns, rows it was trained on, and the rows it gets wrong."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest

from qkv.explain.errors import looks_mislabelled
from tests.support.cli import check_ended, run_json, run_qkv, trained, write_table

RECIPE = """
task = "classify"
seed = 1
[data]
corpus = "tickets.csv"
text = "message"
label = "team"
length = 24
[tokenizer]
vocab_size = 200
[model]
width = 16
heads = 2
layers = 1
feedforward = 16
positions = "rotary"
embedding_norm = true
pooler = "gelu"
[train]
epochs = 8
batch_tokens = 256
learning_rate = 5e-3
warmup = 10
[runtime]
threads = 1
"""
WORDS = {"billing": ("invoice", "refund"), "sales": ("price", "offer")}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chance = tmp_path_factory.mktemp("eval"), random.Random(3)
    rows = []
    for number in range(400):
        team = chance.choice(sorted(WORDS))
        rows.append([f"{number}: the {chance.choice(WORDS[team])} again", team])
    write_table(folder / "tickets.csv", [["message", "team"], *rows])
    (folder / "my.toml").write_text(RECIPE)
    trained(folder, "run")
    return folder


def test_columns_of_another_name_are_named(place: Path) -> None:
    write_table(place / "other.csv", [["body", "dept"], ["900: the refund now", "billing"], ["the price", "sales"]])
    missing = run_qkv(place, "eval", "run", "--data", "other.csv")
    check_ended(missing, 2, "no column 'message'; known: body, dept; choose one with --text NAME")
    missing = run_qkv(place, "eval", "run", "--data", "other.csv", "--text", "body")
    check_ended(missing, 2, "no column 'team'; known: body, dept; choose one with --label NAME")
    found = run_json(place, "eval", "run", "--data", "other.csv", "--text", "body", "--label", "dept")
    assert found["rows"] == 2
    check_ended(
        run_qkv(place, "eval", "run", "--text", "body"), 2, "--text: names a column of other data; give it with"
    )


def test_rows_that_were_trained_on_are_counted(place: Path) -> None:
    whole = run_qkv(place, "eval", "run", "--data", "tickets.csv")
    assert whole.code == 0, whole.err
    with (place / "tickets.csv").open(newline="") as file:
        lines = [{**row, "message": row["message"].upper() + "  "} for row in csv.DictReader(file)]
    (place / "copy.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    copy = run_qkv(place, "eval", "run", "--data", "copy.jsonl")  # the same texts, in another spelling
    for ended in (whole, copy):
        sentence = next(line for line in ended.err.splitlines() if line.startswith("warning: "))
        train, validation = int(sentence.split()[1]), int(sentence.split("and ")[1].split()[0])
        assert sentence == (
            f"warning: {train} of 400 rows are training rows of this run, and {validation} are validation rows: "
            "the metrics are too good"
        )
        assert 300 < train < 370
        assert validation > 0
    write_table(place / "fresh.csv", [["message", "team"], ["1000: the refund at last", "billing"]])
    fresh = run_qkv(place, "eval", "run", "--data", "fresh.csv")
    assert "note: none of the 1 rows is a training or validation row of this run" in fresh.err
    (place / "tickets.csv").rename(place / "away.csv")
    try:
        gone = run_qkv(place, "eval", "run", "--data", "fresh.csv")
        assert gone.code == 0
        assert "note: tickets.csv, which this run was trained on, is not here: not compared" in gone.err
    finally:
        (place / "away.csv").rename(place / "tickets.csv")


def test_wrong_rows_come_with_their_words_the_most_confident_first(place: Path) -> None:
    right = [[f"{n}: the refund again", "billing"] for n in range(1000, 1010)]
    wrong = [["1: the refund and the invoice", "sales"], ["2: =price\nand offer", "billing"], ["the", "sales"]]
    write_table(place / "given.csv", [["message", "team"], *right, *wrong, ["the", "billing"]])
    ended = run_qkv(place, "eval", "run", "--data", "given.csv", "--errors", "errors.csv", "--words", "2")
    assert ended.code == 0, ended.err
    with (place / "errors.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        "place", "text", "label", "predicted", "probability", "label_probability", "looks_mislabelled", "words"
    ]  # fmt: skip
    assert len(rows) == 3  # one of the two rows of "the" is wrong
    sure = [float(row["probability"]) for row in rows]
    assert sure == sorted(sure, reverse=True)
    by_text = {row["text"]: row for row in rows}
    refund = by_text["1: the refund and the invoice"]
    assert (refund["place"], refund["label"], refund["predicted"]) == ("given.csv, line 12", "sales", "billing")
    assert "refund" in refund["words"] or "invoice" in refund["words"]
    assert float(refund["probability"]) + float(refund["label_probability"]) == pytest.approx(1.0, abs=1e-5)
    assert (rows[2]["text"], rows[2]["words"]) == ("the", "")
    for row in rows:
        expected = looks_mislabelled(float(row["label_probability"]), float(row["probability"]))
        assert row["looks_mislabelled"] == ("yes" if expected else "")
    assert "errors.csv: 3 wrong rows, " in ended.err
    assert "deciding words of the first 2" in ended.err


def test_other_formats_and_names_for_errors(place: Path) -> None:
    same = run_qkv(place, "eval", "run", "--errors", "own.jsonl")  # its own test set
    assert same.code == 0, same.err
    assert (place / "own.jsonl").exists()
    check_ended(run_qkv(place, "eval", "run", "--errors", "own.xlsx"), 2, "must end in one of .csv, .tsv")
    write_table(place / "tr.csv", [["text", "target"], ["I am hungry.", "J'ai faim."]])
    other = run_qkv(place, "eval", "bundled-en-fr", "--data", "tr.csv", "--errors", "e.csv")
    check_ended(other, 2, "--errors: only a classifier has wrong rows")
    named = run_qkv(place, "eval", "bundled-en-fr", "--data", "tr.csv", "--target", "french")
    check_ended(named, 2, "no column 'french'; known: text, target; choose one with --target NAME")


@pytest.mark.parametrize(
    ("own", "predicted", "doubtful"),
    [(0.04, 0.96, True), (0.05, 0.95, False), (0.04, 0.9, False), (0.01, 0.5, False), (0.0, 1.0, True)],
)
def test_a_label_looks_wrong_where_the_model_is_sure_of_another(own: float, predicted: float, doubtful: bool) -> None:
    assert looks_mislabelled(own, predicted) is doubtful
