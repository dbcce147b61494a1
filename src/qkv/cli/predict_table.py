"""`qkv predict --file TABLE`: the table with its answers, in a file or on stdout."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from qkv.cli.console import RowProgress, say
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.predict.table import TableJob, TableNotes, TableProgress


def write_answers(
    run: Path,
    file: Path,
    output: Path | None,
    columns: tuple[str | None, str | None],
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Predict from a table. With an output an interrupted command goes on when it is run again."""
    from qkv.api import open_table_job
    from qkv.predict.table import TableNotes, check_output

    if as_json and output is not None:
        raise UserError(f"--json: the name of the output decides its format; write to {output.with_suffix('.jsonl')}")
    job, notes = open_table_job(run, file, *columns, options, say), TableNotes()
    for old, new in zip(job.answers, job.added.names, strict=True):
        if old != new:
            say(f"the table has a column {old!r} already; the answer is in {new!r}")
    if output is None:
        progress = _follow(_to_stdout(job, notes, as_json=as_json), None, shown=not sys.stdout.isatty())
    else:
        check_output(job.table, output)
        progress = _follow(_to_file(job, notes, output), output)
    rate = progress.stop()
    for note in notes.sentences():
        say(f"note: {note}")
    say(f"{output or file}: {progress.rows:,} rows, {rate}")


def _to_file(job: TableJob, notes: TableNotes, output: Path) -> Iterator[TableProgress]:
    from qkv.predict.table import partial_of, predict_table

    for number, report in enumerate(predict_table(job, output, notes)):
        if number == 0 and report.rows:
            say(f"{partial_of(output)}: going on after {report.rows:,} of {report.total:,} rows")
        yield report


def _to_stdout(job: TableJob, notes: TableNotes, *, as_json: bool) -> Iterator[TableProgress]:
    from qkv.corpus.table_writer import text_writer
    from qkv.predict.table import stream_table

    names = [*job.table.names, *job.added.names]
    writer = text_writer(_utf8_stdout(), ".jsonl" if as_json else ".csv", names, job.table)
    for report in stream_table(job, writer, notes):
        sys.stdout.flush()
        yield report


def _follow(reports: Iterator[TableProgress], output: Path | None, *, shown: bool = True) -> RowProgress:
    """Show how far it is. Ctrl-C says how to go on."""
    from qkv.predict.table import partial_of

    progress = RowProgress(shown=shown)
    try:
        for number, report in enumerate(reports):
            if number == 0:
                progress.start(report.rows, report.total)
            progress.update(report.rows)
    except KeyboardInterrupt:
        progress.stop()
        if output is None or progress.total is None:
            raise
        done = f"{progress.rows:,} of {progress.total:,} rows are kept in {partial_of(output)}"
        say(f"stopped; {done}; the same command goes on from there")
        raise typer.Exit(130) from None
    return progress


def _utf8_stdout() -> TextIO:
    """A table is data: it is UTF-8 whatever the terminal is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return sys.stdout
