"""One recipe with several seeds: how much of a metric is chance.

    .venv/bin/python benchmarks/seeds.py reviews-quick --seeds 5 [--set train.epochs=1]

Trains into runs/seeds/RECIPE-SEED with seeds 1, 2, ...; the same command resumes what was stopped, and only reads what
is finished. Accuracy and calibration error are of the held-out IMDB reviews (all test rows, where there is no such
group). Of the two sentences, the probability of positive, raw and calibrated. Nothing is selected on any of these.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

from table import head, row, run_main, say
from template_sentences import stories

from qkv import api
from qkv.config import recipes
from qkv.config.recipe import Recipe
from qkv.metrics import ClassificationMetrics
from qkv.schema import UserError
from qkv.training.trainer import open_trainer

GROUP = "imdb"


def metrics_of(recipe: Recipe, folder: Path) -> list[float]:
    """Train (or resume, or only open), and test: accuracy, ECE, then both sentences raw and calibrated."""
    with open_trainer(recipe, folder, say) as trainer:
        for report in trainer.reports():
            if report.validation is not None:
                accuracy = report.validation.metrics["accuracy"]
                say(f"{folder}: step {report.step} of {report.steps}, validation accuracy {accuracy:.4f}")
        found = trainer.finish()
    if found is None:
        raise UserError(f"{folder}: its test set is empty")
    tested = found.get(GROUP, found["all"])
    assert isinstance(tested, ClassificationMetrics), "the task is classify"
    probabilities = [value for one in stories(api.load(folder)) for value in (one.raw, one.calibrated)]
    return [tested.accuracy, tested.ece, *probabilities]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", help="a name or a TOML file")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in qkv train")
    parser.add_argument("-o", "--folder", type=Path, default=Path("runs/seeds"))
    options = parser.parse_args()
    name = Path(options.recipe).name.removesuffix(".toml")
    columns = ["awesome, raw", "awesome, calibrated", "horrible, raw", "horrible, calibrated"]
    measured = []
    head("seed", "accuracy", "ECE", *columns)
    for seed in range(1, options.seeds + 1):
        recipe = recipes.resolve(options.recipe, [*options.set, f"seed={seed}"])
        if recipe.task != "classify":
            raise UserError(f"{options.recipe}: has task = {recipe.task!r}; accepted: classify")
        measured.append(metrics_of(recipe, options.folder / f"{name}-{seed}"))
        row(seed, *(f"{value:.4f}" for value in measured[-1]))
    row("median", *(f"{median(column):.4f}" for column in zip(*measured, strict=True)))


if __name__ == "__main__":
    run_main(main)
