"""`qkv lab`: the textbook's claims, measured. Progress goes to stderr, verdicts and numbers to stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qkv import labs
from qkv.cli.console import SECONDS_BETWEEN_LINES, AsJson, stdout
from qkv.schema import UserError, nearest

if TYPE_CHECKING:
    from qkv.labs.lab import Finding, Lab, Result
    from qkv.labs.runner import Step


def lab(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME ...] [RUN]", help="Labs, and a model of yours for labs that can use one."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write a report page, .html.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="More seeds and larger sizes; resumes when interrupted.")
    ] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Ask you to predict the outcome first.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure the textbook's claims on the real model: `qkv lab list`, `qkv lab NAME`, or all of them."""
    if names == ["list"]:
        list_labs(stdout())
        return
    chosen, run = choose(names or [])
    show_labs(stdout(), chosen, run, full=full, ask=ask, as_json=as_json, output=output)


def choose(words: list[str]) -> tuple[list[str], Path | None]:
    """Which labs, and the user's own model if one was named.

    A word that is not the name of a lab must be a model.
    """
    from qkv.hub import models, path_of
    from qkv.predict.predictor import load_predictor

    names = [name for name in labs.NAMES if name in words]
    others = [word for word in words if word not in labs.NAMES]
    if len(others) > 1:
        raise UserError(f"{others[1]}: only one model at a time; {others[0]} was given before")
    if not others:
        return names or list(labs.NAMES), None
    run = path_of(others[0])
    if others[0] not in models() and not run.is_dir():
        raise UserError(f"{others[0]}: neither a lab ({nearest(others[0], labs.NAMES)}) nor a model")
    family = load_predictor(run).config.family
    fitting = [name for name in labs.NAMES if family in labs.load(name).looks_at]
    wrong = [name for name in names if name not in fitting]
    if wrong:
        raise UserError(f"lab {wrong[0]}: cannot use this model; for this family ({family}), {', '.join(fitting)} can")
    return names or fitting, run


def list_labs(console: Console) -> None:
    table = Table(box=None, padding=(0, 1))
    for name in ("lab", "question", "claims", "can use a RUN"):
        table.add_column(name, justify="right" if name == "claims" else "left")
    for name in labs.NAMES:
        lab = labs.load(name)
        table.add_row(name, escape(lab.question), str(len(lab.claims)), ", ".join(lab.looks_at))
    console.print(table)


def show_labs(
    console: Console, names: list[str], run: Path | None, *, full: bool, ask: bool, as_json: bool, output: Path | None
) -> None:
    """Run labs, and show each as soon as it is done."""
    from qkv import runtime
    from qkv.corpus.catalog import cache_folder

    if output is not None:
        _check(output)
    runtime.start(1)
    folder, results = cache_folder() / "labs" if full else None, list["Result"]()
    for group in [[name] for name in names] if ask else [names]:  # each question is asked before its lab runs
        guesses = _asked(console, labs.load(group[0])) if ask else None
        for result in _measured(group, full=full, run=run, folder=folder):
            results.append(result)
            if as_json:
                print(json.dumps({**result.as_dict(), **_where()}), flush=True)
            else:
                _show(console, result, guesses)
    if output is not None:
        _write(output, sorted(results, key=lambda result: names.index(result.lab.name)), full=full)


def _check(output: Path) -> None:
    """Whether a page can be written there: an error should come before the measurement."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{output}: a report must end in .html")
    if output.is_dir():
        raise UserError(f"{output}: is a folder; give a file name")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output}: cannot create its folder: {error.strerror}") from None
    if not os.access(output.parent, os.W_OK):
        raise UserError(f"{output}: its folder is not writable")


def _measured(names: list[str], *, full: bool, run: Path | None, folder: Path | None) -> Iterator[Result]:
    """Results as they come, with progress between them."""
    from concurrent.futures.process import BrokenProcessPool

    from qkv.labs.runner import run_labs

    progress = ProgressBar() if sys.stderr.isatty() else ProgressLines()
    results = run_labs(names, full=full, run=run, folder=folder, report=progress.show)
    while True:
        with progress:
            try:
                result = next(results, None)
            except BrokenProcessPool:
                print("error: a worker process was killed; is there enough memory?", file=sys.stderr)
                raise SystemExit(1) from None
        if result is None:
            return
        yield result


def _where() -> dict[str, str]:
    """Date and machine of a measurement."""
    from qkv import runtime

    found = runtime.fingerprint()
    machine = f"{runtime.usable_cores()} cores, {found['machine']} {found['cpu_features']}, torch {found['torch']}"
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}


def _write(output: Path, results: list[Result], *, full: bool) -> None:
    from qkv.disk import replace_file
    from qkv.labs.report import page, picture

    size = "full size" if full else "quick size"
    about = f"Measured on this machine on {datetime.now(UTC):%Y-%m-%d}, {size}, with the training code of qkv."
    try:
        replace_file(output, page(results, "The Transformer, measured", about).encode())
        for result in results:
            for kind in ("png", "svg"):
                replace_file(output.with_name(f"{output.stem}-{result.lab.name}.{kind}"), picture(result, kind))
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}") from None
    print(f"report: {output}, with its pictures beside it", file=sys.stderr)


def _asked(console: Console, lab: Lab) -> list[bool]:
    """Let the user predict, before anything runs, which claims are true."""
    if not sys.stdin.isatty():
        raise UserError("--ask needs an interactive terminal")
    console.print(f"\n[bold]{escape(lab.question)}[/bold]\nTrue or false? Answer first, then it is measured.")
    guesses = []
    for claim in lab.claims:
        while (answer := console.input(f"  {escape(claim.sentence)} \\[t/f] ").strip().lower()[:1]) not in ("t", "f"):
            console.print("  t for true, f for false")
        guesses.append(answer == "t")
    return guesses


def _show(console: Console, result: Result, guesses: list[bool] | None) -> None:
    from qkv.labs import published
    from qkv.labs.report import SIGNS

    lab = result.lab
    console.rule(f"[bold]{lab.name}[/bold]  {SIGNS[result.verdict]} {result.verdict}", align="left")
    console.print(f"{escape(lab.question)}\n[bold]{escape(result.answer)}[/bold]")
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name in ("", "claim", "measured", "rule", *(("your answer",) if guesses else ())):
        table.add_column(name, no_wrap=name in ("", "measured", "rule"))
    for number, finding in enumerate(result.findings):
        claim = finding.claim
        sentence = f"erratum: “{claim.sentence}” {claim.correction}" if claim.erratum else claim.sentence
        row = [SIGNS[finding.decision], escape(sentence), str(finding), str(claim.rule)]
        if guesses:
            row.append(grade(finding, guesses[number]))
        table.add_row(*row)
    console.print(table)
    console.print(f"[dim]published: {escape(published.sentence(lab.name))}[/dim]")
    console.print(f"[dim]try: {escape(lab.tries[0])}    read: src/qkv/{lab.read[0]}[/dim]\n")


def grade(finding: Finding, guess: bool) -> str:
    """Whether a guess was right. What was not decided is not graded."""
    from qkv.labs.lab import FAILS, HOLDS

    if finding.decision not in (HOLDS, FAILS):
        return "not decided"
    return "right" if guess == ((finding.decision == HOLDS) != finding.claim.erratum) else "wrong"


class ProgressLines:
    """Progress as plain lines."""

    def __init__(self) -> None:
        self.last = 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def show(self, step: Step) -> None:
        if time.monotonic() - self.last > SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            print(f"{step.done} of {step.total} measured; {step.lab}: {step.what}", file=sys.stderr, flush=True)


class ProgressBar:
    """Progress as a live bar."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> None:
        self.bar.start()

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def show(self, step: Step) -> None:
        self.bar.update(self.task, description=f"{step.lab}: {step.what}", completed=step.done, total=step.total)
