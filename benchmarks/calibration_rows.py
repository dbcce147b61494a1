"""How many validation rows temperature scaling needs, and how many test rows a calibration error needs.

    .venv/bin/python benchmarks/calibration_rows.py --data ../shared/data

A classifier is fine-tuned from `bundled-encoder` on some rows of SST-2 (sentences) and of CoLA, without validation
rows, so its probabilities are its own. The other rows have logits and labels. From these, N are drawn as validation
rows, a temperature is fitted on them, and it is judged on the rows that were not drawn: change of log loss and
expected calibration error (ECE, 15 bins), mean over the draws, and the share of draws in which the log loss grows.
Beside them, logits whose best temperature is known: labels are drawn from softmax(logits / T).

`ML` is the temperature of least cross-entropy; `shrunk K` has K prior rows (`calibration.fit_temperature`).
The last table has the ECE of logits that are perfectly calibrated, as N test rows show it. It should be 0.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from table import head, row, run_main, say

from qkv import calibration
from qkv.schema import UserError
from qkv.sklearn import TransformerClassifier

ROWS = (10, 20, 30, 50, 100, 200, 300, 500, 1000)
PRIORS = (0, 10, 20, 50)
SETTINGS = ["init=bundled-encoder", "data.length=64", "train.batch_tokens=1024", "train.warmup=20",
            "train.learning_rate=3e-4", "train.epochs=8"]  # fmt: skip
Judged = tuple[NDArray[np.float64], NDArray[np.int64]]  # logits (N, C) and labels (N)


def sentences(data: Path, name: str) -> tuple[list[str], list[int]]:
    file = data / {"SST-2": "sst2/stsa.binary.train.gz", "CoLA": "glue/CoLA/train.tsv.gz"}[name]
    if not file.exists():
        raise UserError(f"{file}: is missing; name the folder of real data with --data or QKV_DATA")
    lines = gzip.decompress(file.read_bytes()).decode("utf-8").splitlines()
    if name == "SST-2":
        return [line[2:] for line in lines], [int(line[0]) for line in lines]
    rows = list(csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE))
    return [row[3] for row in rows], [int(row[1]) for row in rows]


def fine_tuned(data: Path, name: str, trained_on: int) -> Judged:
    """Logits and labels of the rows that a classifier was not trained on."""
    texts, labels = sentences(data, name)
    say(f"{name}: fine-tuning on {trained_on:,} of {len(texts):,} rows")
    order = np.random.default_rng(0).permutation(len(texts))
    chosen, rest = order[:trained_on], order[trained_on:]
    model = TransformerClassifier(settings=SETTINGS, random_state=1)
    model.fit([texts[n] for n in chosen], [labels[n] for n in chosen])
    shares = model.predict_proba([texts[n] for n in rest])
    return np.log(np.maximum(shares, 1e-300)), np.array(labels)[rest]


def known(temperature: float, classes: int = 2, rows: int = 20_000) -> Judged:
    """Logits whose best temperature this is."""
    random = np.random.default_rng(classes)
    logits = random.normal(0.0, 2.0, (rows, classes)) * temperature
    levels = calibration.softmax(logits / temperature).cumsum(1)
    return logits, (random.random((rows, 1)) > levels[:, :-1]).sum(1)


def judge(logits: NDArray[np.float64], labels: NDArray[np.int64], temperature: float) -> tuple[float, float]:
    bins = calibration.reliability(calibration.softmax(logits / temperature), labels)
    return calibration.cross_entropy(logits, labels, temperature), calibration.ece(bins)


def show(name: str, judged: Judged, draws: int) -> None:
    logits, labels = judged
    loss, error = judge(logits, labels, 1.0)
    best = calibration.fit_temperature(logits, labels, prior_rows=0)
    print(f"\n{name}: {len(labels):,} rows, log loss {loss:.4f}, ECE {error:.4f}, best temperature {best:.2f}\n")
    columns = [f"{'ML' if not prior else f'shrunk {prior}'}: {what}" for prior in PRIORS
               for what in ("log loss", "ECE", "worse in", "temperature")]  # fmt: skip
    head("validation rows", *columns)
    for count in ROWS:
        found = np.array([_drawn(logits, labels, count, seed) for seed in range(draws)])  # draws, priors, 3
        cells = []
        for number in range(len(PRIORS)):
            losses, errors, temperatures = found[:, number].T
            spread = f"{np.quantile(temperatures, 0.05):.2f} to {np.quantile(temperatures, 0.95):.2f}"
            cells += [f"{losses.mean():+.4f}", f"{errors.mean():+.4f}", f"{(losses > 0).mean():.0%}", spread]
        row(f"{count:,}", *cells)


def _drawn(logits: NDArray[np.float64], labels: NDArray[np.int64], count: int, seed: int) -> list[list[float]]:
    """Changes of log loss and ECE, and the temperature, for each number of prior rows."""
    order = np.random.default_rng(seed).permutation(len(labels))
    mine, rest = order[:count], order[count : count + 4000]
    before = judge(logits[rest], labels[rest], 1.0)
    found = []
    for prior in PRIORS:
        temperature = calibration.fit_temperature(logits[mine], labels[mine], prior_rows=prior)
        after = judge(logits[rest], labels[rest], temperature)
        found.append([after[0] - before[0], after[1] - before[1], temperature])
    return found


def _shown_ece(judged: Judged, count: int, draws: int) -> float:
    chosen = [np.random.default_rng(seed).permutation(len(judged[1]))[:count] for seed in range(draws)]
    return float(np.mean([judge(judged[0][some], judged[1][some], 1.0)[1] for some in chosen]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("QKV_DATA", "../shared/data"))
    parser.add_argument("--draws", type=int, default=200)
    options = parser.parse_args()
    data = Path(options.data)
    sets = {
        "SST-2, trained on 1,000": fine_tuned(data, "SST-2", 1000),
        "CoLA, trained on 2,000": fine_tuned(data, "CoLA", 2000),
        "known temperature 1": known(1.0),
        "known temperature 1.3": known(1.3),
        "known temperature 2, ten classes": known(2.0, 10),
    }
    for name, judged in sets.items():
        show(name, judged, options.draws)
    print("\nECE of calibrated probabilities, mean over draws\n")
    head("test rows", "two classes", "ten classes")
    calibrated = [known(1.0, classes) for classes in (2, 10)]
    for count in ROWS:
        row(f"{count:,}", *(f"{_shown_ece(one, count, options.draws):.3f}" for one in calibrated))


if __name__ == "__main__":
    run_main(main)
