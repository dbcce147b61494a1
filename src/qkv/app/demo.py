"""`qkv demo`: real reviews, the bundled encoder fine-tuned on them now, two sentences it has never seen, and what
decided."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding

from qkv import api, draw, recipes
from qkv.app.training import show_findings, train
from qkv.explain import deciding_words
from qkv.learn.metrics import Findings

RECIPE = "reviews-finetune-quick"
SENTENCES = (
    "Christopher Nolan's Inception is an awesome film",
    "The film I watched yesterday is a horrible one",
)


def show_demo(console: Console, output: Path) -> int:
    """The main job from begin to end. Interrupted, the same command goes on."""
    console.print("[bold]A Transformer learns what real movie reviews say, on this machine, now.[/bold]")
    console.print(f"{recipes.promise(RECIPE)}\n", highlight=False)
    code, scores = train(recipes.resolve(RECIPE), output)
    if code:
        return code
    predictor = api.load(output)
    if scores is not None:
        _show_figures(console, scores)
    console.rule("[bold]Two sentences it has never seen", align="left")
    temperature = predictor.reading.temperature
    for sentence, answer in zip(SENTENCES, predictor.predict(SENTENCES), strict=True):
        assert answer.probabilities is not None
        calibrated, raw = answer.probabilities, raw_probabilities(answer.probabilities, temperature)
        name = list(calibrated)[-1]
        console.print(
            f"\n{sentence}\n  {name}: [bold]{calibrated[name]:.4f}[/bold] calibrated, {raw[name]:.4f} raw",
            highlight=False,
        )
        words = deciding_words(predictor, sentence)
        console.print(Padding(draw.coloured_words([(word.word, word.score) for word in words]), (0, 2)))
    console.print(
        "\nWords are marked by integrated gradients: (+) and blue speak for the answer, (-) and orange against it.\n"
        f"Calibrated: scores divided by {temperature:.2f}, found on held-out reviews, "
        "so that 0.9 means right 9 times in 10."
    )
    console.print(_next(escape(str(output))), highlight=False)
    return 0


def raw_probabilities(calibrated: dict[str, float], temperature: float) -> dict[str, float]:
    """What the model said before its scores were divided by the temperature."""
    powers = {name: share**temperature for name, share in calibrated.items()}
    return {name: power / sum(powers.values()) for name, power in powers.items()}


def _show_figures(console: Console, findings: Findings) -> None:
    console.rule("[bold]On reviews that were held out", align="left")
    show_findings(console, findings, details=False)


def _next(output: str) -> str:
    return (
        f"\n[bold]Next[/bold]\n"
        f"  qkv predict {output} 'What a waste of a good cast.'    ask it anything\n"
        f"  qkv eval {output}                                      all figures, and how far its probabilities hold\n"
        f"  {output}/curves.png                                    how it learnt\n"
        f"  {output}/README.md                                     its card\n"
        f"  qkv predict bundled-encoder 'What a \\[MASK] film!'        the encoder it began with: it fills in words\n"
        f"  qkv train reviews-quick                                 the same from nothing\n"
        f"  qkv train my.toml                                       your own CSV: data.corpus, data.text, data.label\n"
        f"  qkv explain                                             one attention head, number by number"
    )
