"""`qkv lab`: the claims, measured. Progress goes to stderr, verdicts and numbers to stdout."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from qkv import labs, runtime
from qkv.bundled import names as bundled_names
from qkv.bundled import path_of
from qkv.disk import replace_file
from qkv.labs.lab import Lab, Result, run_lab
from qkv.labs.report import SIGNS, page, picture
from qkv.schema import UserError, nearest
from qkv.text.catalog import cache_folder

SECONDS_BETWEEN_LINES = 10.0


def chosen(words: list[str]) -> tuple[list[str], Path | None]:
    """Which labs, and the user's own model if one was named: what is no lab's name must be a model's."""
    names = [word for word in words if word in labs.NAMES]
    others = [word for word in words if word not in labs.NAMES]
    if len(others) > 1:
        raise UserError(f"{others[1]}: one model at a time; {others[0]} was named before")
    if not others:
        return names or list(labs.NAMES), None
    run = path_of(others[0])
    if others[0] not in bundled_names() and not run.is_dir():
        raise UserError(f"{others[0]}: neither a lab ({nearest(others[0], labs.NAMES)}) nor the folder of a model")
    takers = [name for name in labs.NAMES if labs.load(name).takes_run]
    wrong = [name for name in names if name not in takers]
    if wrong:
        raise UserError(f"lab {wrong[0]}: does not look at a model of yours; these do: {', '.join(takers)}")
    return names or takers, run


def list_labs(console: Console) -> None:
    table = Table(box=None, padding=(0, 1))
    for name in ("lab", "question", "claims", "takes RUN"):
        table.add_column(name, justify="right" if name == "claims" else "left")
    for name in labs.NAMES:
        lab = labs.load(name)
        table.add_row(name, escape(lab.question), str(len(lab.claims)), "yes" if lab.takes_run else "")
    console.print(table)


def show_labs(
    console: Console, names: list[str], run: Path | None, *, full: bool, ask: bool, as_json: bool, output: Path | None
) -> None:
    """Run labs one after the other, and show each as soon as it is done."""
    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{output}: the report is a page; its name must end in .html")
    runtime.start()
    results = []
    for name in names:
        lab = labs.load(name)
        guesses = _asked(console, lab) if ask else None
        with _progress(lab) as tick:
            result = run_lab(lab, full=full, run=run, tick=tick, folder=cache_folder() / "labs" if full else None)
        results.append(result)
        if as_json:
            print(json.dumps({**result.as_dict(), **_where()}), flush=True)
        else:
            _show(console, result, guesses)
    if output is not None:
        _write(output, results, full=full)


def _where() -> dict[str, str]:
    """When and on what it was measured."""
    found = runtime.fingerprint()
    machine = f"{found['threads']} threads, {found['machine']} {found['cpu_features']}, torch {found['torch']}"
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "machine": machine}


def _write(output: Path, results: list[Result], *, full: bool) -> None:
    size = "full size" if full else "quick size"
    about = f"Measured on this machine on {datetime.now(UTC):%Y-%m-%d}, {size}, by the code that trains for real."
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
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
    console.print(f"[dim]try: {escape(lab.tries[0])}    read: src/qkv/{lab.read[0]}[/dim]\n")


@contextmanager
def _progress(lab: Lab) -> Iterator[Callable[[str], None]]:
    """A live line on a terminal, else a plain one now and then."""
    if not sys.stderr.isatty():
        last = 0.0

        def plainly(what: str) -> None:
            nonlocal last
            if time.monotonic() - last > SECONDS_BETWEEN_LINES:
                last = time.monotonic()
                print(f"{lab.name}: {what}", file=sys.stderr, flush=True)

        yield plainly
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{lab.name}: measuring", total=None)
        yield lambda what: bar.update(task, description=f"{lab.name}: {what}")
