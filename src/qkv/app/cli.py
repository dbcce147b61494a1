"""The command line: parse, call, print. Results go to stdout, everything else to stderr.

Exit codes: 0 done, 1 a failure, 2 a mistake in what the user wrote.
"""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qkv import __version__
from qkv.app import data
from qkv.schema import UserError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The whole Transformer on the machine you have.",
    epilog="Query: what I look for. Key: what I offer. Value: what I hold.",
)

app.add_typer(data.app, name="data")

Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the recipe: model.layers=8.")
]


def _console() -> Console:
    """To stdout; 120 columns where that is not a terminal, so that tables are not broken in files and pipes."""
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"qkv {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """What comes before the command."""


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="RUN", help="Where the run goes.")] = Path(
        "runs/demo"
    ),
) -> None:
    """Train on real movie reviews, here and now, and ask the model about two sentences."""
    from qkv.app.demo import show_demo

    raise typer.Exit(show_demo(_console(), output))


@app.command()
def explain() -> None:
    """One attention head worked through number by number, what a mask does, and the models by size."""
    from qkv.app.head import show_head

    show_head(_console())


@app.command()
def train(
    recipe: Annotated[
        str | None, typer.Argument(metavar="RECIPE", help="A recipe's name or a TOML file; without one, all recipes.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="RUN", help="Where the run goes; default runs/RECIPE.")
    ] = None,
    settings: Settings = None,
    help_recipe: Annotated[bool, typer.Option("--help-recipe", help="Every key of a recipe, explained.")] = False,
) -> None:
    """Train a model, or go on where it stopped: the same command resumes. Ctrl-C stops safely."""
    if help_recipe:
        _explain_recipe()
        return
    from qkv import recipes

    if recipe is None:
        for name in recipes.names():
            print(f"{name}\n  {recipes.promise(name)}")
        return
    from qkv.api import default_output
    from qkv.app import training

    place = output or default_output(recipe)
    code, findings = training.train(recipes.resolve(recipe, settings or ()), place)
    if findings is not None:
        training.show_findings(_console(), findings, details=False)
    if code == 0:
        print(f"{place}: done; curves.png shows how it learnt, README.md is its card")
    raise typer.Exit(code)


@app.command("eval")
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, or a Hugging Face folder with --data.")],
    data: Annotated[
        str | None, typer.Option(metavar="FILE", help="Other rows or documents; without: the run's own test rows.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="PICTURE", help="Reliability picture; default RUN/reliability.png."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """How good a model is on rows it never saw, and how far its probabilities may be trusted."""
    from qkv import api, pictures
    from qkv.app import training
    from qkv.learn.metrics import Scores
    from qkv.run import Run

    findings = api.evaluate(run, data, training.say)
    if as_json:
        print(training.findings_as_json(findings))
    else:
        training.show_findings(_console(), findings)
    whole = findings["all"]
    place = output or (run / "reliability.png" if Run(run).begun and data is None else None)
    if place is not None and isinstance(whole, Scores):
        pictures.reliability(place, whole.raw_bins, whole.bins, run.name)
        training.say(f"how far its probabilities hold: {place}")


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN ...", help="Two runs or more.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PICTURE", help="Curves side by side, .png or .svg.")
    ] = None,
) -> None:
    """Curves of several runs side by side, and why they differ."""
    from qkv.app.compare import show_comparison

    show_comparison(_console(), runs, output)


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN")],
    repair: Annotated[bool, typer.Option("--repair", help="Set damaged files aside and make the model anew.")] = False,
) -> None:
    """Every file of a run against its hash, and what resuming would do."""
    from qkv import verify as verification
    from qkv.app.compare import show_findings

    findings, future = verification.verify(run)
    if repair:
        for sentence in verification.repair(run) or ["nothing to repair"]:
            print(sentence)
        findings, future = verification.verify(run)
    raise typer.Exit(0 if show_findings(_console(), findings, future) else 1)


@app.command("crash-test")
def crash_test(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A recipe's name or a TOML file.")],
    kills: Annotated[int, typer.Option(min=1, max=1000, help="How often the training is killed.")] = 5,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Where both runs go; default: nowhere.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Kill a training at random moments, let it resume each time, and compare the end with an uninterrupted one."""
    import tempfile

    from qkv.app.compare import show_crash_test
    from qkv.recipes import resolve

    resolve(recipe, settings or ())  # a mistake in it is better said before the first process
    with tempfile.TemporaryDirectory() as temporary:
        folder = output or Path(temporary)
        holds = show_crash_test(_console(), recipe, settings or (), folder, kills)
    raise typer.Exit(0 if holds else 1)


def _explain_recipe() -> None:
    from qkv.config import Recipe

    print("# Every key of a recipe, with its default. All are optional.\n")
    print(Recipe().to_toml(), end="")


@app.command()
def plan(
    source: Annotated[
        str | None, typer.Argument(metavar="PRESET|RECIPE", help="A preset or a TOML file; without one, all presets.")
    ] = None,
    settings: Settings = None,
    length: Annotated[int, typer.Option(metavar="TOKENS", help="Sequence length for the memory of a batch.")] = 128,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
    help_recipe: Annotated[bool, typer.Option("--help-recipe", help="Every key of a recipe, explained.")] = False,
) -> None:
    """What a model costs: parameters by part, arithmetic per token, memory to train."""
    if help_recipe:
        _explain_recipe()
        return
    from qkv.app import show

    if source is None:
        if settings or as_json:
            raise UserError("--set and --json need a preset or recipe: qkv plan PRESET|RECIPE")
        show.show_presets(_console())
        return
    from qkv.learn.start import with_parts
    from qkv.plan import make_plan
    from qkv.recipes import resolve

    recipe = with_parts(resolve(source, settings or ()))
    made = make_plan(recipe, length)
    if as_json:
        print(json.dumps(show.as_json(source, recipe, made)))
    else:
        show.show_plan(_console(), source, recipe, made)


@app.command()
def predict(  # noqa: PLR0913  (each is an option)
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, a Hugging Face folder or a bundled model.")],
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Without any: lines of stdin.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", help="Read texts from a file, one a line.")] = None,
    top: Annotated[int, typer.Option(help="Words to show for each [MASK].")] = 5,
    max_tokens: Annotated[int | None, typer.Option(help="Longest continuation or translation.")] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses that a beam search holds; 1: none is made.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="How far a beam search favours long answers.")] = None,
    best: Annotated[int, typer.Option(help="Answers of a beam search to give, best first.")] = 1,
    temperature: Annotated[float | None, typer.Option(help="0: the likeliest word; else by chance.")] = None,
    top_k: Annotated[int | None, typer.Option(help="By chance among so many of the likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="By chance among those that have this share.")] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same words.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="End a continuation here; may be given again.")] = None,
    beams: Annotated[bool, typer.Option("--show-beams", help="The tree of each beam search.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object a line.")] = False,
) -> None:
    """What a model says about texts, one line each: a label, words for [MASK], a continuation or a translation. One
    text that is to be continued comes word by word, if somebody is looking."""
    from qkv.api import load
    from qkv.app import asking

    given, predictor = asking.read_texts(texts, file), load(run)
    decode = {"max_tokens": max_tokens, "beam": beam, "length_penalty": length_penalty, "temperature": temperature}
    wanted = {"best": best, "seed": seed, "stop": stop or [], **decode, "top_k": top_k, "top_p": top_p}
    if beams:
        asking.show_beams(_console(), predictor, given, wanted, as_json=as_json)
    elif asking.may_stream(predictor, texts, wanted) and not as_json:
        asking.stream(predictor, given[0], wanted)
    else:
        asking.answer(predictor, given, top, wanted, as_json=as_json)


@app.command()
def lab(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME ...] [RUN]", help="Labs, and a model of yours for those that can look at one."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="A page with all of it, .html.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="More seeds, larger sizes; stopped, it goes on.")] = False,
    ask: Annotated[bool, typer.Option("--ask", help="Say first what you expect.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a lab.")] = False,
) -> None:
    """The textbook's claims, measured on the real model: `qkv lab list`, `qkv lab NAME`, or all of them."""
    from qkv.app import lab as room

    if words == ["list"]:
        room.list_labs(_console())
        return
    names, run = room.chosen(words or [])
    room.show_labs(_console(), names, run, full=full, ask=ask, as_json=as_json, output=output)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run, a Hugging Face folder or a bundled model.")],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The folder to write; must not exist yet.")
    ],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="hf: a folder that transformers loads as it is.")] = "hf",
    half: Annotated[bool, typer.Option("--half", help="Weights in float16: half the size, three digits.")] = False,
) -> None:
    """A model for the rest of the world, with a certificate that it gives the same numbers there."""
    from qkv.bundled import path_of
    from qkv.export import export_hf

    if to != "hf":
        raise UserError(f"--to {to}: unknown format; accepted: hf")
    certificate = export_hf(path_of(str(run)), output, half=half)
    print(f"{output}: {certificate.architecture}")
    print(f"largest difference to {certificate.peer}: {certificate.difference:.2e} over {certificate.scores:,} scores")
    if not certificate.independent:
        print(
            "note: transformers is not installed, so qkv was compared with itself only; "
            "for the real certificate: pip install -c constraints.txt -e '.[export]'",
            file=sys.stderr,
        )


def main() -> None:
    """The `qkv` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows ? for what it has not
    try:
        app()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone: `qkv plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
