"""`qkv data list|get|show`: named real data, and a look into any file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="Named real data: list it, bring it, look into it.")


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def _say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


@app.command("list")
def list_data() -> None:
    """What the catalogue knows, under which licence, and what is on this machine."""
    from qkv.text.catalog import data_folder, listing

    table = Table(box=None, padding=(0, 1))
    for name in ("name", "task", "rows", "here", "licence"):
        table.add_column(name, justify="right" if name == "rows" else "left", no_wrap=name != "licence")
    for entry in listing():
        here = "yes" if entry["present"] else "no"
        table.add_row(entry["name"], entry["task"], f"{entry['rows']:,}", here, entry["licence"])
    _console().print(table)
    print(f"`qkv data get NAME` brings what can be brought; data of your own goes under {data_folder()} (QKV_DATA)")


@app.command()
def get(name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `qkv data list`.")]) -> None:
    """Bring a named data set to this machine, checked by its hash."""
    from qkv.text.catalog import get as bring

    for path in bring(name, _say):
        print(path)


@app.command()
def show(
    source: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A catalogue name, a file, a folder or a glob.")],
) -> None:
    """What is in a data set: source and licence, columns, labels, how it will be split, and the first rows."""
    from qkv.text.catalog import entries, summary

    console, entry = _console(), entries().get(source)
    about = summary(source)
    for key in ("title", "licence", "source"):
        if key in about:
            console.print(f"[bold]{key}[/bold]: {escape(str(about[key]))}")
    for path in about["files"][:5]:
        console.print(f"[bold]file[/bold]: {escape(path)}")
    if not about["present"]:
        console.print(escape(str(about["how"])))
        return
    columns = {role: name for role, name in about["columns"].items() if name is not None}
    console.print("[bold]columns[/bold]: " + ", ".join(f"{role} = {escape(name)}" for role, name in columns.items()))
    if "label" in columns:
        console.print(_split_table(source, columns))
    elif entry is not None and entry.task == "translate":
        console.print(f"[bold]pairs[/bold]: {about['rows']:,}")
    elif about.get("documents", "auto") != "auto":
        console.print(f"[bold]documents[/bold]: {about['rows']:,}, by {about['documents']}")
    else:
        console.print(f"[bold]rows[/bold]: {about['rows']:,}; no column of labels is known: data.label names it")
    for row in about["first"]:
        start = "  ->  ".join(" ".join(str(row[key]).split()) for key in ("text", "pair") if key in row)
        console.print(f"  {row.get('label', '')}  {start[:100]}{'...' if len(start) > 100 else ''}", markup=False)


def _split_table(source: str, columns: dict[str, str]) -> Table:
    """Rows of each part and label, as a training would split them."""
    from qkv.config import DataConfig
    from qkv.data.source import open_source, part_counts

    counts = part_counts(open_source(DataConfig.read({"corpus": source, **columns})))
    labels = sorted({name for by_label in counts.values() for name in by_label})
    table = Table(box=None, padding=(0, 1))
    for name in ("part", "rows", *labels[:8], *(["..."] if len(labels) > 8 else [])):
        table.add_column(escape(name), justify="left" if name == "part" else "right")
    for part, by_label in counts.items():
        table.add_row(part, f"{sum(by_label.values()):,}", *(f"{by_label[name]:,}" for name in labels[:8]))
    return table
