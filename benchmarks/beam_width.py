"""What a wider beam is worth: log-probability, length and BLEU of translations against the beam width.

    .venv/bin/python benchmarks/beam_width.py RUN --data multi30k-en-de-val -o beam-width.png

The mean log-probability is of the best output as the search ranks it (with the length penalty); `length ratio` is the
number of words of all outputs over that of the references. BLEU is sacreBLEU's, cased.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from statistics import mean

from sacrebleu.metrics.bleu import BLEU
from table import head, row, run_main, say

from qkv import runtime
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.corpus import open_corpus
from qkv.corpus.files import Row
from qkv.hub import path_of
from qkv.plots import COLOURS, MARKS, STYLE
from qkv.predict.predictor import load_predictor
from qkv.tasks.translate import TRANSLATE

Point = tuple[int, float, float]  # width, mean log-probability, BLEU


def read_pairs(corpus: str, most: int) -> list[Row]:
    """The first pairs of a corpus that have a source and a target."""
    pairs = open_corpus(DataConfig(corpus=corpus), TRANSLATE.format(Recipe()), say).rows()
    return list(itertools.islice((one for _, one in pairs if one.text and one.pair), most))


def measured(options: argparse.Namespace) -> list[Point]:
    model = load_predictor(path_of(str(options.run)))
    pairs = read_pairs(options.data, options.sentences)
    references, bleu = [one.pair or "" for one in pairs], BLEU()
    expected = sum(len(text.split()) for text in references)
    print(f"{len(pairs)} sentences of {options.data}, length penalty {options.length_penalty}")
    head("beam", "mean log-probability", "length ratio", "BLEU", "seconds")
    points = []
    for width in options.widths:
        start = time.perf_counter()
        found = model.predict([one.text for one in pairs], beam=width, length_penalty=options.length_penalty)
        seconds = time.perf_counter() - start
        outputs = [one.output or "" for one in found]
        log_probability = mean(one.log_probability or 0.0 for one in found)
        length = sum(len(text.split()) for text in outputs) / expected
        points.append((width, log_probability, bleu.corpus_score(outputs, [references]).score))
        row(width, f"{log_probability:.3f}", f"{length:.3f}", f"{points[-1][2]:.2f}", f"{seconds:.0f}")
    print(f"signature: {bleu.get_signature()}")
    return points


def draw(path: Path, points: list[Point], title: str) -> None:
    """Two panels over the width, on a logarithmic axis: what the search finds, and what it is worth."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(8.0, 3.8), layout="constrained")
        figure.suptitle(title, fontsize=13)
        widths = [width for width, _, _ in points]
        for number, (axes, name) in enumerate(
            zip(figure.subplots(1, 2), ("log-probability of the output (mean)", "BLEU"), strict=True)
        ):
            axes.plot(
                widths, [point[1 + number] for point in points],
                color=COLOURS[number], marker=MARKS[number], linewidth=1.8,
            )  # fmt: skip
            axes.set_xscale("log")
            axes.set_xticks(widths)
            axes.xaxis.set_major_formatter("{x:,.0f}")
            axes.minorticks_off()
            axes.set_xlabel("beam width")
            axes.set_ylabel(name)
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, metavar="RUN", help="a translation model: a run, a folder or a bundled model")
    parser.add_argument("--data", default="multi30k-en-de-val", help="a catalogue name, or aligned files: A -> B")
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--widths", type=int, nargs="+", default=[1, 2, 3, 5, 10, 20])
    parser.add_argument("--length-penalty", type=float, default=0.6)
    parser.add_argument("-o", "--picture", type=Path, help="a PNG or SVG to draw")
    options = parser.parse_args()
    runtime.start()
    points = measured(options)
    if options.picture is not None:
        draw(options.picture, points, "A wider beam finds more probable outputs; better ones, up to a point")


if __name__ == "__main__":
    run_main(main)
