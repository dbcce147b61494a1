"""`qkv eval`: metrics of a model on its test set, or on other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qkv.cli.console import AsJson, plain_table, say, stdout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.calibration import Bin
    from qkv.metrics import ClassificationMetrics, TestMetrics


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run; or a Hugging Face folder, with --data.")],
    data: Annotated[
        str | None, typer.Option(metavar="FILE", help="Evaluate on this data instead of the run's own test set.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PICTURE", help="Reliability diagram; default RUN/reliability.png."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model: accuracy, F1, calibration, confusion matrix; perplexity; BLEU; correlation."""
    from qkv import api, plots
    from qkv.metrics import ClassificationMetrics
    from qkv.run.folder import Run

    if output is not None:
        plots.check_picture(output)
    found = api.evaluate(run, data, say)
    if as_json:
        print(metrics_as_json(found))
    else:
        show_metrics(stdout(), found)
    whole = found["all"]
    picture = output or (run / "reliability.png" if Run(run).begun and data is None else None)
    if picture is not None and isinstance(whole, ClassificationMetrics):
        plots.reliability(picture, whole.raw_bins, whole.bins, run.name)
        say(f"reliability diagram: {picture}")


def show_metrics(console: Console, found: TestMetrics, *, details: bool = True) -> None:
    """Metrics as tables."""
    from qkv.metrics import ClassificationMetrics, Metrics

    whole = found["all"]
    if isinstance(whole, Metrics):
        table = plain_table(metric="left", value="left")
        for name, value in whole.values.items():
            table.add_row(name.replace("_", " "), f"{value:.4f}")
        for name, words in whole.details.items():
            table.add_row(name.replace("_", " "), words)
        console.print(f"on {whole.rows:,} test {whole.unit}")
        console.print(table)
        return
    groups = {name: one for name, one in found.items() if isinstance(one, ClassificationMetrics)}
    _show_classification(console, groups, details=details)


def _show_classification(console: Console, groups: dict[str, ClassificationMetrics], *, details: bool) -> None:
    table = plain_table(rows="left", count="right", accuracy="right")
    for name in ("95% interval", "macro F1", "loss", "ECE"):
        table.add_column(name, justify="right", no_wrap=True)
    for group, one in groups.items():
        interval = f"{one.interval[0]:.4f} to {one.interval[1]:.4f}"
        values = (f"{one.accuracy:.4f}", interval, f"{one.f1:.4f}", f"{one.loss:.4f}", f"{one.ece:.4f}")
        table.add_row(escape(group), f"{one.rows:,}", *values)
    console.print(table)
    if not details:
        return
    whole = groups["all"]
    if len(whole.labels) <= 20:
        console.print("\n[bold]Confusion matrix (rows: true, columns: predicted)")
        console.print(_confusion(whole))
    console.print("\n[bold]Calibration (ECE: expected calibration error)")
    console.print(reliability_table(whole.bins))


def _confusion(found: ClassificationMetrics) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("")
    for label in found.labels:
        table.add_column(escape(label), justify="right")
    for label, counts in zip(found.labels, found.confusion, strict=True):
        table.add_row(escape(label), *(f"{count:,}" for count in counts))
    return table


def reliability_table(bins: Sequence[Bin]) -> Table:
    """Confidence against accuracy, by bin."""
    table = plain_table(confidence="right", predictions="right", mean="right", accuracy="right", gap="right")
    table.add_column("", no_wrap=True)
    for one in bins:
        if one.count:
            gap = one.accuracy - one.confidence
            verdict = "overconfident" if gap <= -0.05 else "underconfident" if gap >= 0.05 else ""
            span = f"{one.low:.2f} to {one.high:.2f}"
            values = (f"{one.confidence:.3f}", f"{one.accuracy:.3f}", f"{gap:+.3f}")
            table.add_row(span, f"{one.count:,}", *values, verdict)
    return table


def metrics_as_json(found: TestMetrics) -> str:
    """One object: the metrics of all rows, and by group where there are groups."""
    groups = {name: one.to_json() for name, one in found.items() if name != "all"}
    return json.dumps({**found["all"].to_json(), **({"groups": groups} if groups else {})})
