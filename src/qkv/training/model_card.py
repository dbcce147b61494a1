"""The model card of a finished run."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence

from qkv import __version__, runtime
from qkv.calibration import FEWEST_TO_CALIBRATE, PRIOR_ROWS
from qkv.config.recipe import TEXT_HEADS, Recipe
from qkv.corpus import catalog
from qkv.corpus.corpus import BOTH, NONE, SPLIT
from qkv.exchange.native import KIND
from qkv.metrics import ClassificationMetrics, Metrics, TestMetrics
from qkv.run.folder import CONFUSION, CURVES, RELIABILITY
from qkv.training.build import TrainingData
from qkv.training.comparison import BaselineComparison
from qkv.training.loop import Progress

PICTURES = {CURVES: "Learning curves", RELIABILITY: "Reliability diagram", CONFUSION: "Confusion matrix"}
MOST_CLASSES = 100  # that have a line of their own
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "@": "&#64;"}
_ESCAPED = str.maketrans({**{sign: f"\\{sign}" for sign in "\\`*_[]|~#$"}, **_HTML})


def markdown(text: object) -> str:
    """Text from outside as one line of Markdown that shows it as it is: no markup, no HTML, no link."""
    line = "".join(sign if sign.isprintable() else " " for sign in str(text))
    shown = " ".join(line.split()).translate(_ESCAPED)
    return shown.replace("://", "&#58;//").replace("www.", "www&#46;")


def write_card(
    name: str,
    data: TrainingData,
    progress: Progress,
    architecture: str,
    hashes: Mapping[str, str],
    found: TestMetrics | None,
    *,
    pictures: Sequence[str] = (),
    comparison: BaselineComparison | None = None,
) -> str:
    """README.md of a finished run. `pictures` are the files beside it that it shows; the comparison says what simpler
    models reach on the same rows."""
    recipe = data.recipe
    machine = "\n".join(f"| {markdown(key)} | {markdown(value)} |" for key, value in _machine())
    return f"""# {markdown(name)}

{_summary(data, found, comparison)}

{markdown(data.task.title(data.prepared, found))}, trained with qkv {__version__} on {datetime.date.today()}:
{progress.step:,} steps of at most {recipe.train.batch_tokens:,} tokens.
{recipe.model.family}, {recipe.model.layers} layers, {recipe.model.width} wide, {recipe.model.positions} positions;
loads as `{architecture}`.

{_baselines(comparison)}## {_heading(comparison)}

{_metrics(found, "cross-validated" if _is_crossed(comparison) else "test")}

{_pictures(pictures)}

## Data

{markdown(recipe.data.corpus)}: {_rows(data)}. {_splits(data)}
{_licences(recipe)}
sha256 of the data as read: `{data.prepared.data_hash}`

## Selection and calibration

{_selection(data, progress)}

## Reproducibility

The same recipe gives the same weights to the bit where all of this is equal:

| what | value |
|---|---|
| seed | {recipe.seed} |
{_pretrained(recipe, hashes)}{machine}

## Usage

{_usage(recipe, architecture)}"""


def _machine() -> list[tuple[str, object]]:
    return sorted(runtime.fingerprint().items())


def _heading(comparison: BaselineComparison | None) -> str:
    return f"Metrics by {comparison.how}" if comparison is not None and _is_crossed(comparison) else "Test metrics"


def _is_crossed(comparison: BaselineComparison | None) -> bool:
    """Whether the metrics are those of a cross-validation."""
    return comparison is not None and comparison.figures is not None


def _summary(data: TrainingData, found: TestMetrics | None, comparison: BaselineComparison | None) -> str:
    """The first paragraph: what one would tell a colleague."""
    if found is None:
        return "Not tested: the test set was empty, so the quality on new text is unknown."
    unit, whole = data.corpus.format.unit, found["all"]
    rows = f"{unit} that it never saw" if data.recipe.data.test == SPLIT else f"{unit} of a separate test set"
    if data.recipe.data.test == NONE and comparison is not None:
        rows = f"{unit}, each predicted by a model that was not trained on it ({comparison.how})"
    warnings = [] if isinstance(whole, Metrics) else whole.warnings()
    lines = [f"**Warning: {markdown(sentence)}.**" for sentence in warnings]
    if warnings and data.recipe.data.balance == "none":
        lines.append('Where rare classes must be found, train with `data.balance = "weights"`.')
    verdict = comparison.verdict_on(found) if comparison is not None else None
    sentences = [*data.task.summary(found, rows), *([verdict] if verdict is not None else [])]
    return "\n\n".join([*lines, " ".join(markdown(sentence) for sentence in sentences)])


def _baselines(comparison: BaselineComparison | None) -> str:
    if comparison is None:
        return ""
    lines = "\n".join(f"- {markdown(sentence)}" for sentence in comparison.sentences())
    return f"## Baselines\n\nOn the same {comparison.rows:,} rows ({comparison.how}):\n\n{lines}\n\n"


def _pictures(names: Sequence[str]) -> str:
    return "\n\n".join(f"![{PICTURES[name]}]({name})" for name in names)


def _usage(recipe: Recipe, architecture: str) -> str:
    """On the command line, from Python, and without qkv."""
    pair = recipe.data.pair != "none" and recipe.model.head in TEXT_HEADS
    text, texts = (r"$'first text\tsecond text'", '[("...", "...")]') if pair else ('"..."', '["..."]')
    own = f"""RUN is this folder. On the command line:

```
qkv predict RUN {text}
```

From Python:

```python
import qkv

print(qkv.load("RUN").predict({texts}))
```

"""
    if architecture == KIND:
        return own + "No architecture of `transformers` has these parts, so this model is for qkv only.\n"
    arguments = '"...", "..."' if pair else '"..."'
    answer = {"classification": "model(**inputs).logits.softmax(-1)", "regression": "model(**inputs).logits"}.get(
        recipe.model.head, "model(**inputs)" if recipe.model.family == "encoder" else "model.generate(**inputs)"
    )
    return (
        own
        + f"""With `transformers`, after `qkv export RUN -o EXPORTED`:

```python
from transformers import AutoTokenizer, {architecture}

tokenizer, model = AutoTokenizer.from_pretrained("EXPORTED"), {architecture}.from_pretrained("EXPORTED").eval()
inputs = tokenizer({arguments}, return_tensors="pt", truncation=True)
print({answer})
```
"""
    )


def _rows(data: TrainingData) -> str:
    counts = {split: sum(labels.values()) for split, labels in data.prepared.counts.items()}
    counts["train"] = data.training_rows
    return ", ".join(f"{count:,} {split}" for split, count in counts.items()) + f" {data.corpus.format.unit}"


def _licences(recipe: Recipe) -> str:
    """Source and licence of corpora from the catalogue."""
    known = [catalog.entries().get(name) for name in recipe.data.corpus.split(BOTH)]
    lines = [f"- {one.name}: {one.source}. Licence: {one.licence}.\n" for one in known if one is not None]
    return "\n" + ("".join(lines) or "The licence of this data is not known to qkv.\n")


def _pretrained(recipe: Recipe, hashes: Mapping[str, str]) -> str:
    if recipe.init == "none":
        return ""
    digest = f"sha256 of its model.safetensors `{hashes.get('init')}`"
    return f"| fine-tuned from | {markdown(recipe.init)}, {digest} |\n"


def _splits(data: TrainingData) -> str:
    """Where the held-out rows came from."""
    chosen = {split: getattr(data.recipe.data, split) for split in ("validation", "test")}
    own = [split for split, name in chosen.items() if name not in (SPLIT, NONE)]
    if all(name == NONE for name in chosen.values()):
        return "The model was trained on all rows."
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
    sentences += _calibration(data, progress) if data.task.calibrated else []
    tested = ["The test set is used for the metrics above only."] if data.recipe.data.test != NONE else []
    return " ".join([*sentences, *tested])


def _calibration(data: TrainingData, progress: Progress) -> list[str]:
    rows, fewest = data.prepared.rows("validation"), FEWEST_TO_CALIBRATE
    if not rows and progress.temperature != 1.0:
        return [f"The logits are divided by {progress.temperature:.4f}, the temperature of the cross-validation."]
    if not rows:
        return ["The validation set is empty, so probabilities are not calibrated."]
    if rows < fewest:
        few = f"Too few validation rows ({rows:,}) to calibrate: probabilities are the model's own"
        return [f"{few}. At least {fewest} are needed."]
    folded = f"({progress.temperature:.4f}, folded into the last layer)"
    sentences = [f"Temperature scaling {folded} was fitted on the validation set, shrunk by {PRIOR_ROWS} prior rows."]
    if data.recipe.data.balance == "weights":
        sentences.append(
            "Classes were weighted by their inverse frequency in training, selection and calibration, so its "
            "probabilities are those of data with equally frequent classes: in the data above, a rare class is less "
            "probable than it says."
        )
    return sentences


def _metrics(found: TestMetrics | None, kind: str) -> str:
    if found is None:
        return "The test set was empty."
    whole = found["all"]
    if isinstance(whole, Metrics):
        rows = [f"| {name.replace('_', ' ')} | {value:.4f} |" for name, value in whole.values.items()]
        rows += [f"| {name.replace('_', ' ')} | {markdown(words)} |" for name, words in whole.details.items()]
        return "\n".join([f"On {whole.rows:,} {kind} {whole.unit}:", "", "| metric | value |", "|---|---|", *rows])
    lines = ["| rows | count | accuracy | 95% interval | balanced accuracy | macro F1 | ECE |", "|---" * 7 + "|"]
    for group, one in found.items():
        assert not isinstance(one, Metrics)
        low, high = one.interval
        error = f"{one.ece:.4f}" if one.shows_calibration else "too few rows to say"
        values = f"{one.accuracy:.4f} | {low:.4f} to {high:.4f} | {one.balanced_accuracy:.4f} | {one.f1:.4f} | {error}"
        lines.append(f"| {markdown(group) if group != 'all' else f'all {kind} rows'} | {one.rows:,} | {values} |")
    return "\n".join([*lines, "", *_classes(whole)])


def _classes(found: ClassificationMetrics) -> list[str]:
    """Precision, recall and F1 by class; of many classes the most frequent."""
    shown = sorted(found.classes, key=lambda one: -one.rows)[:MOST_CLASSES]
    lines = ["| label | rows | predicted | precision | recall | F1 |", "|---" * 6 + "|"]
    for one in shown:
        values = f"{one.precision:.4f} | {one.recall:.4f} | {one.f1:.4f}"
        lines.append(f"| {markdown(one.label)} | {one.rows:,} | {one.predicted:,} | {values} |")
    rest = len(found.classes) - len(shown)
    return [*lines, *(["", f"And {rest:,} labels with fewer rows."] if rest else [])]
