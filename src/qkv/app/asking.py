"""What `qkv predict` is asked: texts from arguments, a file or standard input, and a bar for many of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from qkv.predict import Predictor
from qkv.schema import UserError

MANY_TEXTS = 200  # from here on a bar is worth it


def asked(line: str, number: int, predictor: Predictor) -> str | tuple[str, str]:
    """A line as the model wants it: one text, or two with a tab between them."""
    first, tab, second = line.partition("\t")
    if not predictor.reading.pairs:
        return (first, second) if tab and predictor.config.head == "pretraining" else line
    if not tab:
        raise UserError(f"text {number}: this model judges pairs; write both texts with a tab between them")
    return first, second


@contextmanager
def counting(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr for many texts, where somebody sits in front of it."""
    if total < MANY_TEXTS or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("predicting", total=total)
        yield lambda count: bar.advance(task, count)


def read_texts(texts: list[str] | None, file: Path | None) -> list[str]:
    """The texts to predict: arguments, a file, or standard input; one a line, without their line ends."""
    if texts and file:
        raise UserError("give texts or --file, not both")
    if texts:
        return texts
    if not file and sys.stdin.isatty():
        print("reading texts from the terminal, one a line; end with Ctrl-D", file=sys.stderr)
    try:
        raw = file.read_bytes() if file else sys.stdin.buffer.read()
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    try:
        lines = raw.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise UserError(
            f"{file or 'stdin'}, line {line}: not UTF-8; convert it, for example with iconv -t utf-8"
        ) from None
    return [line.removesuffix("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
