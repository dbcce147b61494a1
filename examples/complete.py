"""Complete a text with the bundled language model: greedy, sampled with nucleus sampling, and streamed.

usage: python examples/complete.py ["Prompt"]
"""

from __future__ import annotations

import sys

import qkv


def main() -> None:
    prompt = sys.argv[1] if len(sys.argv) > 1 else "It was a"
    model = qkv.load("bundled-gpt")
    print("greedy: ", prompt + (model.predict([prompt], max_tokens=20)[0].output or ""))
    for seed in (1, 2):
        sampled = model.predict([prompt], max_tokens=20, temperature=0.8, top_p=0.9, seed=seed)[0]
        print(f"seed {seed}: ", prompt + (sampled.output or ""))
    print("streamed:", prompt, end="")
    for piece in model.stream(prompt, max_tokens=20, temperature=0.8, top_p=0.9, seed=3):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
