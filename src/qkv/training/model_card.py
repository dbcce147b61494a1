"""The model card of a finished run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping

from qkv import __version__, runtime
from qkv.config.recipe import Recipe
from qkv.corpus import catalog
from qkv.corpus.corpus import BOTH
from qkv.metrics import Metrics, TestMetrics
from qkv.training.build import TrainingData
from qkv.training.loop import Progress


def write_card(
    name: str,
    data: TrainingData,
    progress: Progress,
    architecture: str,
    hashes: Mapping[str, str],
    found: TestMetrics | None,
) -> str:
    """README.md of a finished run."""
    recipe = data.recipe
    machine = "\n".join(f"| {key} | {value} |" for key, value in sorted(runtime.fingerprint().items()))
    return f"""# {name}

{data.task.title(data.prepared, found)}, trained with qkv {__version__} on {datetime.date.today()}:
{progress.step:,} steps of at most {recipe.train.batch_tokens:,} tokens.
{recipe.model.family}, {recipe.model.layers} layers, {recipe.model.width} wide, {recipe.model.positions} positions;
loads as `{architecture}`.

## Test metrics

{_metrics(found)}

![Learning curves](curves.png)

## Data

`{recipe.data.corpus}`: {_rows(data)}. {_splits(data)} {_selection(data, progress)}
{_licences(recipe)}
sha256 of the data as read: `{data.prepared.data_hash}`

## Reproducibility

The same recipe gives the same weights to the bit where all of this is equal:

| what | value |
|---|---|
| seed | {recipe.seed} |
{_pretrained(recipe, hashes)}{machine}

## Usage

```python
import qkv

print(qkv.load("this folder").predict(["..."]))
```
"""


def _rows(data: TrainingData) -> str:
    counts = {split: sum(labels.values()) for split, labels in data.prepared.counts.items()}
    counts["train"] = data.training_rows
    return ", ".join(f"{count:,} {split}" for split, count in counts.items()) + f" {data.corpus.format.unit}"


def _licences(recipe: Recipe) -> str:
    """Source and licence of corpora from the catalogue."""
    known = [catalog.entries().get(name) for name in recipe.data.corpus.split(BOTH)]
    return "".join(f"\n- {one.name}: {one.source}. Licence: {one.licence}.\n" for one in known if one is not None)


def _pretrained(recipe: Recipe, hashes: Mapping[str, str]) -> str:
    if recipe.init == "none":
        return ""
    return f"| fine-tuned from | {recipe.init}, sha256 of its weights `{hashes.get('init')}` |\n"


def _splits(data: TrainingData) -> str:
    """Where the held-out rows came from."""
    own = [split for split in ("validation", "test") if getattr(data.recipe.data, split) != "split"]
    if own:
        return f"The {' and '.join(own)} set{'s are' if len(own) > 1 else ' is'} separate."
    end = " The end of each long document is held out." if data.corpus.format.split_long else ""
    return f"Validation and test rows are held out by a hash of the text.{end}"


def _selection(data: TrainingData, progress: Progress) -> str:
    """Which weights were kept, and what the held-out rows were used for."""
    validated = bool(data.prepared.rows("validation"))
    chosen = data.recipe.train.keep == "best" and validated
    kept = "with the lowest validation loss" if chosen else "of the last step"
    sentences = [f"The weights are those {kept} (step {progress.best_step:,} of {progress.step:,})."]
    if progress.averaged and chosen:
        sentences.append(f"From the last {progress.averaged} validations on, weights are the average of these so far.")
    elif progress.averaged:
        sentences = [f"The weights are the average of those at the last {progress.averaged} validations."]
    if data.task.calibrated and validated:
        folded = f"({progress.temperature:.4f}, folded into the last layer)"
        sentences.append(f"Temperature scaling {folded} was fitted on the validation set.")
    elif data.task.calibrated:
        sentences.append("The validation set is empty, so probabilities are not calibrated.")
    return " ".join([*sentences, "The test set is used for the metrics above only."])


def _metrics(found: TestMetrics | None) -> str:
    if found is None:
        return "The test set was empty, so the quality on new text is unknown."
    whole = found["all"]
    if isinstance(whole, Metrics):
        rows = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in whole.values.items()]
        rows += [f"| {name.replace('_', ' ')} | {words} |" for name, words in whole.details.items()]
        return "\n".join([f"On {whole.rows:,} test {whole.unit}:", "", "| metric | value |", "|---|---|", *rows])
    lines = ["| rows | count | accuracy | 95% interval | macro F1 | ECE |", "|---|---|---|---|---|---|"]
    for group, one in found.items():
        assert not isinstance(one, Metrics)
        low, high = one.interval
        values = f"{one.accuracy:.4f} | {low:.4f} to {high:.4f} | {one.f1:.4f} | {one.ece:.4f}"
        lines.append(f"| {group if group != 'all' else 'all test rows'} | {one.rows:,} | {values} |")
    return "\n".join(lines)
