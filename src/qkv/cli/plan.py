"""`qkv plan`: what a model costs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qkv import terminal
from qkv.cli.console import AsJson, Settings, plain_table, stdout
from qkv.config import presets
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.config.recipe import Recipe
    from qkv.plan import Memory, Plan


def plan(
    source: Annotated[
        str | None,
        typer.Argument(metavar="PRESET|RECIPE|RUN", help="A preset, a recipe or a model. Without one: list presets."),
    ] = None,
    settings: Settings = None,
    length: Annotated[int, typer.Option(metavar="TOKENS", help="Sequence length of a training batch.")] = 128,
    as_json: AsJson = False,
    help_recipe: Annotated[bool, typer.Option("--help-recipe", help="Explain every key of a recipe.")] = False,
) -> None:
    """Parameters by part, FLOPs per token, and memory to train."""
    if help_recipe:
        from qkv.cli.train import explain_recipe

        explain_recipe()
        return
    if source is None:
        if settings or as_json:
            raise UserError("--set and --json need a preset or recipe: qkv plan PRESET|RECIPE")
        show_presets(stdout())
        return
    from qkv.plan import make_plan
    from qkv.training.build import recipe_to_plan

    recipe = recipe_to_plan(source, settings or ())
    made = make_plan(recipe, length)
    if as_json:
        print(json.dumps(_as_json(source, recipe, made)))
    else:
        _show_plan(stdout(), source, recipe, made)


def show_presets(console: Console) -> None:
    """All presets with their exact number of parameters."""
    from qkv.plan import parameters

    table = plain_table(preset="left", family="left", layers="right", width="right", parameters="right")
    table.add_column("float32", justify="right", no_wrap=True)
    for name in presets.names():
        config = presets.load(name).resolve()
        count = sum(parameters(config).values())
        layers = f"{config.layers} + {config.decoder_layers}" if config.decoder_layers else str(config.layers)
        sizes = (layers, str(config.width), f"{count:,}", terminal.readable_bytes(4 * count))
        table.add_row(name, config.family, *sizes)
    console.print("[bold]Presets")
    console.print(table)


def _show_plan(console: Console, source: str, recipe: Recipe, made: Plan) -> None:
    """A plan as tables."""
    config = recipe.model
    console.rule(f"[bold]{escape(source)}", align="left")
    if config.preset != "none":
        unchanged = config == presets.load(config.preset).replace(preset=config.preset)
        console.print(("" if unchanged else "Modified from: ") + presets.citation(config.preset))
    console.print("\n[bold]Parameters")
    console.print(_parameters_table(made))
    both = ", for a source and a target token together" if config.family == "encoder-decoder" else ""
    console.print(f"\n[bold]Floating-point operations per token[/bold]{both}")
    console.print(_costs_table(made))
    console.print(
        f"\n[bold]Memory to train[/bold] in float32 with AdamW, {made.memory.rows:,} x {made.memory.length:,} tokens"
    )
    console.print(_memory_table(made.memory))


def _as_json(source: str, recipe: Recipe, made: Plan) -> dict[str, Any]:
    """A plan as one JSON object."""
    return {
        "name": source,
        "family": recipe.model.family,
        "parameters": made.parameters,
        "total": made.total,
        "flops_per_token": [asdict(cost) for cost in made.costs],
        "memory_bytes": asdict(made.memory) | {"total": made.memory.total},
    }


def _parameters_table(made: Plan) -> Table:
    table = plain_table(part="left", count="right", share="right")
    table.add_column("", no_wrap=True)
    for part, count in made.parameters.items():
        share = count / made.total
        table.add_row(part, f"{count:,}", f"{share:.1%}", terminal.bar(share))
    table.add_row("[bold]total", f"[bold]{made.total:,}", "", "")
    return table


def _costs_table(made: Plan) -> Table:
    table = plain_table(length="right", prediction="right", training="right")
    for cost in made.costs:
        table.add_row(f"{cost.length:,}", terminal.readable(cost.prediction), terminal.readable(cost.training))
    return table


def _memory_table(memory: Memory) -> Table:
    table = plain_table(part="left", size="right")
    for name in ("weights", "gradients", "optimiser", "activations"):
        table.add_row(name, terminal.readable_bytes(getattr(memory, name)))
    table.add_row("[bold]total", f"[bold]{terminal.readable_bytes(memory.total)}")
    return table
