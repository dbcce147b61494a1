"""Every row of a table gets its answer; an interrupted job goes on, and ends with the same bytes."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qkv.api import load, open_table_job
from qkv.corpus.files import Columns
from qkv.predict import table as tables
from qkv.predict.partial import Partial
from qkv.predict.table import TableNotes, choose_columns, partial_of, predict_table
from qkv.schema import UserError, silent
from tests.support.cli import check_ended, run_qkv, write_table
from tests.support.fork_server import fork_server, until
from tests.support.small_folders import WORDS, make_folder

TASKS = ("classify", "regress", "complete", "translate", "fill", "embed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model for each task, and a table of 2,500 rows: three chunks."""
    folder = tmp_path_factory.mktemp("tables")
    for task in TASKS:
        make_folder(folder / task, task)
    chance = random.Random(7)
    rows = [[str(n), " ".join(chance.choices(WORDS, k=chance.randint(1, 9))), "a, b"] for n in range(2500)]
    rows[3][1] = "  "
    write_table(folder / "in.csv", [["id", "message", "label"], *rows])
    return folder


def read(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


def test_columns_are_appended_and_the_rest_is_kept(place: Path) -> None:
    ended = run_qkv(place, "predict", "classify", "--file", "in.csv", "--column", "message", "-o", "out.csv")
    assert ended.code == 0, ended.err
    assert "the table has a column 'label' already; the answer is in 'predicted_label'" in ended.err
    assert "note: 1 rows have no text, and no answer" in ended.err
    assert "out.csv: 2,500 rows, " in ended.err
    assert " rows/s, " in ended.err
    assert ended.out == ""
    before, after = read(place / "in.csv"), read(place / "out.csv")
    assert [row[:3] for row in after] == before
    assert after[0][3:] == ["predicted_label", "p(bad)", "p(good)", "p(neither)"]
    assert after[4][3:] == ["", "", "", ""]
    rows = [row for row in after[1:] if row[3]]
    answers = load(place / "classify").predict([row[1] for row in rows])
    assert [row[3] for row in rows] == [one.label for one in answers]
    for row, one in zip(rows, answers, strict=True):
        assert [float(cell) for cell in row[4:]] == pytest.approx(list((one.probabilities or {}).values()), abs=2e-6)
    assert not partial_of(place / "out.csv").exists()
    assert not list(place.glob(".out*"))


def test_stdout_has_the_same_table_as_the_file(place: Path) -> None:
    write_table(place / "few.csv", read(place / "in.csv")[:40])
    arguments = ("predict", "classify", "--file", "few.csv", "--column", "message")
    assert run_qkv(place, *arguments, "-o", "few-out.csv").code == 0
    assert run_qkv(place, *arguments).out == (place / "few-out.csv").read_text()
    assert run_qkv(place, *arguments, "-o", "few-out.jsonl").code == 0
    lines = run_qkv(place, *arguments, "--json").out
    assert lines == (place / "few-out.jsonl").read_text()
    first = json.loads(lines.splitlines()[0])
    assert isinstance(first["p(bad)"], float)
    check_ended(run_qkv(place, *arguments, "--json", "-o", "x.csv"), 2, "write to x.jsonl")


@pytest.mark.parametrize(
    ("task", "names"), [("regress", ["value"]), ("complete", ["output"]), ("translate", ["output"])]
)
def test_every_kind_of_answer_has_its_column(place: Path, task: str, names: list[str]) -> None:
    write_table(place / "five.csv", read(place / "in.csv")[:6])
    out = place / f"{task}.csv"
    ended = run_qkv(place, "predict", task, "--file", "five.csv", "--column", "message", "-o", out)
    assert ended.code == 0, ended.err
    found = read(out)
    assert found[0][3:] == names
    assert found[4][3:] == [""]
    options: dict[str, Any] = {"beam": 1} if task != "regress" else {}
    one = load(place / task).predict([found[1][1]], **options)[0]
    if task == "regress":
        assert float(found[1][3]) == pytest.approx(one.value, rel=1e-4)
    else:
        assert found[1][3] == one.output


def test_a_text_that_cannot_be_answered_is_named_by_its_line(place: Path) -> None:
    write_table(place / "masks.csv", [["text"], ["the [MASK] film"], ["the film"]])
    ended = run_qkv(place, "predict", "fill", "--file", "masks.csv")
    check_ended(ended, 2, "masks.csv, line 3, 'the film', has no [MASK]")
    check_ended(run_qkv(place, "predict", "embed", "--file", "masks.csv"), 2, "this model has no head")
    check_ended(run_qkv(place, "predict", "classify", "--file", "masks.csv", "--beam", "2"), 2, "beam = 2: for models")


def test_pairs_are_two_columns(place: Path, tmp_path: Path) -> None:
    write_table(tmp_path / "pairs.csv", [["a", "b"], ["the film", "was bad"], ["", ""]])
    job = open_table_job(place / "classify", tmp_path / "pairs.csv", "a", "b")
    assert [text for _, _, text in job.texts()] == [("the film", "was bad"), None]
    with pytest.raises(UserError, match="no column 'c'; known: a, b; choose one with --pair NAME"):
        open_table_job(place / "classify", tmp_path / "pairs.csv", "a", "c")


# --- which column


def test_the_column_is_found_or_asked_for(tmp_path: Path) -> None:
    said: list[str] = []
    file = tmp_path / "t.csv"
    rows = [["id", "team", "message"], ["1", "billing", "the invoice again"], ["2", "sales", "an offer"]]
    write_table(file, rows)
    assert choose_columns(file, rows[0], Columns("x"), None, said.append) == Columns("x")
    assert choose_columns(file, rows[0], None, Columns("team"), said.append).text == "team"
    assert choose_columns(file, rows[0], None, None, said.append).text == "message"
    assert said == [
        "texts: column 'team', as in the run's recipe",
        "texts: column 'message', the only one that looks like texts",
    ]
    assert choose_columns(file, ["text", "other"], None, Columns("gone"), silent).text == "text"
    write_table(file, [["a", "b"], ["two words", "two words"]])
    with pytest.raises(UserError, match="2 columns look like texts; columns: a, b; choose one with --column NAME"):
        choose_columns(file, ["a", "b"], None, None, silent)
    write_table(file, [["a", "b"], ["1", "2"]])
    with pytest.raises(UserError, match="no column looks like texts; columns: a, b; choose"):
        choose_columns(file, ["a", "b"], None, None, silent)
    write_table(file, [["only"], ["1"]])
    assert choose_columns(file, ["only"], None, None, silent).text == "only"


# --- interrupted


def predicting(place: Path, name: str = "in.csv") -> tuple[str, ...]:
    return ("predict", "classify", "--file", name, "--column", "message", "-o")


@pytest.mark.faults
def test_killed_at_any_operation_on_the_disk_it_ends_with_the_same_bytes(place: Path) -> None:
    for kind in (".csv", ".parquet"):
        whole = run_qkv(place, *predicting(place), f"whole{kind}", operation=0)
        operations = int(whole.err.rpartition("operations ")[2])
        assert operations > 8
        for number in range(1, operations + 1):
            out = f"killed-{number}{kind}"
            assert run_qkv(place, *predicting(place), out, operation=number).code == -signal.SIGKILL
            ended = run_qkv(place, *predicting(place), out)
            assert ended.code == 0, ended.err
            assert (place / out).read_bytes() == (place / f"whole{kind}").read_bytes(), number
        left = [
            file.name for file in place.iterdir() if file.name.endswith((".partial", ".lock")) or ".tmp-" in file.name
        ]
        assert left == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_job_goes_on_after_its_last_chunk(place: Path, how: signal.Signals) -> None:
    rows = read(place / "in.csv")
    write_table(place / "long.csv", [rows[0], *(rows[1:] * 12)])
    assert run_qkv(place, *predicting(place, "long.csv"), "long-whole.csv").code == 0
    out, partial = place / f"long-{how.name}.csv", place / f"long-{how.name}.csv.partial"
    process = fork_server().start(place, *predicting(place, "long.csv"), out)
    until(lambda: partial.exists() and partial.read_bytes().count(b"\n") > 2, process)
    ended = process.kill(how)
    if how == signal.SIGINT:
        check_ended(ended, 130, f"of 30,000 rows are kept in {partial}; the same command goes on from there")
    else:
        assert ended.code == -signal.SIGKILL
    assert not out.exists()
    with partial.open("ab") as file:  # what a power cut may leave of the next line
        file.write(b'{"answers": [["bad", 0.1')
    again = run_qkv(place, *predicting(place, "long.csv"), out)
    assert again.code == 0, again.err
    assert f"{partial}: going on after " in again.err
    assert out.read_bytes() == (place / "long-whole.csv").read_bytes()
    assert not partial.exists()


def test_answers_of_another_table_model_or_option_are_not_taken(place: Path) -> None:
    out = place / "other.csv"
    job = open_table_job(place / "classify", place / "in.csv", "message")
    next(predict_table(job, out, TableNotes())).rows  # noqa: B018  (begun, and left)
    write_table(place / "changed.csv", [*read(place / "in.csv"), ["1", "bad", "x"]])
    partial = partial_of(out)
    other = run_qkv(place, *predicting(place, "changed.csv"), out)
    check_ended(
        other, 2, f"{partial}: holds answers of another table; finish that command, or begin anew: rm {partial}"
    )
    model = run_qkv(place, "predict", "regress", *predicting(place)[2:], out)
    check_ended(model, 2, "holds answers of another model")
    column = run_qkv(place, "predict", "classify", "--file", "in.csv", "--column", "label", "-o", out)
    check_ended(column, 2, "holds answers of other columns")
    option = run_qkv(place, *predicting(place), out, "--top", "3")
    check_ended(option, 2, "holds answers of other options")
    partial.write_bytes(b'{"format": 1, "inp')  # killed while it was begun
    assert run_qkv(place, *predicting(place), out).code == 0


def test_a_partial_file_is_cut_back_to_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.partial"
    assert Partial(path, {"input": "1"}).open() == 0
    partial = Partial(path, {"input": "1"})
    partial.append([["a"], None], 1)
    partial.append([["b"]], 0)
    whole = path.read_bytes()
    for rest in (b"\0\0\0\n", b"7\n", b'{"answers": 3}\n', b'{"answers": [["c"]], "truncated": 0}'):
        path.write_bytes(whole + rest)
        assert partial.open() == 3
        assert path.read_bytes() == whole
    assert list(partial.chunks()) == [([["a"], None], 1), ([["b"]], 0)]


def test_a_chunk_ends_by_rows_or_by_characters_wherever_it_begins(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "CHUNK_ROWS", 3)
    monkeypatch.setattr(tables, "CHUNK_CHARACTERS", 10)
    texts = ["bad", "good", "a", "the film was bad", "it", "", "we", "not very good", "dull"]
    write_table(tmp_path / "in.csv", [["text"], *([text] for text in texts)])
    job = open_table_job(place / "classify", tmp_path / "in.csv")
    sizes = [len(chunk.answers) for chunk in job.chunks()]
    assert sizes == [3, 1, 3, 1, 1]
    assert [len(chunk.answers) for chunk in job.chunks(skip=4)] == sizes[2:]


def test_an_output_that_cannot_be_is_refused_before_anything_is_predicted(place: Path) -> None:
    for out, sentence in (
        ("in.csv", "in.csv: is the table that is read; choose another name with -o"),
        ("out.xlsx", "out.xlsx: the name of a table that is written must end in one of .csv, .tsv"),
        ("nowhere/out.csv", "its folder does not exist; make it first: mkdir -p nowhere"),
    ):
        check_ended(run_qkv(place, *predicting(place), out), 2, sentence)
    check_ended(run_qkv(place, "predict", "classify", "bad", "-o", "x.csv"), 2, "--output x.csv: for a table; name one")
    write_table(place / "broken.csv", [["message"], *([["bad"]] * 1500), ["bad", "film"]])
    broken = run_qkv(place, *predicting(place, "broken.csv"), "x.csv")
    check_ended(broken, 2, "broken.csv, line 1502: 2 fields, but the header names 1")
    assert not (place / "x.csv.partial").exists()


def test_a_full_disk_keeps_what_was_predicted(place: Path) -> None:
    full = run_qkv(place, *predicting(place), "full.csv", largest_file=60_000)
    check_ended(full, 2, "full.csv: cannot be written: File too large; what was predicted is kept")
    ended = run_qkv(place, *predicting(place), "full.csv")
    assert "going on after 1,024 of 2,500 rows" in ended.err
    assert ended.code == 0


def test_labels_that_look_like_formulas_are_written_as_they_are_and_noted(tmp_path: Path) -> None:
    make_folder(tmp_path / "model", "classify")
    config = json.loads((tmp_path / "model/config.json").read_text())
    labels = ["=1+1", "-b", "@x"]
    config |= {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}}
    (tmp_path / "model/config.json").write_text(json.dumps(config))
    write_table(tmp_path / "in.csv", [["text"], *([word] for word in WORDS)])
    notes = TableNotes()
    for _ in predict_table(open_table_job(tmp_path / "model", tmp_path / "in.csv"), tmp_path / "out.csv", notes):
        pass
    found = [row[1] for row in read(tmp_path / "out.csv")[1:]]
    assert set(found) <= set(labels)
    assert notes.formulas == len(found)
    assert "a spreadsheet may take them for formulas" in notes.sentences()[0]
    assert [tables.may_be_formula(cell) for cell in ("-1", "+2.5", "-a", "=1", "a=1", "")] == [
        False, False, True, True, False, False
    ]  # fmt: skip


# --- lines


def test_stdin_is_answered_while_it_stays_open(place: Path) -> None:
    command = [sys.executable, "-P", "-m", "qkv.cli.main", "predict", "classify"]
    process = subprocess.Popen(command, cwd=place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdin is not None
    assert process.stdout is not None
    labels = []
    for text in (b"the film was bad\n", b"we saw it\n"):
        process.stdin.write(text)
        labels.append(process.stdout.readline().split()[0].decode())
    process.stdin.close()
    assert process.wait(60) == 0
    process.stdout.close()
    answers = load(place / "classify").predict(["the film was bad", "we saw it"])
    assert labels == [one.label for one in answers]


def test_an_endless_stdin_is_answered_until_the_reader_leaves(place: Path) -> None:
    command = f"yes film | {sys.executable} -P -m qkv.cli.main predict classify | head -3000 | sort | uniq -c"
    ended = subprocess.run(["bash", "-c", command], cwd=place, capture_output=True, text=True, timeout=120)
    assert ended.stdout.split()[0] == "3000"
    assert len(ended.stdout.splitlines()) == 1


def test_lines_of_a_file_keep_their_order_and_errors_their_number(place: Path) -> None:
    texts = [" ".join(random.Random(n).choices(WORDS, k=1 + n % 9)) for n in range(2100)]
    (place / "lines.txt").write_text("\ufeff" + "\r\n".join(texts))
    ended = run_qkv(place, "predict", "classify", "--file", "lines.txt")
    answers = load(place / "classify").predict(texts)
    assert [line.split()[0] for line in ended.out.splitlines()] == [one.label for one in answers]
    (place / "masks.txt").write_text("the [MASK] film\n" * 1500 + "film\n")
    check_ended(run_qkv(place, "predict", "fill", "--file", "masks.txt"), 2, "text 1501, 'film', has no [MASK]")
    (place / "bytes.txt").write_bytes(b"film\n\xff\n")
    check_ended(run_qkv(place, "predict", "classify", "--file", "bytes.txt"), 2, "bytes.txt, line 2: not UTF-8")
    check_ended(run_qkv(place, "predict", "classify", "--file", os.devnull), 2, "neither a file nor a folder")
