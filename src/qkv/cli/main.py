"""The `qkv` command: one file of this room for each subcommand.

Exit codes: 0 success, 1 failure, 2 an error in the user's input.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from qkv import __version__
from qkv.cli.compare import compare
from qkv.cli.crash_test import crash_test
from qkv.cli.data import app as data
from qkv.cli.demo import demo
from qkv.cli.eval import evaluate
from qkv.cli.explain import explain
from qkv.cli.export import export
from qkv.cli.lab import lab
from qkv.cli.models import app as models
from qkv.cli.plan import plan
from qkv.cli.predict import predict
from qkv.cli.train import train
from qkv.cli.tune import tune
from qkv.cli.verify import verify
from qkv.schema import UserError
from qkv.terminal import printable

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The whole Transformer on the machine you have: train, use, explain and measure encoders, decoders and "
    "encoder-decoders on a CPU.",
    epilog="Start with `qkv demo`.",
)
COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo, "train": train, "tune": tune, "eval": evaluate, "predict": predict, "explain": explain, "lab": lab,
    "plan": plan, "compare": compare, "verify": verify, "crash-test": crash_test, "export": export,
}  # fmt: skip
for name, command in COMMANDS.items():
    app.command(name)(command)
app.add_typer(data, name="data")
app.add_typer(models, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"qkv {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the subcommand."""


def main() -> None:
    """Run a command; errors become one sentence and an exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 prints ? instead
    try:
        app()
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output has gone: `qkv plan | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
