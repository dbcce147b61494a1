"""Markdown tables on standard output, and what is under way on standard error."""

from __future__ import annotations

import sys


def row(*cells: object) -> None:
    print("|", *(f"{cell} |" for cell in cells), flush=True)


def head(*names: str) -> None:
    row(*names)
    print("|" + "---|" * len(names), flush=True)


def say(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)
