"""`qkv lab` from the outside: what is printed, what is written, and what is refused before anything is measured."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest

from qkv import labs
from qkv.cli.lab import ProgressLines, grade
from qkv.cli.main import main
from qkv.labs import runner
from qkv.labs.lab import Finding


def qkv(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["qkv", "lab", *words])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_the_list_has_every_lab(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert qkv(monkeypatch, "list") == 0
    shown = capsys.readouterr().out
    assert all(f" {name} " in shown for name in labs.NAMES)


def test_a_lab_as_json_is_one_line_with_the_promised_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert qkv(monkeypatch, "softmax", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert {"name", "claim", "verdict", "effect", "interval", "seeds", "figures"} <= set(found)
    assert found["name"] == "softmax"


def test_a_report_is_a_page_with_pictures_beside_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "new" / "report.html"
    assert qkv(monkeypatch, "count", "-o", str(page)) == 0
    said = capsys.readouterr()
    assert "63,082,496" in said.out
    assert "measured at full size on" in said.out
    assert f"report: {page}, with its pictures beside it" in said.err
    assert "How many weights" in page.read_text(encoding="utf-8")
    assert sorted(file.name for file in page.parent.iterdir()) == [
        "report-count.png", "report-count.svg", "report.html",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scala"], "scala: neither a lab (did you mean scale? known: scale, softmax, "),
        (
            ["count", "bundled-encoder"],
            "lab count: cannot use this model; for this family (encoder), residual, heads, ",
        ),
        (["context", "bundled-gpt"], "lab context: cannot use this model; for this family (decoder), residual, "),
        (
            ["heads", "bundled-encoder", "bundled-gpt"],
            "bundled-gpt: only one model at a time; bundled-encoder was given before",
        ),
        (["count", "-o", "page.txt"], "page.txt: a report must end in .html"),
        (["count", "-o", "FOLDER/x.html"], "FOLDER/x.html: is a folder; give a file name"),
        (["count", "-o", "FILE/page.html"], "FILE/page.html: cannot create its folder: File exists"),
        (["count", "--ask"], "--ask needs an interactive terminal"),
    ],
)
def test_a_mistake_is_named_before_anything_is_measured(
    words: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    (tmp_path / "FOLDER" / "x.html").mkdir(parents=True)
    (tmp_path / "FILE").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(runner, "run_labs", lambda *given, **how: pytest.fail("measured all the same"))
    assert qkv(monkeypatch, *words) == 2
    said = capsys.readouterr()
    assert sentence in said.err
    assert said.out == ""


def test_the_student_says_first_and_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of softmax, two sentences are right and two are errata; everything is called true, once after a slip."""
    answers = iter(["what?", *["t"] * 10])
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("rich.console.Console.input", lambda console, prompt: next(answers))
    assert qkv(monkeypatch, "softmax", "--ask") == 0
    shown, claims = capsys.readouterr().out, labs.load("softmax").claims
    assert "t for true, f for false" in shown
    assert shown.count("right ") >= 1
    assert shown.count("wrong") >= sum(claim.erratum for claim in claims)


def test_what_was_not_decided_is_not_graded() -> None:
    claim = labs.load("softmax").claims[0]
    low = claim.rule.low if math.isfinite(claim.rule.low) else claim.rule.high
    undecided = Finding(claim, (low - 1.0, low + 1.0))
    assert [grade(undecided, guess) for guess in (True, False)] == ["not decided"] * 2


def test_progress_without_a_terminal_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines()
    for step in range(3):
        lines.show(runner.Step("scale", f"step {step}", 1, 57))
    assert capsys.readouterr().err == "1 of 57 measured; scale: step 0\n"
