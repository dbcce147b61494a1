"""Small tables of real data: `qkv train table.csv` and nothing else, beside linear models, fastText and SetFit.

usage: python benchmarks/small_tables.py [--data NAME ...] [--rows N ...] [--init MODEL] [--seeds N] [--peers NAME ...]
                                           [--keep FILE]

Each table is a random choice of training rows. Every model gets the same rows and is tested on the same separate test
rows (QKV_DATA, default ../shared/data): accuracy, or Pearson's correlation for sts-b. Settings are the same for all
data sets; nothing is chosen on test rows. Peers that are not installed are named and left out. Seeds: 3 up to 1,000
rows, 1 above. A line is printed for each size and model as soon as it is done. All of it takes hours: with --keep,
finished tables are kept in a file, and the same command goes on after the last of them.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import qkv
from qkv.hub import path_of
from qkv.metrics import ClassificationMetrics

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("QKV_DATA", ROOT.parent / "shared" / "data"))
SIZES = (50, 200, 1000, 5000)
PASSAGE = 80  # words
Row = dict[str, str]


def lines(path: str) -> list[str]:
    with gzip.open(DATA / path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")


def sst2() -> tuple[list[Row], list[Row]]:
    """Sentences of film reviews, negative or positive; tested on its dev sentences."""
    made = []
    for name in ("train", "dev"):
        cells = [line.split(" ", 1) for line in lines(f"sst2/stsa.binary.{name}.gz")]
        made.append([{"text": one[1], "label": one[0]} for one in cells if len(one) == 2])
    return made[0], made[1]


def cola() -> tuple[list[Row], list[Row]]:
    """Is a sentence English? Tested on dev."""
    made = []
    for name in ("train", "dev"):
        cells = [line.split("\t") for line in lines(f"glue/CoLA/{name}.tsv.gz")]
        made.append([{"text": one[3], "label": one[1]} for one in cells if len(one) == 4])
    return made[0], made[1]


def books() -> tuple[list[Row], list[Row]]:
    """Which of 16 books is a passage of 80 words from? The last fifth of each book is the test set."""
    train, test = list[Row](), list[Row]()
    for path in sorted((DATA / "gutenberg").glob("*.gz")):
        if path.name.startswith("whitman"):
            continue
        words = "\n".join(lines(str(path.relative_to(DATA)))).split()
        passages = [" ".join(words[n : n + PASSAGE]) for n in range(0, len(words) - PASSAGE, PASSAGE)]
        rows = [{"text": one, "label": path.name.removesuffix(".txt.gz")} for one in passages]
        train += rows[: len(rows) * 4 // 5]
        test += random.Random(0).sample(rows[len(rows) * 4 // 5 :], min(60, len(rows) // 5))
    return train, test


def mrpc() -> tuple[list[Row], list[Row]]:
    """Do two sentences say the same? A tenth of its training pairs is the test set."""
    cells = [line.rstrip("\r").split("\t") for line in lines("glue/MRPC/msr_paraphrase_train.txt.gz")[1:]]
    rows = [{"sentence1": one[3], "sentence2": one[4], "label": one[0]} for one in cells if len(one) == 5]
    random.Random(0).shuffle(rows)
    return rows[400:], rows[:400]


def stsb() -> tuple[list[Row], list[Row]]:
    """How alike are two sentences, from 0 to 5? Tested on dev."""
    made = []
    for name in ("train", "dev"):
        cells = [line.split("\t") for line in lines(f"glue/STS-B/sts-{name}.csv.gz")]
        made.append([{"sentence1": one[5], "sentence2": one[6], "score": one[4]} for one in cells if len(one) > 6])
    return made[0], made[1]


def imdb() -> tuple[list[Row], list[Row]]:
    """Film reviews; tested on 2,000 reviews of films that no training review is about."""
    made = []
    for name in ("train", "dev"):
        cells = [line.split("\t", 3) for line in lines(f"imdb/{name}.tsv.gz")[1:]]
        made.append([{"text": one[3].replace("<br />", " "), "label": one[2]} for one in cells if len(one) == 4])
    return made[0], random.Random(0).sample(made[1], 2000)


TABLES: dict[str, Callable[[], tuple[list[Row], list[Row]]]] = {
    "sst2": sst2, "cola": cola, "books": books, "mrpc": mrpc, "sts-b": stsb, "imdb": imdb,
}  # fmt: skip


def write(path: Path, rows: list[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def texts(rows: list[Row]) -> list[str]:
    return [" ".join(value for key, value in row.items() if key not in ("label", "score")) for row in rows]


def answers(rows: list[Row]) -> list[str]:
    return [row.get("label", row.get("score", "")) for row in rows]


def score(predicted: Any, rows: list[Row]) -> float:
    """Accuracy, or the correlation of numbers."""
    if "score" in rows[0]:
        if np.ptp(np.asarray(predicted, float)) == 0:
            return 0.0
        return float(np.corrcoef(np.asarray(predicted, float), [float(one) for one in answers(rows)])[0, 1])
    return float(np.mean(np.asarray(predicted) == np.asarray(answers(rows))))


def linear(train: Any, rows: list[Row], test: Any, test_rows: list[Row], *, strength: float) -> float:
    from sklearn.linear_model import LogisticRegression, Ridge

    if "score" in rows[0]:
        return score(Ridge(1.0).fit(train, [float(one) for one in answers(rows)]).predict(test), test_rows)
    return score(LogisticRegression(C=strength, max_iter=2000).fit(train, answers(rows)).predict(test), test_rows)


def tfidf(rows: list[Row], test: list[Row], folder: Path) -> float:
    """TF-IDF of words and pairs of words, sublinear, min_df 2 above 1,000 rows; logistic regression with C = 10."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2 if len(rows) > 1000 else 1)
    return linear(vectors.fit_transform(texts(rows)), rows, vectors.transform(texts(test)), test, strength=10.0)


def embeddings(rows: list[Row], test: list[Row], folder: Path) -> float:
    """MiniLM's embeddings, normalised as sentence-transformers does; logistic regression with its default C = 1. Of a
    pair: |u - v| and u * v."""
    model = qkv.load("minilm")

    def vectors(some: list[Row]) -> Any:
        def normal(part: list[str]) -> Any:
            found = model.embed(part)
            return found / np.linalg.norm(found, axis=1, keepdims=True)

        if "sentence1" not in some[0]:
            return normal([one["text"] for one in some])
        u, v = (normal([one[key] for one in some]) for key in ("sentence1", "sentence2"))
        return np.concatenate([abs(u - v), u * v], 1)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # texts that are truncated
        return linear(vectors(rows), rows, vectors(test), test, strength=1.0)


def fasttext(rows: list[Row], test: list[Row], folder: Path) -> float:
    """fastText with pairs of words, 25 epochs and a rate of 0.5."""
    import fasttext as library  # type: ignore[import-not-found]

    def line(row: Row) -> str:
        return " ".join(re.findall(r"\w+|[^\w\s]", texts([row])[0].lower()))

    file = folder / "fasttext.txt"
    file.write_text("".join(f"__label__{one} {line(row)}\n" for one, row in zip(answers(rows), rows, strict=True)))
    model = library.train_supervised(str(file), epoch=25, lr=0.5, wordNgrams=2, thread=2, verbose=0)
    found = model.f.multilinePredict([line(row) + "\n" for row in test], 1, 0.0, "strict")[0]
    return score([one[0].removeprefix("__label__") for one in found], test)


def setfit(rows: list[Row], test: list[Row], folder: Path) -> float:
    """SetFit with MiniLM and its default settings."""
    from datasets import Dataset  # type: ignore[import-not-found]
    from setfit import SetFitModel, Trainer, TrainingArguments  # type: ignore[import-not-found]

    model = SetFitModel.from_pretrained(str(path_of("minilm")), local_files_only=True)
    data = Dataset.from_dict({"text": texts(rows), "label": answers(rows)})
    Trainer(model=model, args=TrainingArguments(output_dir=str(folder / "setfit")), train_dataset=data).train()
    return score(list(model.predict(texts(test))), test)


PEERS = {"tfidf": tfidf, "minilm+linear": embeddings, "fasttext": fasttext, "setfit": setfit}


def ours(rows: list[Row], test: list[Row], folder: Path, init: str) -> float:
    """`qkv train table.csv`, then `qkv eval` on the test rows."""
    write(folder / "table.csv", rows)
    write(folder / "test.csv", test)
    command = [sys.executable, "-P", "-m", "qkv.cli.main"]
    settings = ["--set", f"init={init}"] if init else []
    subprocess.run([*command, "train", "table.csv", *settings], cwd=folder, check=True, capture_output=True)
    found = qkv.evaluate(folder / "runs" / "table", str(folder / "test.csv"))["all"]
    if isinstance(found, ClassificationMetrics):
        return found.accuracy
    return found.values["pearson"]


def measured(name: str, rows: list[Row], test: list[Row], init: str) -> tuple[float, float] | None:
    """Score and seconds of one model on one table; None where it is not installed or not for this table."""
    if name in ("fasttext", "setfit") and "score" in rows[0]:
        return None
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        try:
            found = ours(rows, test, Path(folder), init) if name == "qkv" else PEERS[name](rows, test, Path(folder))
        except ImportError as error:
            print(f"{name}: not installed ({error})", file=sys.stderr)
            return None
        return found, time.perf_counter() - began


@dataclass
class Kept:
    """Results of finished tables, as JSON lines; without a file, nothing is kept."""

    path: Path | None

    def find(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The result with this key."""
        lines = self.path.read_text("utf-8").splitlines() if self.path and self.path.exists() else []
        return next((one for line in lines if key.items() <= (one := json.loads(line)).items()), None)

    def add(self, result: dict[str, Any]) -> None:
        if self.path:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(result) + "\n")


def results(train: list[Row], test: list[Row], kept: Kept, seeds: int, key: dict[str, Any]) -> list[dict[str, Any]]:
    """The result of one model for each seed, which draws the rows of a table."""
    found = list[dict[str, Any]]()
    for seed in range(seeds):
        own = {**key, "seed": seed}
        known = kept.find(own)
        if known is None:
            table = random.Random(100 + seed).sample(train, key["rows"])
            measurement = measured(key["model"], table, test, key["init"])
            if measurement is None:
                return []
            known = {**own, "score": measurement[0], "seconds": measurement[1]}
            kept.add(known)
        found.append(known)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="*", choices=TABLES, default=list(TABLES))
    parser.add_argument("--rows", nargs="*", type=int, default=[*SIZES, 0], help="0: all")
    parser.add_argument("--init", default="", help="the encoder; default: what `qkv train` chooses")
    parser.add_argument("--seeds", type=int, default=3, help="up to 1,000 rows; one above")
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--keep", type=Path, metavar="FILE", help="results of finished tables, to go on from")
    chosen = parser.parse_args()
    for name in chosen.data:
        train, test = TABLES[name]()
        for size in sorted({size or len(train) for size in chosen.rows if size <= len(train)}):
            for model in ["qkv", *chosen.peers]:
                init = chosen.init if model == "qkv" else ""
                key = {"data": name, "rows": size, "model": model, "init": init}
                found = results(train, test, Kept(chosen.keep), chosen.seeds if size <= 1000 else 1, key)
                if found:
                    scores = [round(one["score"], 4) for one in found]
                    seconds = round(max(one["seconds"] for one in found), 1)
                    mean = round(statistics.mean(one["score"] for one in found), 4)
                    print(json.dumps({**key, "score": mean, "scores": scores, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
