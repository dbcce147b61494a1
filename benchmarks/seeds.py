"""One recipe with several seeds: how much of a figure is chance.

    .venv/bin/python benchmarks/seeds.py reviews-quick --seeds 5 [--set train.epochs=1]

Trains into runs/seeds/RECIPE-SEED with seeds 1, 2, ...; the same command goes on where it stopped, and only reads what
is finished. Accuracy and calibration error are of the held-out IMDB reviews (all test rows, where there is no such
group). Of the two sentences, the probability of positive, raw and calibrated. Nothing is selected on any of these.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from table import head, row, say
from template_sentences import stories

from qkv import api
from qkv.config import recipes
from qkv.config.recipe import Recipe
from qkv.metrics import ClassificationMetrics
from qkv.schema import UserError
from qkv.train.finish import finish

GROUP = "imdb"


def figures(recipe: Recipe, folder: Path) -> list[float]:
    """Train (or go on, or only open), and measure: accuracy, ECE, then both sentences raw and calibrated."""
    with api.training(recipe, folder, say) as session:
        for report in session.reports():
            if report.evaluation is not None:
                say(
                    f"{folder}: step {report.step} of {report.steps}, {report.evaluation.figures['accuracy']:.4f} right"
                )
        scores = finish(session)
    if scores is None:
        raise UserError(f"{folder}: the recipe leaves no test rows to measure on")
    found = scores.get(GROUP, scores["all"])
    if not isinstance(found, ClassificationMetrics):
        raise UserError(f"{folder}: is no classifier; accepted: recipes with task = 'classify' and labels")
    told = [share for one in stories(api.load(folder)) for share in (one.raw, one.calibrated)]
    return [found.accuracy, found.ece, *told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", help="a name or a TOML file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in qkv train")
    parser.add_argument("-o", "--folder", type=Path, default=Path("runs/seeds"))
    asked = parser.parse_args()
    name = Path(asked.recipe).name.removesuffix(".toml")
    columns = ["awesome, raw", "awesome, calibrated", "horrible, raw", "horrible, calibrated"]
    measured = []
    head("seed", "accuracy", "ECE", *columns)
    for seed in range(1, asked.seeds + 1):
        recipe = recipes.resolve(asked.recipe, [*asked.set, f"seed={seed}"])
        measured.append(figures(recipe, asked.folder / f"{name}-{seed}"))
        row(seed, *(f"{value:.4f}" for value in measured[-1]))
    row("median", *(f"{median(column):.4f}" for column in zip(*measured, strict=True)))


if __name__ == "__main__":
    main()
