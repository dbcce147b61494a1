"""Pictures by matplotlib: learning curves, reliability diagrams and confusion matrices.

Colours are those of Okabe and Ito (2008), which the colour-blind tell apart; dashes and marks do so without any colour.
The same numbers give the same SVG, byte for byte. Drawings for a terminal are in `terminal`.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qkv.calibration import Bin, ece
from qkv.disk import replace_file
from qkv.metrics import ClassificationMetrics, ValidationMetric
from qkv.schema import UserError, listed
from qkv.terminal import distinguishable, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

FORMATS = (".png", ".svg")
BLUE, SKY, RED, BLACK = "#0072B2", "#56B4E9", "#D55E00", "#000000"
PALE = "#A9D8F4"  # SKY thinned with white: lines and hatching stay clear on it, in grey print too
COLOURS = (BLUE, RED, "#009E73", "#CC79A7", "#E69F00", SKY, BLACK)
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))  # with seven colours: 42 different runs
MARKS = ("o", "s", "^", "D", "v", "P", "X")
MOST_POINTS, MOST_MARKS = 1000, 12  # of one curve
LONGEST_NAME, LONGEST_TITLE, LONGEST_LABEL = 48, 90, 24
MOST_LABELS = 30  # of a confusion matrix that one can still read
STYLE = {
    "font.family": "DejaVu Sans", "font.size": 11, "axes.titlesize": 12, "text.parse_math": False,
    "axes.grid": True, "grid.color": "#dddddd", "axes.axisbelow": True, "axes.spines.top": False,
    "axes.spines.right": False, "hatch.linewidth": 0.8, "svg.hashsalt": "qkv", "savefig.dpi": 120,
}  # fmt: skip


@dataclass(frozen=True)
class Curves:
    """What one training reported, steps rising. Numbers that are not finite are left out of the picture."""

    name: str
    train: Sequence[tuple[int, float]]  # step, loss
    validation: Sequence[tuple[int, float, float]]  # step, loss, metric
    kept_step: int | None = None


def curves(path: Path, runs: Sequence[Curves], title: str, left: str = "loss in nats", right: str = "accuracy") -> None:
    """The loss and a validation metric over steps, of one run or several, as PNG or SVG by the suffix of the path.
    `left` and `right` name what is drawn there."""
    if not runs:
        raise UserError(f"{path}: no run to draw; give at least one")
    with _figure(path, title, 10.0, 4.4 + 0.25 * len(runs)) as figure:
        losses, metrics = figure.subplots(1, 2)
        losses.set_title(_shown(left + ": training thin, validation marked" * _validated(runs), LONGEST_TITLE))
        metrics.set_title(_shown(f"validation {right}", LONGEST_TITLE))
        faint = 0.55 if len(runs) <= 3 else 0.25
        lines = [_draw_run(losses, metrics, run, number, faint) for number, run in enumerate(runs)]
        for axes in (losses, metrics):
            _over_steps(axes, max((point[0] for run in runs for point in (*run.train, *run.validation)), default=1))
        if not any(math.isfinite(point[1]) for run in runs for point in (*run.train, *run.validation)):
            _say(losses, "no loss yet")
            losses.set_ylim(0, 1)
        _fit_metrics(metrics, runs)
        figure.legend(lines, [_entry(run) for run in runs], loc="outside lower center", frameon=False)


@dataclass(frozen=True)
class History:
    """What learning curves are drawn from: metrics.jsonl of a run, and what its task measures."""

    name: str
    lines: Sequence[Mapping[str, Any]]
    kept_step: int | None  # of the model that is kept
    metrics: Sequence[ValidationMetric]
    loss_name: str


def save_curves(path: Path, runs: Sequence[History]) -> None:
    """Learning curves of some runs: one curve each, or one for each part of the loss."""
    drawn = [found for run in runs for found in _curves_of(run)]
    losses, metrics = dict.fromkeys(run.loss_name for run in runs), dict.fromkeys(title for title, _ in drawn)
    curves(path, [curve for _, curve in drawn], "Learning curves", ", ".join(losses), ", ".join(metrics))


def _curves_of(run: History) -> Iterator[tuple[str, Curves]]:
    """A curve for each metric that has one. `token_accuracy` goes with `token_loss` where the loss has such a part."""
    columns = {column for line in run.lines for column in line}
    shown = [metric for metric in run.metrics if metric.curve and f"validation_{metric.name}" in columns]
    for metric in shown:
        part = metric.name.removesuffix("accuracy")
        loss = f"{part}loss" if f"validation_{part}loss" in columns else "loss"
        train = [(line["step"], line[loss]) for line in run.lines if loss in line]
        wanted = (f"validation_{loss}", f"validation_{metric.name}")
        points = [(line["step"], *(line[name] for name in wanted)) for line in run.lines if line.keys() >= {*wanted}]
        name = f"{run.name}: {metric.title}" if len(shown) > 1 else run.name
        yield metric.title, Curves(name, train, points, run.kept_step)
    if not shown:
        title = run.metrics[0].title
        yield title, Curves(run.name, [(line["step"], line["loss"]) for line in run.lines], [], run.kept_step)


def reliability(path: Path, bins_before: Sequence[Bin] | None, bins_after: Sequence[Bin], title: str) -> None:
    """Reliability diagram: accuracy against confidence, the gap hatched, and below it the number of predictions.

    With `bins_before`, that of before calibration is drawn too. As PNG or SVG by the suffix of the path.
    """
    every = [*(bins_before or ()), *bins_after]
    start = min((one.low for one in every if one.count and one.low < 0.5), default=0.5)  # two labels: 0.5 to 1
    with _figure(path, title, 7.0, 7.4) as figure:
        top, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        top.plot([start, 1], [start, 1], color=BLACK, linestyle=":", label="perfectly calibrated", zorder=3)
        if any(one.count for one in every):
            _draw_bins(top, below, [one for one in bins_after if one.count], "" if bins_before is None else "after: ")
            if bins_before is not None:
                _draw_before(top, below, bins_before)
        else:
            _say(below, "no predictions")
            below.set_ylim(0, 1)
        top.set_ylabel("accuracy")
        top.set_ylim(0, 1.02)
        below.set_ylabel("predictions")
        below.set_xlabel("confidence: probability of the predicted class")
        below.set_xlim(start, 1.0)
        _whole_numbers(below.yaxis)
        figure.legend(*top.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)


def save_classification(curve: Path, matrix: Path, found: ClassificationMetrics, title: str) -> None:
    """The reliability diagram and the confusion matrix of a classifier, as far as its rows and labels allow; a picture
    that they do not allow, from an earlier test, is removed."""
    if found.shows_calibration:
        reliability(curve, found.raw_bins, found.bins, title)
    else:
        curve.unlink(missing_ok=True)
    if len(found.labels) <= MOST_LABELS:
        confusion(matrix, found.confusion, found.labels, title)
    else:
        matrix.unlink(missing_ok=True)


def confusion(path: Path, counts: Sequence[Sequence[int]], labels: Sequence[str], title: str) -> None:
    """Confusion matrix: rows are true labels, columns predicted ones. The darker a cell, the larger its share of the
    row; the number of rows is written into it. One colour from light to dark, so that no colour need be told apart."""
    size = 3.2 + 0.42 * len(labels)
    names = distinguishable([_shown(label, 10**6) for label in labels], LONGEST_LABEL)
    with _figure(path, title, size + 0.8, size) as figure:
        axes = figure.subplots()
        shares = [[count / max(1, sum(row)) for count in row] for row in counts]
        axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        for y, row in enumerate(counts):
            for x, count in enumerate(row):
                colour = "white" if shares[y][x] > 0.5 else BLACK
                axes.text(x, y, f"{count:,}" if count else "", ha="center", va="center", color=colour, fontsize=8)
        axes.grid(visible=False)
        axes.set_xticks(range(len(labels)), names, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(labels)), names)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")


def _draw_run(left: Axes, right: Axes, run: Curves, number: int, faint: float) -> Line2D:
    """Draw one run on both panels; its line in the legend."""
    colour, dash, mark = (row[number % len(row)] for row in (COLOURS, DASHES, MARKS))
    train = _thinned([point for point in run.train if math.isfinite(point[1])])
    left.plot(
        [step for step, _ in train], [loss for _, loss in train], color=colour, linewidth=0.8, alpha=faint,
        marker="." if len(train) < 4 else "", zorder=1.5,
    )  # fmt: skip
    losses = [(step, loss) for step, loss, _ in run.validation if math.isfinite(loss)]
    values = [(step, value) for step, _, value in run.validation if math.isfinite(value)]
    for axes, points in ((left, losses), (right, values)):
        (line,) = axes.plot(
            [step for step, _ in points], [value for _, value in points], color=colour, linewidth=1.8, linestyle=dash,
            marker=mark, markersize=5, markevery=max(1, math.ceil(len(points) / MOST_MARKS)), zorder=2.5,
        )  # fmt: skip
        ringed = [point for point in points if point[0] == run.kept_step]
        axes.plot(*zip(*ringed, strict=True), color=colour, marker="o", markersize=12, fillstyle="none", linestyle="")
    return line


def _entry(run: Curves) -> str:
    """A run in the legend. A zero-width space goes first: matplotlib hides what begins with an underscore."""
    kept = [value for step, _, value in run.validation if step == run.kept_step and math.isfinite(value)]
    said = f", kept step {run.kept_step:,}: {kept[0]:.4f}" if kept else ""
    return "\u200b" + _shown(run.name, LONGEST_NAME) + said


def _fit_metrics(axes: Axes, runs: Sequence[Curves]) -> None:
    """An axis as long as the values differ, though at least 0.1: a few rows more or less are no cliff."""
    values = [value for run in runs for _, _, value in run.validation if math.isfinite(value)]
    if not values:
        _say(axes, "no validation yet")
        axes.set_ylim(0, 1)
        return
    low, high = min(values), max(values)
    room = max(0.08 * (high - low), 0.05 - (high - low) / 2)
    axes.set_ylim(low - room if low < 0 else max(-0.01, low - room), min(1.01, high + room))


def _over_steps(axes: Axes, last: float) -> None:
    axes.set_xlabel("step")
    axes.set_xlim(0, max(last, 1) * 1.03)
    _whole_numbers(axes.xaxis)


def _draw_bins(top: Axes, below: Axes, bins: Sequence[Bin], when: str) -> None:
    lows, widths = [one.low for one in bins], [one.high - one.low for one in bins]
    rates, gaps = [one.accuracy for one in bins], [one.confidence - one.accuracy for one in bins]
    top.bar(lows, rates, widths, align="edge", color=PALE, edgecolor="white", label=f"{when}accuracy")
    top.bar(
        lows, gaps, widths, rates, align="edge", facecolor=(1, 1, 1, 0), edgecolor=BLACK, hatch="///", linewidth=0.8,
        label=f"{when}gap to confidence, ECE {ece(bins):.3f}",
    )  # fmt: skip
    below.bar(lows, [one.count for one in bins], widths, align="edge", color=PALE, edgecolor="white")


def _draw_before(top: Axes, below: Axes, bins: Sequence[Bin]) -> None:
    full = [one for one in bins if one.count]
    top.plot(
        [one.confidence for one in full], [one.accuracy for one in full], color=RED, linestyle="--", marker="s",
        markersize=5, label=f"before: accuracy, ECE {ece(bins):.3f}", zorder=4,
    )  # fmt: skip
    if bins:
        edges = [bins[0].low, *(one.high for one in bins)]
        below.stairs([one.count for one in bins], edges, color=RED, linestyle="--", linewidth=1.5)


def _validated(runs: Sequence[Curves]) -> bool:
    return any(run.validation for run in runs)


def _thinned(points: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """At most MOST_POINTS points: means of neighbours, which is all that the eye sees of more."""
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), max(1, size))]
    return [(sum(s for s, _ in group) / len(group), sum(v for _, v in group) / len(group)) for group in groups]


def _say(axes: Axes, sentence: str) -> None:
    axes.text(0.5, 0.5, sentence, transform=axes.transAxes, ha="center", va="center", color="#555555")


def _whole_numbers(axis: Axis) -> None:
    """Ticks at whole numbers, written 10,000."""
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _shown(text: str, longest: int) -> str:
    """One line of what the font can draw. A long name loses its middle: names of runs differ at their ends."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    glyphs = get_font(findfont(FontProperties(family="DejaVu Sans")))
    line = "".join(sign if glyphs.get_char_index(ord(sign)) else "\ufffd" for sign in " ".join(text.split()))
    return shortened(line, longest)


def check_picture(path: Path) -> None:
    """Whether a picture can have this name: asked before the work whose result it shows."""
    if path.suffix.lower() not in FORMATS:
        raise UserError(f"{path}: a picture's name must end in one of {listed(FORMATS)}")


@contextmanager
def _figure(path: Path, title: str, width: float, height: float) -> Iterator[Figure]:
    """A figure to draw on, which is in its file when the block ends: all of it or nothing."""
    check_picture(path)
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]):  # whatever the user's own settings are, and they stay
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.suptitle(_shown(title, LONGEST_TITLE), fontsize=13)
        yield figure
        drawn, kind = io.BytesIO(), path.suffix.lower()[1:]
        figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else {})
    try:
        replace_file(path, drawn.getvalue())
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
