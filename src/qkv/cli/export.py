"""`qkv export`: a model for other libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from qkv.cli.console import say
from qkv.schema import UserError


def export(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="A run, a Hugging Face folder or a name of `qkv models list`.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="New folder to write.")],
    to: Annotated[str, typer.Option(metavar="FORMAT", help="hf: a folder that transformers loads.")] = "hf",
    half: Annotated[bool, typer.Option("--half", help="Store weights in float16: half the size.")] = False,
) -> None:
    """Export a model to Hugging Face format, and check that transformers computes the same logits."""
    from qkv.export import export_hf
    from qkv.hub import path_of

    if to != "hf":
        raise UserError(f"--to {to}: unknown format; accepted: hf")
    certificate = export_hf(path_of(str(run)), output, half=half)
    print(f"{output}: {certificate.architecture}")
    print(f"largest difference to {certificate.peer}: {certificate.difference:.2e} over {certificate.scores:,} logits")
    if not certificate.independent:
        say(
            "note: transformers is not installed, so qkv was compared with itself only; "
            "for an independent certificate: pip install -c constraints.txt -e '.[export]'"
        )
