"""`qkv data list|get|show`: named datasets, and a look into any file."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from qkv.cli.console import say, stdout

app = typer.Typer(no_args_is_help=True, help="Named datasets: list, download, inspect.")


@app.command("list")
def list_data() -> None:
    """List the datasets of the catalogue, with their licence and whether they are on this machine."""
    from qkv.corpus.catalog import data_folder, listing

    table = Table(box=None, padding=(0, 1))
    for name in ("name", "task", "rows", "here", "licence"):
        table.add_column(name, justify="right" if name == "rows" else "left", no_wrap=name != "licence")
    for entry in listing():
        here = "yes" if entry["present"] else "no"
        table.add_row(entry["name"], entry["task"], f"{entry['rows']:,}", here, entry["licence"])
    stdout().print(table)
    print(f"`qkv data get NAME` downloads; data that you supply yourself goes to {data_folder()} (QKV_DATA)")


@app.command()
def get(name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `qkv data list`.")]) -> None:
    """Download a dataset and verify its hash. Prints its files."""
    from qkv.corpus import catalog

    for path in catalog.get(name, say):
        print(path)


@app.command()
def show(
    source: Annotated[str, typer.Argument(metavar="NAME|FILE", help="A catalogue name, a file, a folder or a glob.")],
) -> None:
    """Show a dataset: source and licence, columns, labels, splits, and the first rows."""
    from qkv.corpus.catalog import summary

    console = stdout()
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
    elif "pair" in columns:
        console.print(f"[bold]pairs[/bold]: {about['rows']:,}")
    elif about.get("documents", "auto") != "auto":
        console.print(f"[bold]documents[/bold]: {about['rows']:,}, by {about['documents']}")
    else:
        console.print(f"[bold]rows[/bold]: {about['rows']:,}; no label column was found; data.label names it")
    for row in about["first"]:
        start = "  ->  ".join(" ".join(str(row[key]).split()) for key in ("text", "pair") if key in row)
        console.print(f"  {row.get('label', '')}  {start[:100]}{'...' if len(start) > 100 else ''}", markup=False)


def _split_table(source: str, columns: dict[str, str]) -> Table:
    """Rows of each split and label, as in training."""
    from qkv.config.recipe import DataConfig
    from qkv.corpus.corpus import open_corpus

    counts = open_corpus(DataConfig.read({"corpus": source, **columns})).count_labels()
    labels = sorted({name for by_label in counts.values() for name in by_label})
    table = Table(box=None, padding=(0, 1))
    for name in ("split", "rows", *labels[:8], *(["..."] if len(labels) > 8 else [])):
        table.add_column(escape(name), justify="left" if name == "split" else "right")
    for split, by_label in counts.items():
        table.add_row(split, f"{sum(by_label.values()):,}", *(f"{by_label[name]:,}" for name in labels[:8]))
    return table
