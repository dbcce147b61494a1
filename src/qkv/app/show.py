"""Plans and presets as tables and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from qkv import draw, plan, presets
from qkv.config import Recipe


def show_presets(console: Console) -> None:
    """All presets with their exact counts."""
    table = _table(preset="left", family="left", layers="right", width="right", parameters="right")
    table.add_column("float32", justify="right", no_wrap=True)
    for name in presets.names():
        config = presets.load(name).resolve()
        count = sum(plan.parameters(config).values())
        layers = f"{config.layers} + {config.decoder_layers}" if config.decoder_layers else str(config.layers)
        sizes = (layers, str(config.width), f"{count:,}", draw.readable_bytes(4 * count))
        table.add_row(name, config.family, *sizes)
    console.print("[bold]Models by name")
    console.print(table)


def show_plan(console: Console, source: str, recipe: Recipe, made: plan.Plan) -> None:
    """A plan for people."""
    config = recipe.model
    console.rule(f"[bold]{escape(source)}", align="left")
    if config.preset != "none":
        as_it_is = config == presets.load(config.preset).replace(preset=config.preset)
        console.print(("" if as_it_is else "Changed from: ") + presets.citation(config.preset))
    console.print("\n[bold]Parameters")
    console.print(_parameters_table(made))
    both = ", for a source and a target token together" if config.family == "encoder-decoder" else ""
    console.print(f"\n[bold]Floating-point operations per token[/bold]{both}")
    console.print(_costs_table(made))
    console.print(
        f"\n[bold]Memory to train[/bold] in float32 with AdamW, {made.memory.rows:,} x {made.memory.length:,} tokens"
    )
    console.print(_memory_table(made.memory))


def as_json(source: str, recipe: Recipe, made: plan.Plan) -> dict[str, Any]:
    """A plan for programs."""
    return {
        "name": source,
        "family": recipe.model.family,
        "parameters": made.parameters,
        "total": made.total,
        "flops_per_token": [asdict(cost) for cost in made.costs],
        "memory_bytes": asdict(made.memory) | {"total": made.memory.total},
    }


def _parameters_table(made: plan.Plan) -> Table:
    table = _table(part="left", count="right", share="right")
    table.add_column("", no_wrap=True)
    for part, count in made.parameters.items():
        share = count / made.total
        table.add_row(part, f"{count:,}", f"{share:.1%}", draw.bar(share))
    table.add_row("[bold]total", f"[bold]{made.total:,}", "", "")
    return table


def _costs_table(made: plan.Plan) -> Table:
    table = _table(length="right", prediction="right", training="right")
    for cost in made.costs:
        table.add_row(f"{cost.length:,}", draw.readable(cost.prediction), draw.readable(cost.training))
    return table


def _memory_table(memory: plan.Memory) -> Table:
    table = _table(part="left", size="right")
    for name in ("weights", "gradients", "optimiser", "activations"):
        table.add_row(name, draw.readable_bytes(getattr(memory, name)))
    table.add_row("[bold]total", f"[bold]{draw.readable_bytes(memory.total)}")
    return table


def _table(**columns: Literal["left", "right"]) -> Table:
    table = Table(box=None, padding=(0, 1))
    for name, justify in columns.items():
        table.add_column(name, justify=justify, no_wrap=True)
    return table
