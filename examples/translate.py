"""Translate: beam search with the bundled English-French model, and a model of your own from a table of pairs.

usage: python examples/translate.py
"""

from __future__ import annotations

import qkv

NUMBERS = {"one": "eins", "two": "zwei", "three": "drei", "four": "vier", "five": "fünf"}


def main() -> None:
    french = qkv.load("bundled-en-fr")
    for one in french.predict(["I am hungry.", "Where is the station?"], beam=5, best=2):
        others = [other["output"] for other in one.alternatives or []][1:]
        print(f"{one.text} -> {one.output}   (second: {others[0]})")

    with open("numbers.tsv", "w", encoding="utf-8") as file:
        file.write("text\ttarget\n")
        for number in range(900):
            words = [list(NUMBERS)[number // 5**place % 5] for place in range(1 + number % 4)]
            file.write(" ".join(words) + "\t" + " ".join(NUMBERS[word] for word in words) + "\n")
    own = qkv.train(
        "small-translator",
        "runs/numbers",
        settings=[
            "runtime.threads=1", "data.corpus=numbers.tsv", "data.length=16", "tokenizer.vocab_size=300",
            "model.width=32", "model.heads=2", "model.layers=1",
            "train.steps=150", "train.learning_rate=5e-3", "train.batch_tokens=1024",
            "train.warmup=20", "train.dropout=0.0", "decode.beam=3",
        ],
    )  # fmt: skip
    print(f"two five one -> {own.predict(['two five one'])[0].output}")


if __name__ == "__main__":
    main()
