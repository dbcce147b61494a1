"""Pre-train an encoder on plain text, then fine-tune it as a classifier of few labelled rows.

usage: python examples/pretrain_finetune.py
"""

from __future__ import annotations

import qkv

WEATHER = {"rain": "umbrella", "sun": "hat", "snow": "coat"}
SMALL = [
    "runtime.threads=1",
    "data.length=32",
    "train.warmup=20",
    "train.batch_tokens=512",
    "train.learning_rate=2e-3",
    "train.dropout=0.0",
]


def main() -> None:
    with open("weather.txt", "w") as file:  # documents are separated by blank lines
        for number in range(300):
            weather, thing = list(WEATHER.items())[number % 3]
            file.write(f"Today brings {weather}. We take the {thing} with us. It was day {number}.\n\n")
    encoder = qkv.train(
        "bert-mini-reviews",
        "runs/weather",
        settings=[
            *SMALL, "data.corpus=weather.txt", "tokenizer.vocab_size=200", "model.width=64", "model.heads=2",
            "train.next_sentence=false", "train.steps=300", "train.eval_every=300",
        ],
    )  # fmt: skip
    filled = encoder.predict(["Today brings rain. We take the [MASK] with us."], top=3)[0]
    print("tokens for [MASK]:", ", ".join(sorted(one["token"] for one in filled.alternatives or [])))

    with open("labels.csv", "w") as file:
        file.write("text,label\n")
        for number in range(120):
            weather, thing = list(WEATHER.items())[number % 3]
            file.write(f"we saw {weather} on day {number},{thing}\n")
    with open("finetune.toml", "w") as file:
        file.write('task = "classify"\ninit = "runs/weather"\n[data]\ncorpus = "labels.csv"\n')
    classifier = qkv.train("finetune.toml", "runs/what-to-take", settings=[*SMALL, "train.epochs=20"])
    print("fine-tuned:", classifier.predict(["we saw snow on day 7"])[0].label)


if __name__ == "__main__":
    main()
