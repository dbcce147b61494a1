"""`qkv demo`: fine-tune the bundled encoder on real movie reviews, test it, and ask it about two sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from qkv import terminal
from qkv.cli.console import plain_table, say, stdout

if TYPE_CHECKING:
    from qkv.metrics import TestMetrics
    from qkv.predict.predictor import Predictor
    from qkv.training.comparison import BaselineComparison

RECIPE = "reviews-finetune-quick"
SENTENCES = (
    "Christopher Nolan's Inception is an awesome film",
    "The film I watched yesterday is a horrible one",
)
SHARED_FILMS = (
    "These test reviews are about films that training reviews are about too, so they do not say how good either model "
    "is on other films (docs/log.md, 2026-11-18)."
)


def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="RUN", help="Run folder.")] = Path("runs/demo"),
) -> None:
    """Fine-tune on real movie reviews, here and now, and classify two new sentences. Resumes when interrupted."""
    from qkv import api
    from qkv.cli.eval import show_metrics
    from qkv.cli.train import run_training
    from qkv.config import recipes

    console = stdout()
    console.print("[bold]A Transformer learns to classify real movie reviews, on this machine, now.[/bold]")
    console.print(f"{recipes.promise(RECIPE)}\n")
    code, found = run_training(recipes.resolve(RECIPE), output)
    if code:
        raise typer.Exit(code)
    if found is not None:
        console.rule("[bold]On the test set", align="left")
        show_metrics(console, found, details=False)
        show_linear(console, found, linear_by_group(output))
    _show_sentences(console, api.load(output))
    console.print(_next(escape(str(output))))


def linear_by_group(run: Path) -> dict[str, BaselineComparison]:
    """The linear model on the test rows of a run, in all and by group."""
    from qkv.autotrain.ladder import baselines_by_group
    from qkv.run.folder import Run
    from qkv.training.trainer import open_run_data

    say("comparing with a linear model (TF-IDF of words and word pairs, logistic regression): about half a minute")
    recipe = Run(run).recipe
    assert recipe is not None, "it has just been trained"
    return baselines_by_group(open_run_data(recipe, Run(run))[0])


def show_linear(console: Console, found: TestMetrics, compared: dict[str, BaselineComparison]) -> None:
    """The accuracy of both models, and which of them is better on these rows."""
    from qkv.metrics import ClassificationMetrics

    table = plain_table(rows="left", count="right", Transformer="right")
    table.add_column("linear model", justify="right")
    for group, one in compared.items():
        ours = found[group]
        assert isinstance(ours, ClassificationMetrics)
        name = "all test rows" if group == "all" else escape(group)
        table.add_row(name, f"{one.rows:,}", f"{ours.accuracy:.4f}", f"{one.rungs[1].score:.4f}")
    console.print("\nAccuracy beside a linear model on the same rows (TF-IDF of words and word pairs):")
    console.print(table)
    console.print(f"{compared['all'].verdict_on(found)}\n{SHARED_FILMS}", markup=False, soft_wrap=True)


def _show_sentences(console: Console, predictor: Predictor) -> None:
    from qkv.calibration import uncalibrated
    from qkv.explain.attribution import deciding_words

    console.rule("[bold]Two sentences it has never seen", align="left")
    temperature = predictor.input_options.temperature
    for sentence, one in zip(SENTENCES, predictor.predict(SENTENCES), strict=True):
        assert one.probabilities is not None
        raw_C = uncalibrated(list(one.probabilities.values()), temperature)
        label = list(one.probabilities)[-1]
        calibrated = f"[bold]{one.probabilities[label]:.4f}[/bold] calibrated"
        console.print(f"\n{sentence}\n  {label}: {calibrated}, {raw_C[-1]:.4f} raw")
        words = deciding_words(predictor, sentence)
        console.print(Padding(terminal.coloured_words([(word.word, word.score) for word in words]), (0, 2)))
    console.print(
        "\nWords are marked by integrated gradients: (+) and blue are for the predicted label, (-) and orange against "
        f"it.\nCalibrated: logits divided by {temperature:.2f} (temperature scaling on the validation set), so that 9"
        " of 10 predictions with probability 0.9 are right."
    )


def _next(output: str) -> str:
    return (
        f"\n[bold]Next[/bold]\n"
        f"  qkv predict {output} 'What a waste of a good cast.'    classify any text\n"
        f"  qkv eval {output}                                      all metrics, and a reliability diagram\n"
        f"  {output}/curves.png                                    learning curves\n"
        f"  {output}/README.md                                     the model card\n"
        f"  qkv predict bundled-encoder 'What a \\[MASK] film!'        the pre-trained encoder fills in masked tokens\n"
        f"  qkv train reviews-quick                                 the same from scratch\n"
        f"  qkv train my.csv                                        your own table of texts and labels\n"
        f"  qkv explain                                             one attention head, number by number"
    )
