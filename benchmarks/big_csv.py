"""A CSV larger than memory would like: rows, MB a second and the highest memory of reading it, and of tokenising it.

    .venv/bin/python benchmarks/big_csv.py --gigabytes 5 [--tokenise] [--folder /where/there/is/room]

Writes the file first: reviews of made-up words, common ones and rare ones as in a real text, with commas, quotes, line
breaks and accents, every one with its own number, so that no two are alike. Then a fresh process reads it through
`qkv.corpus.files.rows`; with --tokenise another one runs `qkv.data.prepare` on it, which reads it twice, trains the
tokenizer and writes the stores. Memory is the highest resident memory of that process, and what it was before the first
row, when only the imports were done. A file that fits in the system's cache is read from there.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from table import head, row, run_main, say

# qkv is imported in the fresh processes only: Linux counts the memory of the process that starts another as the other's
# highest, so this one has to stay small.

WORDS, TEMPLATES, REVIEW_WORDS = 20_000, 2000, (20, 300)
CONSONANTS, VOWELS = "bcdfghklmnprstvw", "aeioué"
ROOM = 1.2  # bytes free on the disk for a byte of the file
STORE_ROOM = 2.5  # and with the stores


@dataclass(frozen=True)
class Measured:
    """What a process did."""

    rows: int
    seconds: float
    before: int  # highest memory in bytes before the first row
    highest: int


def templates() -> list[tuple[bytes, bytes]]:
    """The two sides of the place where a row gets its number."""
    dice = random.Random(7)
    syllables = [consonant + vowel for consonant in CONSONANTS for vowel in VOWELS]
    words = ["".join(dice.choices(syllables, k=dice.randint(1, 4))) for _ in range(WORDS)]
    common = list(itertools.accumulate(1 / rank for rank in range(1, WORDS + 1)))  # Zipf's law
    made = []
    for number in range(TEMPLATES):
        chosen = dice.choices(words, cum_weights=common, k=dice.randint(*REVIEW_WORDS))
        text = " ".join(word + dice.choice(["", "", "", "", "", ",", '""', ".", "\n"]) for word in chosen)
        made.append((b'"Review ', f': {text}",{number % 2},{"long" if len(chosen) > 100 else "short"}\n'.encode()))
    return made


def write(path: Path, size: int) -> None:
    """Rows until the file has the size."""
    around = templates()
    written = number = 0
    with path.open("wb", buffering=2**22) as file:
        written += file.write(b"text,label,source\n")
        while written < size:
            before, after = around[number % TEMPLATES]
            written += file.write(before + str(number).encode() + after)
            number += 1


def highest_memory() -> int:
    """Of this process so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def read(path: Path) -> Measured:
    from qkv.corpus import files

    before, start = highest_memory(), time.perf_counter()
    rows = sum(1 for _ in files.rows([path], files.Columns(group="source")))
    return Measured(rows, time.perf_counter() - start, before, highest_memory())


def tokenise(path: Path) -> Measured:
    from qkv.config.recipe import DataConfig, TokenizerConfig
    from qkv.corpus.corpus import open_corpus
    from qkv.corpus.split import SPLITS
    from qkv.data.prepare import prepare

    before, start = highest_memory(), time.perf_counter()
    corpus = open_corpus(DataConfig(corpus=str(path)))
    prepared = prepare(corpus, TokenizerConfig(kind="wordpiece", lowercase=True), path.parent / "cache", say)
    rows = sum(prepared.rows(split) for split in SPLITS)
    return Measured(rows, time.perf_counter() - start, before, highest_memory())


def in_fresh_process(work: Callable[[Path], Measured], path: Path) -> Measured:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(work, path).result()


def measured(path: Path, also_tokenise: bool) -> Iterator[tuple[str, Measured]]:
    yield "read", in_fresh_process(read, path)
    if also_tokenise:
        yield "read, train a tokenizer, tokenise", in_fresh_process(tokenise, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=5.0, help="size of the file, in 10^9 bytes")
    parser.add_argument("--tokenise", action="store_true")
    parser.add_argument("--folder", type=Path, help="where a temporary folder is made; default: the system's place")
    options = parser.parse_args()
    size = int(options.gigabytes * 1e9)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        needed = size * (STORE_ROOM if options.tokenise else ROOM)
        free = shutil.disk_usage(temporary).free
        if free < needed:
            sys.exit(
                f"{temporary}: {free / 1e9:.1f} GB free, {needed / 1e9:.1f} GB needed; --folder names another place"
            )
        path = Path(temporary) / "reviews.csv"
        say(f"writing {options.gigabytes:g} GB")
        write(path, size)
        head("what", "GB", "rows", "seconds", "MB/s", "highest memory MB", "of it before the first row")
        for what, found in measured(path, options.tokenise):
            rate = size / 1e6 / found.seconds
            memory = (f"{found.highest / 1e6:,.0f}", f"{found.before / 1e6:,.0f}")
            row(what, f"{size / 1e9:g}", f"{found.rows:,}", f"{found.seconds:,.1f}", f"{rate:,.1f}", *memory)


if __name__ == "__main__":
    run_main(main)
