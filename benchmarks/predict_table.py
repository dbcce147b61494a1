"""Rows a second and the highest memory of `qkv predict --file TABLE -o TABLE`.

    QKV_DATA=/where/data/lies .venv/bin/python benchmarks/predict_table.py [--rows 50000] [--corpus sst2|imdb]
        [--to .csv,.jsonl] [--run RUN]

Makes a CSV of real texts with two other columns, repeated until there are enough rows, and one of a tenth of them:
memory that does not grow with the table is the same for both. Without --run the bundled encoder gets a classification
head in 30 steps of training on these rows: what it answers does not matter here. Each command is a process of its own.
Seconds are those of the whole command, start included. Memory is the highest resident memory of that process, of which
torch and the model are the most.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from table import head, row, run_main, say

SOURCES = {"sst2": ("sst2/glue-train.tsv.gz", "sentence"), "imdb": ("imdb/train.tsv.gz", "text")}
RECIPE = """
task = "classify"
init = "bundled-encoder"
[data]
corpus = "train.csv"
length = 256
[train]
steps = 30
batch_tokens = 4096
eval_every = 30
save_every = 30
[runtime]
threads = 2
"""


def texts(corpus: str) -> Iterator[tuple[str, str]]:
    """Texts and labels of a corpus below QKV_DATA."""
    name, column = SOURCES[corpus]
    with gzip.open(Path(os.environ["QKV_DATA"]) / name, "rt", encoding="utf-8", newline="\n") as file:
        names = next(file).rstrip("\n").split("\t")
        for line in file:
            cells = line.rstrip("\n").split("\t", len(names) - 1)
            yield cells[names.index(column)], cells[names.index("label")]


def write_table(path: Path, corpus: str, rows: int) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"])
        endless = itertools.chain.from_iterable(texts(corpus) for _ in itertools.count())
        for number, (text, label) in enumerate(itertools.islice(endless, rows)):
            writer.writerow([number, text, label])


def qkv(folder: Path, *arguments: str) -> tuple[float, int]:
    """Seconds and highest memory in bytes of a command."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "qkv.cli.main", *arguments], cwd=folder, stderr=subprocess.PIPE, text=True
    )
    said = process.stderr.read() if process.stderr is not None else ""
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(said)
    return time.perf_counter() - began, used.ru_maxrss * 1024


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rows", type=int, default=50_000)
    options.add_argument("--corpus", choices=sorted(SOURCES), default="sst2")
    options.add_argument("--to", default=".csv")
    options.add_argument("--run", type=Path)
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = str(chosen.run.resolve()) if chosen.run else "run"
        if not chosen.run:
            say("training a head for 30 steps")
            write_table(folder / "train.csv", chosen.corpus, 2000)
            (folder / "r.toml").write_text(RECIPE)
            qkv(folder, "train", "r.toml", "-o", "run")
        head("table", "rows", "to", "seconds", "rows/s", "highest memory, MB")
        for rows in (chosen.rows // 10, chosen.rows):
            write_table(folder / f"{rows}.csv", chosen.corpus, rows)
            for kind in chosen.to.split(","):
                command = ("predict", run, "--file", f"{rows}.csv", "--column", "text", "-o", f"{rows}-out{kind}")
                seconds, memory = qkv(folder, *command)
                row(
                    chosen.corpus, f"{rows:,}", kind, f"{seconds:.1f}", f"{rows / seconds:,.0f}", f"{memory / 1e6:,.0f}"
                )


if __name__ == "__main__":
    run_main(main)
