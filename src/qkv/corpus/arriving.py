"""Lines of text as they arrive, from a pipe, a terminal or a file: in groups, without waiting for the end."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from io import BufferedIOBase

from qkv.corpus import records
from qkv.schema import UserError

GROUP = 1024  # lines at most
PIECE = 2**20  # bytes read at once; a pipe gives what is there


def arriving_lines(stream: BufferedIOBase, name: str) -> Iterator[list[str]]:
    """All lines, without their ends, some at a time: those that have arrived since the last."""
    number = 0
    for lines in _groups(stream, name):
        texts = []
        for line in lines:
            number += 1
            raw = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            try:
                texts.append(raw.decode().removesuffix("\r"))
            except UnicodeDecodeError:
                advice = "convert it, for example with iconv -t utf-8"
                raise UserError(f"{name}, line {number}: not UTF-8; {advice}") from None
        yield texts
    if number == 0:
        raise UserError(f"{name}: is empty; give at least one text, one per line")


def _groups(stream: BufferedIOBase, name: str) -> Iterator[list[bytes]]:
    rest = b""
    while piece := stream.read1(PIECE):
        *lines, rest = (rest + piece).split(b"\n")
        for first in range(0, len(lines), GROUP):
            yield lines[first : first + GROUP]
        if len(rest) > records.LARGEST:
            raise UserError(f"{name}: a line of over {records.MOST}; give one text per line")
    if rest and rest != codecs.BOM_UTF8:
        yield [rest]
