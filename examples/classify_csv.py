"""Classify a CSV: train a text classifier on two columns, test it, use it.

usage: python examples/classify_csv.py [FILE TEXT_COLUMN LABEL_COLUMN]

Without a file it writes a small one, `tickets.csv`, to train on.
"""

from __future__ import annotations

import csv
import random
import sys

import qkv
from qkv.metrics import ClassificationMetrics


def write_tickets(path: str) -> None:
    """600 support tickets for two teams."""
    dice = random.Random(0)
    topics = {"billing": ["invoice", "refund", "payment"], "support": ["crash", "error", "bug"]}
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["message", "team"])
        for number in range(600):
            team = dice.choice(sorted(topics))
            rows.writerow([f"ticket {number}: about the {dice.choice(topics[team])} of last week", team])


def main() -> None:
    if len(sys.argv) == 4:
        path, text, label = sys.argv[1:]
    else:
        path, text, label = "tickets.csv", "message", "team"
        write_tickets(path)
    model = qkv.train(
        "reviews-quick",
        "runs/tickets",
        settings=[
            f"data.corpus={path}", f"data.text={text}", f"data.label={label}", "data.group=none", "data.length=32",
            "runtime.threads=1", "tokenizer.vocab_size=300", "train.epochs=6", "train.batch_tokens=512",
            "train.warmup=10",
        ],
        say=lambda sentence: print(sentence, file=sys.stderr),
    )  # fmt: skip
    metrics = qkv.evaluate("runs/tickets")["all"]
    assert isinstance(metrics, ClassificationMetrics)
    print(f"test accuracy {metrics.accuracy:.2f} on {metrics.rows} rows")
    print(model.predict(["My payment failed"])[0])


if __name__ == "__main__":
    main()
