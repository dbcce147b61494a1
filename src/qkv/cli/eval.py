"""`qkv eval`: metrics of a model on its test set, or on other data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qkv.cli.console import AsJson, RowProgress, plain_table, say, stdout
from qkv.schema import UserError
from qkv.terminal import distinguishable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qkv.calibration import Bin
    from qkv.explain.errors import WrongRows
    from qkv.metrics import ClassificationMetrics, TestMetrics

MOST_CLASSES, MOST_LABELS = 100, 20  # in the table of classes, and in the confusion matrix
LONGEST_LABEL, LONGEST_HEADER, MOST_HEADERS = 36, 12, 7


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run; or a Hugging Face folder, with --data.")],
    data: Annotated[
        str | None, typer.Option(metavar="FILE", help="Evaluate on this data instead of the run's own test set.")
    ] = None,
    text: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the texts in --data.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the second texts.")] = None,
    label: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the labels or numbers.")] = None,
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the translations.")] = None,
    errors: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE",
            help="Write the wrong rows, most confident first: .csv, .tsv, .jsonl or .parquet.",
        ),
    ] = None,
    words: Annotated[int, typer.Option(min=0, help="Number of wrong rows that get their deciding words.")] = 50,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PICTURE", help="Reliability diagram; default RUN/reliability.png."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model: accuracy, F1, calibration, confusion matrix; perplexity; BLEU; correlation."""
    from qkv import api, plots
    from qkv.corpus.table_writer import check_written
    from qkv.explain.errors import WrongRows
    from qkv.metrics import ClassificationMetrics
    from qkv.run.folder import RELIABILITY, Run

    if output is not None:
        plots.check_picture(output)
    if errors is not None:
        check_written(errors)
        if not errors.absolute().parent.is_dir():
            raise UserError(f"--errors {errors}: there is no folder {errors.parent}")
    named = {"text": text, "pair": pair, "label": label, "target": target}
    columns = {name: column for name, column in named.items() if column is not None}
    wrong = WrongRows() if errors is not None else None
    found = api.evaluate(run, data, say, columns=columns, keep=wrong.keep if wrong else None)
    if as_json:
        print(metrics_as_json(found))
    else:
        show_metrics(stdout(), found, rows="test" if data is None else "given")
    if errors is not None and wrong is not None:
        _write_errors(run, errors, wrong, words)
    whole = found["all"]
    picture = output or (run / RELIABILITY if Run(run).begun and data is None else None)
    if picture is None or not isinstance(whole, ClassificationMetrics):
        return
    if whole.shows_calibration or output is not None:
        plots.reliability(picture, whole.raw_bins, whole.bins, run.name)
        say(f"reliability diagram: {picture}")


def _write_errors(run: Path, path: Path, wrong: WrongRows, words: int) -> None:
    from qkv import api
    from qkv.explain.errors import write_errors

    rows, progress = wrong.most_confident_first(), RowProgress()
    progress.start(0, len(rows))
    write_errors(path, api.load(run), rows, words, progress.update)
    progress.stop()
    doubtful = sum(one.looks_mislabelled for one in rows)
    some = f"; deciding words of the first {words:,}" if words < len(rows) else ""
    some = "; deciding words are for single texts only" if rows and rows[0].row.pair is not None else some
    say(f"{path}: {len(rows):,} wrong rows, {doubtful:,} of them look mislabelled{some}")


def show_metrics(console: Console, found: TestMetrics, *, details: bool = True, rows: str = "test") -> None:
    """Metrics as tables. `rows` says which rows they are of."""
    from qkv.metrics import ClassificationMetrics, Metrics

    whole = found["all"]
    if isinstance(whole, Metrics):
        table = plain_table(metric="left", value="left")
        for name, value in whole.values.items():
            table.add_row(name.replace("_", " "), f"{value:.4f}")
        for name, words in whole.details.items():
            table.add_row(name.replace("_", " "), words)
        console.print(f"on {whole.rows:,} {rows} {whole.unit}", markup=False)
        console.print(table)
        return
    groups = {name: one for name, one in found.items() if isinstance(one, ClassificationMetrics)}
    for sentence in groups["all"].warnings():
        console.print(f"warning: {sentence}", style="bold", markup=False, soft_wrap=True)
    console.print(_overview(groups, rows))
    if details:
        _show_details(console, groups["all"])


def _overview(groups: dict[str, ClassificationMetrics], rows: str) -> Table:
    """A line for all rows, and one for each group."""
    table = plain_table(rows="left", count="right", accuracy="right")
    for name in ("95% interval", "majority", "balanced", "macro F1", "loss", "ECE"):
        table.add_column(name, justify="right", no_wrap=True)
    for group, one in groups.items():
        interval = f"{one.interval[0]:.4f} to {one.interval[1]:.4f}"
        shares = (one.majority_share, one.balanced_accuracy, one.f1, one.loss)
        error = f"{one.ece:.4f}" if one.shows_calibration else "too few rows"
        name = f"all {rows} rows" if group == "all" else escape(group)
        table.add_row(name, f"{one.rows:,}", f"{one.accuracy:.4f}", interval, *(f"{x:.4f}" for x in shares), error)
    return table


def _show_details(console: Console, found: ClassificationMetrics) -> None:
    from qkv.calibration import FEWEST_TO_JUDGE

    if len(found.labels) <= MOST_CLASSES:
        console.print("\n[bold]By class")
        console.print(class_table(found))
    if len(found.labels) <= MOST_LABELS:
        console.print("\n[bold]Confusion matrix (rows: true, columns: predicted)")
        console.print(confusion_table(found))
    console.print("\n[bold]Calibration (ECE: expected calibration error)")
    if found.shows_calibration:
        console.print(reliability_table(found.bins))
    else:
        console.print(f"too few rows to say: {found.rows:,}, at least {FEWEST_TO_JUDGE} are needed")


def class_table(found: ClassificationMetrics) -> Table:
    """Precision, recall and F1 of each class, and how many rows have and get its label."""
    table = plain_table(label="left", rows="right", predicted="right", precision="right", recall="right", F1="right")
    for name, one in zip(distinguishable(found.labels, LONGEST_LABEL), found.classes, strict=True):
        values = (f"{value:.4f}" for value in (one.precision, one.recall, one.f1))
        table.add_row(escape(name), f"{one.rows:,}", f"{one.predicted:,}", *values)
    return table


def confusion_table(found: ClassificationMetrics) -> Table:
    """Confusion matrix. Where labels are long or many, columns have numbers, and the rows say whose they are."""
    names, table = distinguishable(found.labels, LONGEST_LABEL), Table(box=None, padding=(0, 1))
    numbers = [str(number) for number in range(1, len(names) + 1)]
    by_number = max(map(len, names)) > LONGEST_HEADER or len(names) > MOST_HEADERS
    if by_number:
        names = [f"{number} {name}" for number, name in zip(numbers, found.labels, strict=True)]
        names = distinguishable(names, LONGEST_LABEL)
    table.add_column("", no_wrap=True)
    for header in numbers if by_number else names:
        table.add_column(escape(header), justify="right", no_wrap=True)
    for name, counts in zip(names, found.confusion, strict=True):
        table.add_row(escape(name), *(f"{count:,}" for count in counts))
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
