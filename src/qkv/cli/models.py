"""`qkv models list|get|show`: models by name, and a look at any model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from qkv.cli.console import say, stdout

if TYPE_CHECKING:
    from qkv.predict.predictor import Predictor

app = typer.Typer(no_args_is_help=True, help="Named models: list, download, inspect.")


@app.command("list")
def list_models() -> None:
    """List the models that have a name, with their licence and whether they are on this machine."""
    from qkv.hub import is_present, models

    table = Table(box=None, padding=(0, 1))
    for name in ("name", "family", "size", "here", "licence"):
        table.add_column(name, justify="right" if name == "size" else "left", no_wrap=name != "licence")
    for model in models().values():
        table.add_row(model.name, model.family, model.size, "yes" if is_present(model.name) else "no", model.licence)
    stdout().print(table)
    print("`qkv models get NAME` downloads. A name works wherever a RUN does, and as `init` in a recipe.")


@app.command()
def get(name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `qkv models list`.")]) -> None:
    """Download a model and verify the hash of each file. Prints its folder."""
    from qkv import hub

    print(hub.get(name, say))


@app.command()
def show(
    source: Annotated[str, typer.Argument(metavar="NAME|RUN", help="A name of `qkv models list`, a run or a folder.")],
) -> None:
    """Show a model: source and licence, sizes, tokenizer, and how texts are embedded."""
    from qkv.hub import is_present, models, path_of

    facts: dict[str, str] = {}
    model = models().get(source)
    if model is not None:
        facts = {"title": model.title, "licence": model.licence, "source": model.source}
    if model is not None and not is_present(source):
        facts["download"] = f"{model.size}; `qkv models get {source}` downloads it"
    else:
        from qkv.predict.predictor import load_predictor

        path = path_of(source)
        facts |= {"folder": str(path), **_facts(load_predictor(path))}
    for name, value in facts.items():
        stdout().print(f"[bold]{name}[/bold]: {escape(value)}", soft_wrap=True)


def _facts(predictor: Predictor) -> dict[str, str]:
    """Sizes, head and pooling of a model that is here."""
    config = predictor.config
    layers = f"{config.layers} + {config.decoder_layers}" if config.decoder_layers else str(config.layers)
    longest = predictor.max_length()
    facts = {
        "model": f"{config.family}, {layers} layers, {config.width} wide, {config.positions} positions",
        "parameters": f"{sum(weight.numel() for weight in predictor.model.parameters()):,}",
        "vocabulary": f"{config.vocabulary:,} tokens",
        "input": f"at most {longest:,} tokens" if longest else "of any length",
        "head": f"{config.head} ({', '.join(predictor.labels)})" if predictor.labels else config.head,
    }
    return facts if predictor.generates else {**facts, "embed": f"{predictor.embedding_pool} of the last hidden states"}
