"""`qkv train` and `eval`: what is shown while they work and when they are done."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from qkv import draw, pictures
from qkv.api import training
from qkv.config import Recipe
from qkv.learn.finish import finish
from qkv.learn.metrics import Figures, Findings, Scores
from qkv.learn.session import Session
from qkv.learn.train import Report
from qkv.run import Run

SECONDS_BETWEEN_LINES = 10  # where there is no terminal
SAID = {  # figures of an evaluation that are shown while a model learns
    "accuracy": "accuracy",
    "word_accuracy": "words",
    "perplexity": "perplexity",
    "bits_per_byte": "bits per byte",
    "next_accuracy": "next sentence",
    "pearson": "correlation",
}


class Stop:
    """Ctrl-C or SIGTERM: stop after the step that is being made. A second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self.by: int | None = None

    def __call__(self) -> bool:
        return self.by is not None

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.by is not None:
            raise KeyboardInterrupt
        self.by = number

    @contextmanager
    def listening(self) -> Iterator[None]:
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(kind, self._note) for kind in kinds]
        try:
            yield
        finally:
            for kind, handler in zip(kinds, before, strict=True):
                signal.signal(kind, handler)


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def train(recipe: Recipe, output: Path) -> tuple[int, Findings | None]:
    """Train in a folder, or go on there. The exit code, and what was found about the finished model."""
    with training(recipe, output, say) as session:
        _introduce(session)
        stop = Stop()
        with stop.listening():
            _follow(session, stop)
        if stop.by is not None and not session.learner.progress.finished:
            step = session.learner.progress.step
            say(f"stopped safely at step {step:,}; the same command goes on from there")
            return 128 + stop.by, None
        findings = finish(session)
        save_curves([session.run], session.run.path / "curves.png")
    return 0, findings


def _introduce(session: Session) -> None:
    learner, counts = session.learner, session.prepared.counts
    rows = ", ".join(f"{sum(labels.values()):,} {part}" for part, labels in counts.items())
    weights = sum(weight.numel() for weight in learner.model.parameters())
    labels = f"; labels {', '.join(session.prepared.labels[:10])}" if session.prepared.labels else ""
    kind = {"fill": "documents", "complete": "documents", "translate": "pairs"}.get(session.recipe.task, "rows")
    say(f"{session.recipe.data.corpus}: {rows} {kind}{labels}")
    threads = session.recipe.runtime.threads
    say(f"{weights:,} weights, {learner.steps:,} steps on {threads} threads, in {session.run.path}")
    for note in session.notes:
        say(f"note: {note}")
    if learner.progress.finished:
        say(f"this run was finished before, at step {session.resumed_at:,}")
    elif session.resumed_at:
        say(f"going on from step {session.resumed_at:,}")


def _follow(session: Session, stop: Stop) -> None:
    """Show reports as they come: a live bar on a terminal, else a line every ten seconds and at each evaluation."""
    if not sys.stderr.isatty():
        last = 0.0
        for report in session.reports(stop):
            if report.line and (report.evaluation or time.monotonic() - last > SECONDS_BETWEEN_LINES):
                last = time.monotonic()
                say(_plain(report))
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console, start = Console(stderr=True), session.learner.progress.step
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("training", total=session.learner.steps, completed=start, facts="")
        for report in session.reports(stop):
            if report.line:
                facts = f"loss {report.line['loss']:.3f}  {report.line['tokens_per_second']:,.0f} tokens/s"
                bar.update(task, completed=report.step, facts=facts)
            if report.evaluation:
                bar.console.print(_plain(report), highlight=False)


def _plain(report: Report) -> str:
    line = report.line or {}
    said = f"step {report.step:,}/{report.steps:,}  loss {line['loss']:.4f}  {line['tokens_per_second']:,.0f} tokens/s"
    if report.evaluation is None:
        rate = line["seconds"] / report.step
        return f"{said}  about {rate * (report.steps - report.step):,.0f} s left"
    found = report.evaluation
    best = "  best so far" if report.is_best else ""
    figures = ", ".join(f"{SAID[name]} {value:.4f}" for name, value in found.figures.items() if name in SAID)
    return f"{said}  validation: {figures}, loss {found.loss:.4f}{best}"


def show_findings(console: Console, findings: Findings, *, details: bool = True) -> None:
    """Figures of an evaluation, as tables."""
    whole = findings["all"]
    if isinstance(whole, Figures):
        table = Table("figure", "value", box=None, padding=(0, 1))
        for name, value in whole.values.items():
            table.add_row(name.replace("_", " "), f"{value:.4f}")
        for name, words in whole.said.items():
            table.add_row(name.replace("_", " "), words)
        console.print(f"on {whole.rows:,} held-out {whole.what}")
        console.print(table)
        return
    _show_scores(console, {name: s for name, s in findings.items() if isinstance(s, Scores)}, details=details)


def _show_scores(console: Console, scores: dict[str, Scores], *, details: bool) -> None:
    table = Table(box=None, padding=(0, 1))
    for name in ("rows", "count", "accuracy", "95% interval", "macro F1", "loss", "calibration error"):
        table.add_column(name, justify="left" if name == "rows" else "right", no_wrap=True)
    for group, s in scores.items():
        interval = f"{s.interval[0]:.4f} to {s.interval[1]:.4f}"
        figures = (f"{s.accuracy:.4f}", interval, f"{s.f1:.4f}", f"{s.loss:.4f}", f"{s.ece:.4f}")
        table.add_row(escape(group), f"{s.rows:,}", *figures)
    console.print(table)
    if not details:
        return
    found = scores["all"]
    if len(found.labels) <= 20:
        console.print("\n[bold]What it said (columns) about what is so (rows)")
        console.print(_confusion(found))
    console.print("\n[bold]How sure it was, and how often it was right")
    console.print(draw.reliability_table(found.bins))


def _confusion(scores: Scores) -> Table:
    table = Table(box=None, padding=(0, 1))
    table.add_column("")
    for label in scores.labels:
        table.add_column(escape(label), justify="right")
    for label, counts in zip(scores.labels, scores.confusion, strict=True):
        table.add_row(escape(label), *(f"{count:,}" for count in counts))
    return table


def findings_as_json(findings: Findings) -> str:
    """One object: the figures of all rows, and by group where there are groups."""
    groups = {name: found.to_json() for name, found in findings.items() if name != "all"}
    return json.dumps({**findings["all"].to_json(), **({"groups": groups} if groups else {})})


def save_curves(runs: Sequence[Run], path: Path) -> None:
    drawn = [curve for run in runs for curve in _curves(run)]
    titles = dict.fromkeys(title for title, _ in drawn)
    pictures.curves(path, [curve for _, curve in drawn], "Loss and accuracy", right=", ".join(titles))


def _curves(run: Run) -> Iterator[tuple[str, pictures.Curves]]:
    """What is drawn of a run, and what its right half shows: one curve, or one for each part of its loss."""
    lines, best, name = run.metrics(), run.facts().get("step"), run.path.name
    for title, part, quality, suffix in (
        ("validation accuracy", "", "accuracy", ""),
        ("correlation", "", "pearson", ""),
        ("share of words guessed, of pairs judged", "word_", "word_accuracy", ": words"),
        ("share of words guessed, of pairs judged", "next_", "next_accuracy", ": next sentence"),
        ("share of next words guessed", "", "word_accuracy", ""),
    ):
        judged = [line for line in lines if f"validation_{quality}" in line and f"validation_{part}loss" in line]
        if judged and not (part == "" and "validation_word_loss" in judged[0]):
            yield (
                title,
                pictures.Curves(
                    name=name + suffix,
                    train=[(line["step"], line[f"{part}loss"]) for line in lines if f"{part}loss" in line],
                    validation=[(n["step"], n[f"validation_{part}loss"], n[f"validation_{quality}"]) for n in judged],
                    best_step=best,
                ),
            )
    if not any("validation_loss" in line for line in lines):
        yield "validation accuracy", pictures.Curves(name, [(line["step"], line["loss"]) for line in lines], [], best)
