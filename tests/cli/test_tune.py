"""`qkv tune table.csv`: trials that are kept, and the best one as a run, with the bundled encoder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qkv.run.folder import Run
from tests.support.cli import check_ended, run_qkv, write_table

FAST = ("--minutes", "1", "--set", "init=bundled-encoder", "--set", "train.steps=2", "--set", "runtime.threads=1",
        "--set", "train.learning_rate=1e-4", "--set", "train.layer_decay=0.8")  # fmt: skip


def write_rows(folder: Path, count: int) -> None:
    rows = [[f"{'good fine' if n % 2 else 'bad poor'} film {n}", "ny"[n % 2]] for n in range(count)]
    write_table(folder / "t.csv", [["text", "label"], *rows])


def test_search_run_rerun_and_a_changed_table(tmp_path: Path) -> None:
    write_rows(tmp_path, 24)
    ended = run_qkv(tmp_path, "tune", "t.csv", *FAST)
    assert ended.code == 0, ended.err
    assert "trial 1: the recipe of `qkv train`: validation loss " in ended.err
    trials = (tmp_path / "runs" / "t.trials.jsonl").read_text()
    if trials.count("\n") > 1:
        assert f"the best of {trials.count(chr(10))} trials and therefore slightly optimistic" in ended.out
    assert "fine-tuned encoder" in ended.err
    assert "against" in ended.out
    assert Run(tmp_path / "runs" / "t-tuned").is_done()

    again = run_qkv(tmp_path, "tune", "t.csv", *FAST, "--json")
    assert again.code == 0, again.err
    found = json.loads(again.out)
    assert "(kept)" in again.err
    assert "this run is already finished" in again.err
    assert (set(found), found["run"]["folder"]) == ({"trials", "best", "run"}, "runs/t-tuned")
    assert found["best"]["loss"] == min(one["loss"] for one in found["trials"])
    assert (tmp_path / "runs" / "t.trials.jsonl").read_text().startswith(trials)

    write_rows(tmp_path, 26)
    changed = run_qkv(tmp_path, "tune", "t.csv", *FAST)
    assert "trials of another table or base recipe; the search begins anew" in changed.err
    check_ended(changed, 2, "runs/t-tuned")  # the run that is there belongs to the table as it was


def test_numbers_and_a_test_file(tmp_path: Path) -> None:
    for name, first in (("t.csv", 0), ("new.csv", 100)):
        rows = [[f"{' good' * (n % 7)} film number {first + n}".strip(), f"{n % 7 + n / 99:.3f}"] for n in range(40)]
        write_table(tmp_path / name, [["text", "rating"], *rows])
    ended = run_qkv(tmp_path, "tune", "t.csv", "--test", "new.csv", "-o", "mine", *FAST)
    assert ended.code == 0, ended.err
    assert "Pearson correlation" in ended.err
    assert "The search did not use the test rows, whose metrics follow." in ended.out
    assert (tmp_path / "mine.trials.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("t.csv", "--minutes", "0"), "error: --minutes 0: must be from 1 to 1440; for example --minutes 10\n"),
        (("t.csv", "--minutes", "2000"), "--minutes 2000: must be from 1 to 1440"),
        (("reviews-quick",), "reviews-quick: not a table; accepted: a CSV"),
        (("nothere.csv",), "nothere.csv: no such file or folder"),
        (("t.csv", "--label", "nosuch"), "--label nosuch: t.csv has no such column"),
    ],
)
def test_what_cannot_be_searched_is_refused(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    write_rows(tmp_path, 24)
    check_ended(run_qkv(tmp_path, "tune", *words), 2, said)
    assert not (tmp_path / "runs").exists()
