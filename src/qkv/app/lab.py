"""`qkv lab`: the claims, measured. Progress goes to stderr, verdicts and numbers to stdout."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures.process import BrokenProcessPool
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from qkv import labs, runtime
from qkv.bundled import names as bundled_names
from qkv.bundled import path_of
from qkv.disk import replace_file
from qkv.labs import shipped
from qkv.labs.lab import Lab, Result
from qkv.labs.report import SIGNS, page, picture
from qkv.labs.running import News, run_labs
from qkv.predict import load_predictor
from qkv.schema import UserError, nearest
from qkv.text.catalog import cache_folder

SECONDS_BETWEEN_LINES = 10.0


def chosen(words: list[str]) -> tuple[list[str], Path | None]:
    """Which labs, and the user's own model if one was named: what is no lab's name must be a model's."""
    names = [name for name in labs.NAMES if name in words]
    others = [word for word in words if word not in labs.NAMES]
    if len(others) > 1:
        raise UserError(f"{others[1]}: one model at a time; {others[0]} was named before")
    if not others:
        return names or list(labs.NAMES), None
    run = path_of(others[0])
    if others[0] not in bundled_names() and not run.is_dir():
        raise UserError(f"{others[0]}: neither a lab ({nearest(others[0], labs.NAMES)}) nor the folder of a model")
    family = load_predictor(run).config.family
    takers = [name for name in labs.NAMES if family in labs.load(name).looks_at]
    wrong = [name for name in names if name not in takers]
    if wrong:
        raise UserError(
            f"lab {wrong[0]}: does not look at this model; of this family ({family}), {', '.join(takers)} do"
        )
    return names or takers, run


def list_labs(console: Console) -> None:
    table = Table(box=None, padding=(0, 1))
    for name in ("lab", "question", "claims", "looks at a RUN"):
        table.add_column(name, justify="right" if name == "claims" else "left")
    for name in labs.NAMES:
        lab = labs.load(name)
        table.add_row(name, escape(lab.question), str(len(lab.claims)), ", ".join(lab.looks_at))
    console.print(table)


def show_labs(
    console: Console, names: list[str], run: Path | None, *, full: bool, ask: bool, as_json: bool, output: Path | None
) -> None:
    """Run labs, and show each as soon as it is done."""
    if output is not None:
        _check(output)
    runtime.start(1)
    folder, results = cache_folder() / "labs" if full else None, list[Result]()
    for group in [[name] for name in names] if ask else [names]:  # who is asked, is asked before each
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
    """That a page can be written there: better said before the measuring than after it."""
    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{output}: the report is a page; its name must end in .html")
    if output.is_dir():
        raise UserError(f"{output}: is a folder; a report is a file")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{output}: its folder cannot be made: {error.strerror}") from None
    if not os.access(output.parent, os.W_OK):
        raise UserError(f"{output}: its folder cannot be written to")


def _measured(names: list[str], *, full: bool, run: Path | None, folder: Path | None) -> Iterator[Result]:
    """Results as they come, with progress between them, which is out of the way while a result is shown."""
    progress = Bar() if sys.stderr.isatty() else Lines()
    results = run_labs(names, full=full, run=run, folder=folder, tell=progress.tell)
    while True:
        with progress:
            try:
                result = next(results, None)
            except BrokenProcessPool:
                print("qkv: a process that measured was ended from outside; was there memory enough?", file=sys.stderr)
                raise SystemExit(1) from None
        if result is None:
            return
        yield result


def _where() -> dict[str, str]:
    """When and on what it was measured."""
    found = runtime.fingerprint()
    machine = f"{runtime.usable_cores()} cores, {found['machine']} {found['cpu_features']}, torch {found['torch']}"
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}


def _write(output: Path, results: list[Result], *, full: bool) -> None:
    size = "full size" if full else "quick size"
    about = f"Measured on this machine on {datetime.now(UTC):%Y-%m-%d}, {size}, by the code that trains for real."
    try:
        replace_file(output, page(results, "The Transformer, measured", about).encode())
        for result in results:
            for kind in ("png", "svg"):
                replace_file(output.with_name(f"{output.stem}-{result.lab.name}.{kind}"), picture(result, kind))
    except OSError as error:
        raise UserError(f"{output}: cannot be written: {error.strerror}") from None
    print(f"{output}: a page with all of it; the pictures lie beside it", file=sys.stderr)


def _asked(console: Console, lab: Lab) -> list[bool]:
    """Let the student say, before anything runs, which sentences are true."""
    if not sys.stdin.isatty():
        raise UserError("--ask needs a terminal to answer in")
    console.print(f"\n[bold]{escape(lab.question)}[/bold]\nTrue or false? Say what you expect; then it is measured.")
    guesses = []
    for claim in lab.claims:
        while (answer := console.input(f"  {escape(claim.sentence)} \\[t/f] ").strip().lower()[:1]) not in ("t", "f"):
            console.print("  t for true, f for false")
        guesses.append(answer == "t")
    return guesses


def _show(console: Console, result: Result, guesses: list[bool] | None) -> None:
    lab = result.lab
    console.rule(f"[bold]{lab.name}[/bold]  {SIGNS[result.verdict]} {result.verdict}", align="left")
    console.print(f"{escape(lab.question)}\n[bold]{escape(result.answer)}[/bold]")
    table = Table(box=None, padding=(0, 1), show_edge=False)
    for name in ("", "claim", "measured", "rule", *(("you said",) if guesses else ())):
        table.add_column(name, no_wrap=name in ("", "measured", "rule"))
    for number, finding in enumerate(result.findings):
        claim = finding.claim
        sentence = f"erratum: “{claim.sentence}” {claim.correction}" if claim.erratum else claim.sentence
        row = [SIGNS[finding.decision], escape(sentence), str(finding), str(claim.rule)]
        if guesses:
            true = (finding.decision == "holds") != claim.erratum
            row.append("right" if guesses[number] == true else "wrong")
        table.add_row(*row)
    console.print(table)
    console.print(f"[dim]beside it: {escape(shipped.sentence(lab.name))}[/dim]")
    console.print(f"[dim]try: {escape(lab.tries[0])}    read: src/qkv/{lab.read[0]}[/dim]\n")


class Lines:
    """Progress as plain lines, one now and then."""

    def __init__(self) -> None:
        self.last = 0.0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def tell(self, news: News) -> None:
        if time.monotonic() - self.last > SECONDS_BETWEEN_LINES:
            self.last = time.monotonic()
            print(f"{news.done} of {news.total} measured; {news.lab}: {news.what}", file=sys.stderr, flush=True)


class Bar:
    """Progress as a live bar."""

    def __init__(self) -> None:
        columns = (BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.bar = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> None:
        self.bar.start()

    def __exit__(self, *error: object) -> None:
        self.bar.stop()

    def tell(self, news: News) -> None:
        self.bar.update(self.task, description=f"{news.lab}: {news.what}", completed=news.done, total=news.total)
