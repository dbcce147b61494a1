"""Plots show the numbers they are given, whole, on any machine the same; a name may be anything."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.image import imread

from qkv import plots
from qkv.calibration import Bin, ece, reliability, softmax
from qkv.metrics import classification_metrics
from qkv.plots import Curves, History
from qkv.schema import UserError
from qkv.tasks.classify import CLASSIFY
from qkv.tasks.complete import COMPLETE
from qkv.tasks.fill import FILL
from qkv.tasks.regress import REGRESS

DRAWN = re.compile(r"<!-- (.*?) -->")  # matplotlib writes each text beside its outlines


def run(name: str, steps: int, validations: int, best: int | None = None) -> Curves:
    train = [(step, 0.7 / step + 0.2) for step in range(1, steps + 1)]
    ends = [(number + 1) * steps // validations for number in range(validations)]
    return Curves(name, train, [(end, 0.4 + 1 / end, 0.9 - 0.3 / end) for end in ends], best)


def texts(path: Path) -> list[str]:
    """All that is written in an SVG."""
    ET.parse(path)
    return [found.replace("\u200b", "") for found in DRAWN.findall(path.read_text("utf-8"))]


def bins(sharpness: float = 1.0, rows: int = 500) -> list[Bin]:
    random = np.random.default_rng(3)
    shares = softmax(random.normal(0, 2, (rows, 2)) * sharpness)
    return reliability(shares, (random.random(rows) < shares[:, 1]).astype(np.int64))


@pytest.mark.parametrize(
    ("steps", "validations", "suffix"),
    [(1, 1, ".svg"), (3, 3, ".PNG"), (500, 500, ".png"), (5000, 1, ".svg"), (50, 0, ".svg")],
)
def test_curves_of_any_length_are_drawn(tmp_path: Path, steps: int, validations: int, suffix: str) -> None:
    path = tmp_path / f"curves{suffix}"
    plots.curves(path, [run("reviews", steps, validations, steps if validations else None)], "A title")
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "nothing is left beside it"
    if suffix == ".svg":
        written = texts(path)
        assert "A title" in written
        assert ("no validation yet" in written) == (validations == 0)
        entry = f"reviews, kept step {steps:,}: {0.9 - 0.3 / steps:.4f}" if validations else "reviews"
        assert entry in written
    else:
        image = imread(path, format="png")
        assert image.shape[1] == 1200
        assert image[:, :, :3].std() > 0.02, "not an empty page"


def paths(path: Path, colour: str) -> list[list[tuple[float, float]]]:
    """The lines of a colour in an SVG, as points."""
    found = re.findall(rf'<path d="([^"]*)"[^>]*style="fill: none[^"]*stroke: {colour}', path.read_text("utf-8"))
    return [points(one) for one in found]


def points(drawn: str) -> list[tuple[float, float]]:
    """The corners of an SVG path."""
    return [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", drawn)]


def test_a_curve_goes_through_its_numbers(tmp_path: Path) -> None:
    """Three validations, evenly spaced; the second loss is halfway between the others, the accuracy a quarter."""
    path = tmp_path / "curves.svg"
    validation = [(100, 0.8, 0.5), (200, 0.6, 0.6), (300, 0.4, 0.9)]
    plots.curves(path, [Curves("a", [(100, 1.0), (300, 0.2)], validation, kept_step=300)], "")
    thin, loss, accuracy = paths(path, "#0072b2")[:3]
    assert len(thin) == 2
    for line, share in ((loss, 0.5), (accuracy, 0.25)):
        (x1, y1), (x2, y2), (x3, y3) = line
        assert x2 - x1 == pytest.approx(x3 - x2, abs=1e-3)
        assert (y2 - y1) / (y3 - y1) == pytest.approx(share, abs=1e-3)
    assert loss[2][1] > loss[0][1], "a loss that falls goes down the page"
    assert accuracy[2][1] < accuracy[0][1], "an accuracy that rises goes up"
    assert [x for x, _ in thin] == pytest.approx([loss[0][0], loss[2][0]], abs=1e-3)


def test_runs_differ_without_colour(tmp_path: Path) -> None:
    path = tmp_path / "curves.svg"
    names = [f"run {number}" for number in range(9)]
    plots.curves(path, [run(name, 40, 4) for name in names], "Nine runs")
    assert [text for text in texts(path) if text.startswith("run ")] == names
    looks = {(plots.DASHES[n % len(plots.DASHES)], plots.MARKS[n % len(plots.MARKS)]) for n in range(42)}
    assert len(looks) == 42
    assert len(set(re.findall(r"stroke-dasharray: ([\d., ]+)", path.read_text("utf-8")))) >= 5


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("_hidden", "_hidden"),
        (r"$\frac{$", r"$\frac{$"),  # no formula
        (r"\frac{1}{0} & <b>", r"\frac{1}{0} &amp; &lt;b&gt;"),
        ("two\nlines\ttab", "two lines tab"),
        ("电影 é", "\ufffd\ufffd é"),
        ("x" * 40 + "middle" + "y" * 40, "x" * 23 + "…" + "y" * 23),
        ("", ""),
    ],
)
def test_a_name_may_be_anything(tmp_path: Path, name: str, shown: str) -> None:
    path = tmp_path / "curves.svg"
    plots.curves(path, [run("first", 3, 3), Curves(name, [(1, 1.0)], [])], "title " + name)
    written = path.read_text("utf-8")
    assert f"<!-- \u200b{shown} -->" in written


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    path, clean = tmp_path / "curves.svg", tmp_path / "clean.svg"
    plots.curves(
        path,
        [Curves("a", [(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)], [(2, math.inf, math.nan), (4, 1.0, 0.5)], 2)],
        "",
    )
    plots.curves(clean, [Curves("a", [(1, 2.0), (4, 1.0)], [(4, 1.0, 0.5)])], "")
    assert path.read_bytes() == clean.read_bytes()
    plots.curves(path, [Curves("a", [(1, math.nan)], [])], "")
    assert {"no loss yet", "no validation yet"} <= set(texts(path))


def test_each_task_has_its_panel(tmp_path: Path) -> None:
    """A curve for each metric of the task that has one, beside the part of the loss that it belongs to."""
    path = tmp_path / "curves.svg"
    step = {"step": 10, "loss": 1.0, "validation_loss": 0.9}
    parts = {
        "token_loss": 2.0,
        "next_sentence_loss": 0.6,
        "validation_token_loss": 1.9,
        "validation_token_accuracy": 0.5,
    }
    pairs = {"validation_next_sentence_loss": 0.5, "validation_next_sentence_accuracy": 0.8}
    for line, task, title, names in (
        (step | {"validation_accuracy": 0.9}, CLASSIFY, "validation accuracy", ["a, kept step 10: 0.9000"]),
        (step | {"validation_pearson": -0.7}, REGRESS, "validation Pearson", ["a, kept step 10: -0.7000"]),
        (step | {"validation_token_accuracy": 0.4}, COMPLETE, "validation token accuracy", ["a, kept step 10: 0.4000"]),
        (step | parts, FILL, "validation token accuracy", ["a, kept step 10: 0.5000"]),
        (
            step | parts | pairs,
            FILL,
            "validation token accuracy, next-sentence accuracy",
            ["a: token accuracy, kept step 10: 0.5000", "a: next-sentence accuracy, kept step 10: 0.8000"],
        ),
        ({"step": 10, "loss": 1.0}, CLASSIFY, "validation accuracy", ["a"]),
    ):
        plots.save_curves(path, [History("a", [line], 10, task.metrics, task.loss_name)])
        written = texts(path)
        assert {"Learning curves", title, *names} <= set(written)
        assert [text for text in written if re.match(r"a[,:]|a$", text)] == names
    both = [step | {"validation_accuracy": 0.9}], [step | {"validation_pearson": 0.7}]
    first = History("a", both[0], 10, CLASSIFY.metrics, CLASSIFY.loss_name)
    plots.save_curves(path, [first, History("b", both[1], None, REGRESS.metrics, REGRESS.loss_name)])
    assert {"validation accuracy, Pearson", "a, kept step 10: 0.9000", "b"} <= set(texts(path))


def test_many_points_are_thinned_to_their_means() -> None:
    points = [(step, float(step % 2)) for step in range(10_000)]
    thinned = plots._thinned(points)
    assert len(thinned) == 1000
    assert {value for _, value in thinned} == {0.5}
    assert thinned[0][0] == 4.5
    assert plots._thinned(points[:7]) == points[:7]
    assert plots._thinned([]) == []


def test_reliability_with_and_without_before(tmp_path: Path) -> None:
    both, alone = tmp_path / "both.svg", tmp_path / "alone.svg"
    plots.reliability(both, bins(3.0), bins(), "Held-out rows")
    plots.reliability(alone, None, bins(), "Held-out rows")
    assert f"before: accuracy, ECE {ece(bins(3.0)):.3f}" in texts(both)
    assert f"after: gap to confidence, ECE {ece(bins()):.3f}" in texts(both)
    assert f"gap to confidence, ECE {ece(bins()):.3f}" in texts(alone)
    assert not [text for text in texts(alone) if text.startswith(("before", "after"))]
    assert "perfectly calibrated" in texts(alone)


def test_bars_are_as_high_as_the_accuracy(tmp_path: Path) -> None:
    """Two bins of accuracy 0.5 and 0.8: bars of the first panel are in that proportion, those of the second in 30 : 10.
    Together they are as wide as the diagonal, which goes from 0.5 to 1."""
    path = tmp_path / "reliability.svg"
    plots.reliability(path, None, [Bin(0.5, 0.75, 30, 0.6, 0.5), Bin(0.75, 1.0, 10, 0.9, 0.8)], "")
    written = path.read_text("utf-8")
    bars = [points(one) for one in re.findall(r'<path d="([^"]*)"[^>]*style="fill: #a9d8f4', written)[:4]]
    heights = [max(y for _, y in bar) - min(y for _, y in bar) for bar in bars]
    assert heights[1] / heights[0] == pytest.approx(1.6, abs=1e-3)
    assert heights[2] / heights[3] == pytest.approx(3.0, abs=1e-3)
    (diagonal,) = re.findall(r'<path d="([^"]*)"[^>]*style="fill: none; stroke-dasharray[^"]*stroke: #000000', written)[
        :1
    ]
    (left, _), (right, _) = points(diagonal)
    for bar, (begin, end) in zip(bars, [(0.0, 0.5), (0.5, 1.0)] * 2, strict=True):
        assert min(x for x, _ in bar) == pytest.approx(left + begin * (right - left), abs=1e-3)
        assert max(x for x, _ in bar) == pytest.approx(left + end * (right - left), abs=1e-3)


@pytest.mark.parametrize("found", [[], reliability([[0.9, 0.1]], [0]), [Bin(0.0, 1.0, 0, 0.0, 0.0)]])
def test_reliability_of_next_to_nothing(tmp_path: Path, found: list[Bin]) -> None:
    path = tmp_path / "reliability.svg"
    plots.reliability(path, [], found, "few")
    assert ("no predictions" in texts(path)) == (not any(one.count for one in found))


def test_a_confusion_matrix_shows_its_counts_and_labels_that_can_be_told_apart(tmp_path: Path) -> None:
    path, long = tmp_path / "confusion.svg", "a very long label that ends in the same words, as others do"
    plots.confusion(path, [[5, 0, 1], [0, 1234, 0], [0, 0, 0]], [f"1{long}", f"1{long} ", "$x_1$"], "a run")
    shown = texts(path)
    assert {"5", "1", "1,234", "true", "predicted", "a run", "$x_1$"} <= set(shown)
    named = [text for text in shown if "…" in text]
    assert len(named) == 4, "two labels, in rows and columns"
    assert len(set(named)) == 2


def test_pictures_of_a_classifier_are_drawn_where_rows_and_labels_allow(tmp_path: Path) -> None:
    names = [f"label {n}" for n in range(31)]
    many = classification_metrics(np.eye(31)[[0] * 300], [0] * 300, names)
    few = classification_metrics(np.eye(2)[[0] * 299], [0] * 299, ["a", "b"])
    curve, matrix = tmp_path / "reliability.png", tmp_path / "confusion.png"
    plots.save_classification(curve, matrix, many, "t")
    assert [file.name for file in tmp_path.iterdir()] == ["reliability.png"]
    plots.save_classification(curve, matrix, few, "t")
    assert [file.name for file in tmp_path.iterdir()] == ["confusion.png"]


def test_the_same_numbers_give_the_same_file_whatever_the_users_settings(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    plots.curves(first, [run("a", 30, 3), run("b", 20, 2)], "t")
    theirs: dict[Any, Any] = {"axes.facecolor": "black", "font.size": 30.0, "svg.hashsalt": None, "text.usetex": True}
    with matplotlib.rc_context(theirs):
        plots.curves(second, [run("a", 30, 3), run("b", 20, 2)], "t")
        assert {key: matplotlib.rcParams[key] for key in theirs} == theirs, "the user's settings stay"
    assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()


def test_a_picture_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    path.write_text("before")
    with pytest.raises(TypeError):
        plots.curves(path, [Curves("a", [(1, "no number")], [])], "")  # type: ignore[list-item]
    assert path.read_text() == "before"
    plots.curves(path, [run("a", 3, 1)], "")
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["curves.png"]


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("curves.jpg", "curves.jpg: a picture's name must end in one of .png, .svg"),
        ("curves", "curves: a picture's name must end in one of .png, .svg"),
        ("nowhere/curves.png", "nowhere/curves.png: cannot be written: No such file or directory"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, name: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        plots.curves(tmp_path / name, [run("a", 3, 1)], "")
    assert str(error.value) == f"{tmp_path}/{sentence}"


def test_no_runs_are_no_picture(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to draw; give at least one"):
        plots.curves(tmp_path / "a.png", [], "")


def test_matplotlib_is_loaded_late_and_its_global_figures_never() -> None:
    code = """if True:
        import sys, pathlib, tempfile
        from qkv import plots
        assert "matplotlib" not in sys.modules
        with tempfile.TemporaryDirectory() as folder:
            plots.curves(pathlib.Path(folder) / "a.png", [plots.Curves("a", [(1, 1.0)], [])], "")
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)
