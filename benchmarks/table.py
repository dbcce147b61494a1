"""What every benchmark prints: Markdown tables on standard output, progress and errors on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable


def row(*cells: object) -> None:
    print("|", *(f"{cell} |" for cell in cells), flush=True)


def head(*names: str) -> None:
    row(*names)
    print("|" + "---|" * len(names), flush=True)


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def run_main(main: Callable[[], None]) -> None:
    """Run a benchmark. A missing model or file is one sentence, as in qkv, not a traceback."""
    try:
        main()
    except ValueError as error:
        from qkv.schema import UserError  # imported here only: `big_csv.py` must stay small

        if not isinstance(error, UserError):
            raise
        say(f"error: {error}")
        sys.exit(2)
