"""Pictures show the numbers they are given, whole, on any machine the same; a name may be anything."""

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
from rich.console import Console

from qkv import metrics
from qkv import plots as pictures
from qkv import terminal as draw
from qkv.metrics import Bin
from qkv.plots import Curves
from qkv.schema import UserError

DRAWN = re.compile(r"<!-- (.*?) -->")  # matplotlib writes each text beside its outlines


def run(name: str, steps: int, evaluations: int, best: int | None = None) -> Curves:
    train = [(step, 0.7 / step + 0.2) for step in range(1, steps + 1)]
    ends = [(number + 1) * steps // evaluations for number in range(evaluations)]
    return Curves(name, train, [(end, 0.4 + 1 / end, 0.9 - 0.3 / end) for end in ends], best)


def texts(path: Path) -> list[str]:
    """All that is written in an SVG."""
    ET.parse(path)
    return [found.replace("\u200b", "") for found in DRAWN.findall(path.read_text("utf-8"))]


def bins(sharpness: float = 1.0, rows: int = 500) -> list[Bin]:
    random = np.random.default_rng(3)
    shares = metrics.softmax(random.normal(0, 2, (rows, 2)) * sharpness)
    return metrics.reliability(shares, (random.random(rows) < shares[:, 1]).astype(np.int64))


@pytest.mark.parametrize(
    ("steps", "evaluations", "suffix"),
    [(1, 1, ".svg"), (3, 3, ".PNG"), (500, 500, ".png"), (5000, 1, ".svg"), (50, 0, ".svg")],
)
def test_curves_of_any_length_are_drawn(tmp_path: Path, steps: int, evaluations: int, suffix: str) -> None:
    path = tmp_path / f"curves{suffix}"
    pictures.curves(path, [run("reviews", steps, evaluations, steps if evaluations else None)], "A title")
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "nothing is left beside it"
    if suffix == ".svg":
        written = texts(path)
        assert "A title" in written
        assert ("no evaluation yet" in written) == (evaluations == 0)
        entry = f"reviews, best at step {steps:,}: {0.9 - 0.3 / steps:.4f}" if evaluations else "reviews"
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
    """Three evaluations, evenly spaced; the second loss is halfway between the others, the accuracy a quarter."""
    path = tmp_path / "curves.svg"
    validation = [(100, 0.8, 0.5), (200, 0.6, 0.6), (300, 0.4, 0.9)]
    pictures.curves(path, [Curves("a", [(100, 1.0), (300, 0.2)], validation, best_step=300)], "")
    thin, loss, accuracy = paths(path, "#0072b2")[:3]
    assert len(thin) == 2
    for line, share in ((loss, 0.5), (accuracy, 0.25)):
        (x1, y1), (x2, y2), (x3, y3) = line
        assert x2 - x1 == pytest.approx(x3 - x2, abs=1e-3)
        assert (y2 - y1) / (y3 - y1) == pytest.approx(share, abs=1e-3)
    assert loss[2][1] > loss[0][1], "a loss that falls goes down the page"
    assert accuracy[2][1] < accuracy[0][1], "an accuracy that rises goes up"
    assert [x for x, _ in thin] == pytest.approx([loss[0][0], loss[2][0]], abs=1e-3)


def test_runs_are_told_apart_without_colour(tmp_path: Path) -> None:
    path = tmp_path / "curves.svg"
    names = [f"run {number}" for number in range(9)]
    pictures.curves(path, [run(name, 40, 4) for name in names], "Nine runs")
    assert [text for text in texts(path) if text.startswith("run ")] == names
    looks = {(pictures.DASHES[n % len(pictures.DASHES)], pictures.MARKS[n % len(pictures.MARKS)]) for n in range(42)}
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
    pictures.curves(path, [run("first", 3, 3), Curves(name, [(1, 1.0)], [])], "title " + name)
    written = path.read_text("utf-8")
    assert f"<!-- \u200b{shown} -->" in written


def test_numbers_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    path, clean = tmp_path / "curves.svg", tmp_path / "clean.svg"
    pictures.curves(
        path,
        [Curves("a", [(1, 2.0), (2, math.nan), (3, math.inf), (4, 1.0)], [(2, math.inf, math.nan), (4, 1.0, 0.5)], 2)],
        "",
    )
    pictures.curves(clean, [Curves("a", [(1, 2.0), (4, 1.0)], [(4, 1.0, 0.5)])], "")
    assert path.read_bytes() == clean.read_bytes()
    pictures.curves(path, [Curves("a", [(1, math.nan)], [])], "")
    assert {"no loss yet", "no evaluation yet"} <= set(texts(path))


def test_many_points_are_thinned_to_their_means() -> None:
    points = [(step, float(step % 2)) for step in range(10_000)]
    thinned = pictures._thinned(points)
    assert len(thinned) == 1000
    assert {value for _, value in thinned} == {0.5}
    assert thinned[0][0] == 4.5
    assert pictures._thinned(points[:7]) == points[:7]
    assert pictures._thinned([]) == []


def test_reliability_with_and_without_before(tmp_path: Path) -> None:
    both, alone = tmp_path / "both.svg", tmp_path / "alone.svg"
    pictures.reliability(both, bins(3.0), bins(), "Held-out rows")
    pictures.reliability(alone, None, bins(), "Held-out rows")
    assert f"before: right answers, ECE {metrics.ece(bins(3.0)):.3f}" in texts(both)
    assert f"after: gap to the confidence, ECE {metrics.ece(bins()):.3f}" in texts(both)
    assert f"gap to the confidence, ECE {metrics.ece(bins()):.3f}" in texts(alone)
    assert not [text for text in texts(alone) if text.startswith(("before", "after"))]
    assert "as right as sure" in texts(alone)


def test_bars_are_as_high_as_the_share_of_right_answers(tmp_path: Path) -> None:
    """Two bins, 0.5 and 0.8 right: bars of the first panel are in that proportion, those of the second in 30 : 10.
    Together they are as wide as the diagonal, which goes from 0.5 to 1."""
    path = tmp_path / "reliability.svg"
    pictures.reliability(path, None, [Bin(0.5, 0.75, 30, 0.6, 0.5), Bin(0.75, 1.0, 10, 0.9, 0.8)], "")
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


@pytest.mark.parametrize("found", [[], metrics.reliability([[0.9, 0.1]], [0]), [Bin(0.0, 1.0, 0, 0.0, 0.0)]])
def test_reliability_of_next_to_nothing(tmp_path: Path, found: list[Bin]) -> None:
    path = tmp_path / "reliability.svg"
    pictures.reliability(path, [], found, "few")
    assert ("no answers" in texts(path)) == (not any(one.count for one in found))


def test_the_same_numbers_give_the_same_file_whatever_the_users_settings(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    pictures.curves(first, [run("a", 30, 3), run("b", 20, 2)], "t")
    theirs: dict[Any, Any] = {"axes.facecolor": "black", "font.size": 30.0, "svg.hashsalt": None, "text.usetex": True}
    with matplotlib.rc_context(theirs):
        pictures.curves(second, [run("a", 30, 3), run("b", 20, 2)], "t")
        assert {key: matplotlib.rcParams[key] for key in theirs} == theirs, "the user's settings stay"
    assert first.read_bytes() == second.read_bytes()
    assert b"<dc:date>" not in first.read_bytes()


def test_a_picture_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    path.write_text("before")
    with pytest.raises(TypeError):
        pictures.curves(path, [Curves("a", [(1, "no number")], [])], "")  # type: ignore[list-item]
    assert path.read_text() == "before"
    pictures.curves(path, [run("a", 3, 1)], "")
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
        pictures.curves(tmp_path / name, [run("a", 3, 1)], "")
    assert str(error.value) == f"{tmp_path}/{sentence}"


def test_no_runs_are_no_picture(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run to draw; give at least one"):
        pictures.curves(tmp_path / "a.png", [], "")


def test_matplotlib_is_loaded_late_and_its_global_figures_never() -> None:
    code = """if True:
        import sys, pathlib, tempfile
        from qkv import plots as pictures
        assert "matplotlib" not in sys.modules
        with tempfile.TemporaryDirectory() as folder:
            pictures.curves(pathlib.Path(folder) / "a.png", [pictures.Curves("a", [(1, 1.0)], [])], "")
        assert "matplotlib.pyplot" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_table_says_where_answers_are_too_sure() -> None:
    found = [Bin(0.5, 0.6, 0, 0, 0), Bin(0.6, 0.7, 1200, 0.65, 0.58), Bin(0.7, 0.8, 7, 0.75, 0.76),
             Bin(0.8, 0.9, 1, 0.85, 1.0)]  # fmt: skip
    console = Console(width=80)
    with console.capture() as captured:
        console.print(draw.reliability_table(found))
    assert [" ".join(line.split()) for line in captured.get().splitlines()] == [
        "confidence answers sure right gap",
        "0.60 to 0.70 1,200 0.650 0.580 -0.070 too sure",
        "0.70 to 0.80 7 0.750 0.760 +0.010",
        "0.80 to 0.90 1 0.850 1.000 +0.150 too careful",
    ]
