"""What `qkv predict` is asked: texts from arguments, a file or standard input, and a bar for many of them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from qkv.predict import Predictor
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.beams import BeamTrace

MANY_TEXTS = 200  # from here on a bar is worth it


def may_stream(predictor: Predictor, texts: list[str] | None, wanted: dict[str, Any]) -> bool:
    """Whether the answer is shown as it grows: one continuation, greedy or by chance, to a terminal."""
    one = len(texts or ()) == 1 and predictor.config.family == "decoder" and predictor.config.head == "words"
    return one and sys.stdout.isatty() and predictor.asked(**wanted).decode.beam == 1


def stream(predictor: Predictor, text: str, wanted: dict[str, Any]) -> None:
    """Show a continuation as it grows."""
    del wanted["best"]
    for piece in predictor.stream(text, **wanted):
        print(piece, end="", flush=True)
    print()


def show_beams(
    console: Console, predictor: Predictor, given: list[str], wanted: dict[str, Any], *, as_json: bool
) -> None:
    """The tree of each text's beam search. A branch that was not held any further is marked, and so is what ended."""
    from qkv.beams import trace_beams

    for text in given:
        trace = trace_beams(predictor, text, **wanted)
        if as_json:
            print(json.dumps(trace.to_json(), ensure_ascii=False))
            continue
        console.print(_tree(trace), highlight=False)
        for output, found in trace.answers:
            how = f"log-probability {found.log_probability:.4f}, score {found.score:.4f}"
            whole = "" if found.ended else ", as long as allowed"
            console.print(f"-> {escape(output)}   ({how}{whole})", highlight=False)


def _tree(trace: BeamTrace) -> Tree:
    root = Tree(escape(trace.text))
    level: list[Tree] = [root]
    for number, nodes in enumerate(trace.steps):
        last = number + 1 == len(trace.steps)
        going_on = set() if last else {node.parent for node in trace.steps[number + 1]}
        grown = []
        for place, node in enumerate(nodes):
            state = "" if place in going_on or last else "  [dim]dropped[/dim]"
            if node.ended:
                state = "  [bold]ended[/bold]"
            at = ""
            if node.alignment:
                share, word = max(zip(node.alignment, trace.source, strict=True))
                at = f"  [dim]<- {escape(word)} {share:.2f}[/dim]"
            figures = f"{node.log_probability:.3f} / {node.length_penalty:.3f} = {node.score:.3f}"
            parent = level[node.parent] if node.parent is not None else root
            grown.append(parent.add(f"{escape(node.word)}  {figures}{at}{state}"))
        level = grown
    return root


def answer(predictor: Predictor, given: list[str], top: int, wanted: dict[str, Any], *, as_json: bool) -> None:
    """Print one line for each text."""
    texts = [asked(text, number, predictor) for number, text in enumerate(given, 1)]
    with counting(len(texts)) as seen:
        answers = predictor.predict(texts, top=top, seen=seen, **wanted)
    for one in answers:
        print(json.dumps(one.to_json(), ensure_ascii=False) if as_json else one)
    cut = [number for number, one in enumerate(answers, 1) if one.cut]
    if cut:
        note = f"note: {len(cut)} of {len(answers)} texts were cut to fit the model, first text {cut[0]}"
        print(note, file=sys.stderr)


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
