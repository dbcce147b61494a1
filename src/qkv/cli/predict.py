"""`qkv predict`: predictions for texts from arguments, a file, a table or standard input."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from qkv import runtime
from qkv.cli.console import AsJson, RowProgress, say, stdout
from qkv.cli.predict_table import write_answers
from qkv.corpus.arriving import GROUP, arriving_lines
from qkv.corpus.files import in_words, open_buffered
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.predict.beam_trace import BeamTrace
    from qkv.predict.predictor import Predictor


def predict(  # noqa: PLR0913  (each is an option)
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, a Hugging Face folder or a name of `qkv models list`.")
    ],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Texts. Without any: lines of stdin.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file",
            help="Read texts from a file: a table (.csv, .tsv, .jsonl, .parquet, .xlsx), else one text per line.",
        ),
    ] = None,
    column: Annotated[str | None, typer.Option(metavar="NAME", help="Column of the texts in a table.")] = None,
    pair: Annotated[
        str | None, typer.Option(metavar="NAME", help="Column of the second texts, for a model of pairs.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="TABLE",
            help="Write the table with its answers: .csv, .tsv, .jsonl or .parquet. Rerun to resume. Default: stdout.",
        ),
    ] = None,
    top: Annotated[int, typer.Option(help="Number of tokens to show for each [MASK].")] = 5,
    max_tokens: Annotated[int | None, typer.Option(help="Maximum length of generated text, in tokens.")] = None,
    beam: Annotated[int | None, typer.Option(help="Beam width; 1 disables beam search.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Length penalty of beam search.")] = None,
    best: Annotated[int, typer.Option(help="Number of outputs of a beam search (n-best).")] = 1,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature; 0 is greedy decoding.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Sample from the K most probable tokens.")] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Nucleus sampling: sample from the smallest set of tokens whose probabilities sum to P."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of sampling.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End generated text at this string; repeatable.")] = None,
    beams: Annotated[bool, typer.Option("--show-beams", help="Show the tree of each beam search.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print one prediction per text: a label with its probability, a number, tokens for [MASK], a continuation or a
    translation. A single continuation streams when stdout is a terminal."""
    from qkv.api import load
    from qkv.corpus.tables import is_table

    decode = {"max_tokens": max_tokens, "beam": beam, "length_penalty": length_penalty, "temperature": temperature}
    options = {"best": best, "seed": seed, "stop": stop or [], **decode, "top_k": top_k, "top_p": top_p}
    if file is not None and not texts and not beams and (is_table(file) or output is not None):
        write_answers(run, file, output, (column, pair), {"top": top, **options}, as_json=as_json)
        return
    _refuse_table_options(column=column, pair=pair, output=output)
    if beams:
        _show_beams(
            stdout(), load(run), [line for some in _lines(texts, file) for line in some], options, as_json=as_json
        )
        return
    predictor, groups = load(run), _lines(texts, file)
    if texts and may_stream(predictor, texts, options) and not as_json:
        _stream(predictor, texts[0], options)
    else:
        _show_predictions(predictor, groups, {"top": top, **options}, as_json=as_json)


def _refuse_table_options(**given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise UserError(f"--{name} {value}: for a table; name one with --file, such as --file my.csv")


def may_stream(predictor: Predictor, texts: list[str] | None, options: dict[str, Any]) -> bool:
    """Whether the output is shown as it is generated: one continuation without beam search, on a terminal."""
    single = len(texts or ()) == 1 and predictor.config.family == "decoder" and predictor.generates
    return single and sys.stdout.isatty() and predictor.generation_options(**options).decode.beam == 1


def _stream(predictor: Predictor, text: str, options: dict[str, Any]) -> None:
    for piece in predictor.stream(text, **{name: value for name, value in options.items() if name != "best"}):
        print(piece, end="", flush=True)
    print()
    if predictor.prompts([text], predictor.generation_options(**options))[0].truncated:
        _note_truncated(1, 1, 1)


def _show_predictions(
    predictor: Predictor, groups: Iterable[list[str]], options: dict[str, Any], *, as_json: bool
) -> None:
    """One line for each text, as the texts arrive."""
    from qkv.predict.prediction import TextError

    done, truncated, first, shown = 0, 0, 0, RowProgress(shown=not sys.stdout.isatty())
    for given in groups:
        texts = [text_or_pair(text, number, predictor) for number, text in enumerate(given, done + 1)]
        try:
            predictions = predictor.predict(texts, progress=lambda count: shown.update(shown.rows + count), **options)
        except TextError as error:
            raise TextError(done + error.number, error.problem) from None
        for number, one in enumerate(predictions, done + 1):
            print(json.dumps(one.to_json(), ensure_ascii=False) if as_json else one)
            truncated, first = truncated + one.truncated, first or number * one.truncated
        sys.stdout.flush()
        done += len(texts)
        if len(texts) == GROUP:  # there is more to come
            runtime.release_freed_memory()
    shown.stop()
    _note_truncated(truncated, done, first)


def _note_truncated(truncated: int, texts: int, first: int) -> None:
    if truncated:
        say(f"note: {truncated:,} of {texts:,} texts were truncated, first text {first}")


def text_or_pair(line: str, number: int, predictor: Predictor) -> str | tuple[str, str]:
    """A line as the model reads it: one text, or two separated by a tab."""
    first, tab, second = line.partition("\t")
    if not predictor.input_options.pairs:
        return (first, second) if tab and predictor.config.head == "pretraining" else line
    if not tab:
        raise UserError(f"text {number}: this model needs pairs; separate the two texts by a tab")
    return first, second


def _lines(texts: list[str] | None, file: Path | None) -> Iterator[list[str]]:
    """The texts to predict: arguments, the lines of a file, or those of standard input as they arrive."""
    if texts and file:
        raise UserError("give texts or --file, not both")
    if texts:
        return iter([texts])
    if file is not None:
        return _file_lines(file)
    if sys.stdin.isatty():
        say("reading texts from the terminal, one a line; end with Ctrl-D")
    return arriving_lines(cast(BufferedReader, sys.stdin.buffer), "stdin")


def _file_lines(file: Path) -> Iterator[list[str]]:
    with in_words(str(file)), open_buffered(file) as stream:
        yield from arriving_lines(stream, str(file))


def _show_beams(
    console: Console, predictor: Predictor, given: list[str], options: dict[str, Any], *, as_json: bool
) -> None:
    """The tree of each text's beam search. Branches that were dropped or have ended are marked."""
    from qkv.predict.beam_trace import trace_beams

    truncated = list[int]()
    for number, text in enumerate(given, 1):
        trace = trace_beams(predictor, text, **options)
        truncated += [number] * trace.truncated
        if as_json:
            print(json.dumps(trace.to_json(), ensure_ascii=False))
            continue
        console.print(_tree(trace))
        for output, found in trace.outputs:
            figures = f"log-probability {found.log_probability:.4f}, score {found.score:.4f}"
            limit = "" if found.ended else ", length limit reached"
            console.print(f"-> {escape(output)}   ({figures}{limit})")
    _note_truncated(len(truncated), len(given), min(truncated, default=0))


def _tree(trace: BeamTrace) -> Tree:
    root = Tree(escape(trace.text))
    level: list[Tree] = [root]
    for number, nodes in enumerate(trace.steps):
        last = number + 1 == len(trace.steps)
        continued = set() if last else {node.parent for node in trace.steps[number + 1]}
        grown = []
        for index, node in enumerate(nodes):
            state = "" if index in continued or last else "  [dim]dropped[/dim]"
            if node.ended:
                state = "  [bold]ended[/bold]"
            source = ""
            if node.alignment:
                weight, token = max(zip(node.alignment, trace.source, strict=True))
                source = f"  [dim]<- {escape(token)} {weight:.2f}[/dim]"
            figures = f"{node.log_probability:.3f} / {node.length_penalty:.3f} = {node.score:.3f}"
            parent = level[node.parent] if node.parent is not None else root
            grown.append(parent.add(f"{escape(node.token)}  {figures}{source}{state}"))
        level = grown
    return root
