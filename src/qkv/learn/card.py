"""What a run says about itself: the files beside the weights that others need, and its model card."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping

from qkv import __version__, runtime
from qkv.config import Recipe
from qkv.data.prepare import TARGET, Prepared
from qkv.data.source import BOTH
from qkv.learn.metrics import Figures, Findings, Scores
from qkv.learn.train import Progress
from qkv.text import catalog

SPECIALS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def root_files(prepared: Prepared, recipe: Recipe) -> dict[str, bytes]:
    """The tokenizer, in the two files that transformers reads."""
    special = {role: token for role, token in SPECIALS.items() if prepared.tokenizer.id_of(token) is not None}
    said = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": recipe.data.length, **special}
    second = {} if prepared.target is None else {TARGET: prepared.target.to_json().encode()}
    return {
        "tokenizer.json": prepared.tokenizer.to_json().encode(),
        "tokenizer_config.json": (json.dumps(said, indent=2) + "\n").encode(),
        **second,
    }


def write_card(
    name: str,
    recipe: Recipe,
    prepared: Prepared,
    progress: Progress,
    architecture: str,
    began_with: Mapping[str, str],
    findings: Findings | None,
) -> str:
    """README.md of a finished run."""
    machine = "\n".join(f"| {key} | {value} |" for key, value in sorted(runtime.fingerprint().items()))
    return f"""# {name}

{_what(recipe, prepared.labels, findings)}, trained with qkv {__version__} on {datetime.date.today()}:
{progress.step:,} steps of {recipe.train.batch_tokens:,} tokens or a little less.
{recipe.model.family}, {recipe.model.layers} layers, {recipe.model.width} wide, {recipe.model.positions} positions;
loads as `{architecture}`.

## Figures

{_figures(findings)}

![How it learnt](curves.png)

## Data

`{recipe.data.corpus}`: {_rows(recipe, prepared)}. {_parts(recipe, prepared, progress)}
{_licences(recipe)}
sha256 of the data as read: `{prepared.data_hash}`

## Exactness

The same recipe gives the same weights to the bit where all of this is equal:

| what | value |
|---|---|
| seed | {recipe.seed} |
{_went_on(recipe, began_with)}{machine}

## Use

```python
import qkv

print(qkv.load("this folder").predict(["..."]))
```
"""


def _rows(recipe: Recipe, prepared: Prepared) -> str:
    counts = {part: sum(labels.values()) for part, labels in prepared.counts.items()}
    if 0 < recipe.data.rows < counts["train"]:
        counts["train"] = recipe.data.rows
    return ", ".join(f"{count:,} {part}" for part, count in counts.items()) + (
        " documents" if recipe.task in ("fill", "complete") else " pairs" if recipe.task == "translate" else " rows"
    )


def _licences(recipe: Recipe) -> str:
    """Whose text it was, of corpora that the catalogue knows."""
    known = [catalog.entries().get(name) for name in recipe.data.corpus.split(BOTH)]
    return "".join(f"\n- {one.name}: {one.source}. Licence: {one.licence}.\n" for one in known if one is not None)


def _went_on(recipe: Recipe, began_with: Mapping[str, str]) -> str:
    return (
        f"| goes on from | {recipe.init}, sha256 of its weights `{began_with.get('init')}` |\n"
        if recipe.init != "none"
        else ""
    )


def _parts(recipe: Recipe, prepared: Prepared, progress: Progress) -> str:
    """Where held-out rows came from and what they did."""
    own = [part for part in ("validation", "test") if getattr(recipe.data, part) != "split"]
    by_place = " A long one is learnt from but for its end." if recipe.task == "complete" else ""
    said = "Files of their own: " + " and ".join(own) + ". " if own else f"Held out by a hash of the text.{by_place} "
    if not sum(prepared.counts["validation"].values()):
        uncalibrated = ", and probabilities are not calibrated" if recipe.model.head == "classes" else ""
        return f"{said}No validation rows: the last weights are kept{uncalibrated}."
    if progress.averaged and recipe.train.keep == "last":
        mean = f"The mean of the weights at the last {progress.averaged} evaluations is kept."
        return f"{said}{mean} Test rows served for the figures only."
    chosen = [f"the weights (step {progress.best_step:,} of {progress.step:,})"] if recipe.train.keep == "best" else []
    if recipe.model.head == "classes":
        chosen.append(f"the temperature {progress.temperature:.4f}, which is already folded into the last layer")
    if not chosen:
        return f"{said}The last weights are kept. Test rows served for the figures only."
    return f"{said}Validation rows chose {' and '.join(chosen)}. Test rows served for the figures only."


def _what(recipe: Recipe, labels: tuple[str, ...], findings: Findings | None) -> str:
    if recipe.task == "fill":
        whole = findings["all"] if findings else None
        judges = isinstance(whole, Figures) and "next_accuracy" in whole.values
        also = " and to tell the next sentence from a stranger" if judges else ""
        return f"An encoder that has learnt to fill in hidden words{also}"
    if recipe.task == "complete":
        return "A decoder that goes on with a text"
    if recipe.task == "translate":
        return "An encoder-decoder that translates"
    return "A model that gives grades" if recipe.model.head == "grade" else f"A classifier of {_either(labels)}"


def _either(labels: tuple[str, ...]) -> str:
    shown = ", ".join(labels[:10]) + (", ..." if len(labels) > 10 else "")
    return f"{len(labels)} labels ({shown})"


def _figures(findings: Findings | None) -> str:
    if findings is None:
        return "There were no test rows, so how good it is on new text is unknown."
    whole = findings["all"]
    if isinstance(whole, Figures):
        told = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in whole.values.items()]
        told += [f"| {name.replace('_', ' ')} | {words} |" for name, words in whole.said.items()]
        return "\n".join([f"On {whole.rows:,} held-out {whole.what}:", "", "| figure | value |", "|---|---|", *told])
    lines = ["| rows | count | accuracy | 95% interval | macro F1 | calibration error |", "|---|---|---|---|---|---|"]
    for group, s in findings.items():
        assert isinstance(s, Scores)
        low, high = s.interval
        figures = f"{s.accuracy:.4f} | {low:.4f} to {high:.4f} | {s.f1:.4f} | {s.ece:.4f}"
        lines.append(f"| {group if group != 'all' else 'all test rows'} | {s.rows:,} | {figures} |")
    return "\n".join(lines)
