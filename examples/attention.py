"""Look inside attention: which source tokens each output token of a translation attends to, as a picture.

usage: python examples/attention.py ["English sentence"] [-o attention.png]
"""

from __future__ import annotations

import argparse

import torch
from matplotlib.figure import Figure

import qkv
from qkv.model import EncoderDecoder, Recorder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentence", nargs="?", default="My sister speaks French very well.")
    parser.add_argument("-o", "--output", default="attention.png")
    options = parser.parse_args()

    predictor = qkv.load("bundled-en-fr")
    model, tokenizer = predictor.model, predictor.tokenizer
    assert isinstance(model, EncoderDecoder)
    output = predictor.predict([options.sentence], beam=5)[0].output or ""
    source = tokenizer.encode([options.sentence])[0].ids
    target = [predictor.special_tokens.start or 0, *tokenizer.encode([output])[0].ids]

    recorder = Recorder()  # an attention function that keeps the weights it computes
    with torch.no_grad():
        model(torch.tensor([source]), torch.tensor([target]), attend=recorder)
    cross_HLS = recorder.weights[-1][0]  # cross-attention of the last layer: heads, target, source

    names = [[tokenizer.token(one) for one in ids] for ids in (source, target[1:])]
    print(f"{options.sentence} -> {output}")
    for position, token in enumerate(names[1]):
        weights_S = cross_HLS[:, position].mean(0)
        print(f"{token:>12}  <-  {names[0][int(weights_S.argmax())]} ({weights_S.max():.2f})")
    draw(options.output, cross_HLS[:, : len(names[1])], *names)
    print(f"picture: {options.output}")


def draw(path: str, cross_HLS: torch.Tensor, source: list[str], target: list[str]) -> None:
    """The mean over the heads, and each head."""
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    figure.suptitle("Cross-attention of the last layer: each output token (row) over the source tokens (columns)")
    halves = figure.subfigures(1, 2, width_ratios=(1.15, 1), squeeze=False)
    axes = halves[0, 0].subplots()
    axes.imshow(cross_HLS.mean(0), cmap="Blues", vmin=0, vmax=1)
    axes.set_xticks(range(len(source)), source, rotation=60, ha="right")
    axes.set_yticks(range(len(target)), target)
    axes.set_title("mean of all heads")
    for number, small in enumerate(halves[0, 1].subplots(2, -(-len(cross_HLS) // 2), squeeze=False).flat):
        small.set_axis_off()
        if number < len(cross_HLS):
            small.imshow(cross_HLS[number], cmap="Blues", vmin=0, vmax=1)
            small.set_title(f"head {number + 1}", fontsize=10)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
