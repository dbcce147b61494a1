"""From a recipe to everything that a training loop needs. The only assembly: the trainer, the labs, the benchmarks and
the scikit-learn classifier all build here.

    recipe -> open_data -> TrainingData (corpus, tokens, resolved recipe) -> build_state -> TrainState (model, datasets)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from qkv.config import presets, recipes
from qkv.config.recipe import KIND_OF_TASK, DataConfig, ModelConfig, Recipe, TokenizerConfig
from qkv.corpus.catalog import cache_folder
from qkv.corpus.corpus import NONE, Corpus, open_corpus
from qkv.data.prepare import TARGET, GivenTokenizers, Prepared, prepare
from qkv.exchange.hf import export_problem, exportable_pooler
from qkv.hub import models, path_of
from qkv.model.build import build_model
from qkv.model.transformer import Model
from qkv.predict.predictor import open_model
from qkv.schema import Say, UserError, override, silent
from qkv.tasks import TASKS
from qkv.tasks.task import Task
from qkv.tokenizer.tokenizer import Tokenizer
from qkv.training.loop import TrainState, new_state
from qkv.training.pretrained import (
    Pretrained,
    copy_weights,
    inherited_config,
    keeps_output,
    read_pretrained,
    unknown_note,
)  # fmt: skip


@dataclass(frozen=True)
class TrainingData:
    """A recipe with its data."""

    recipe: Recipe  # resolved: every key that only the data or a pre-trained model can tell is filled in
    task: Task
    corpus: Corpus
    prepared: Prepared
    pretrained: Pretrained | None

    @property
    def training_rows(self) -> int:
        """Rows that are trained on (data.rows)."""
        return min(self.recipe.data.rows or self.prepared.rows("train"), self.prepared.rows("train"))

    def hashes(self) -> dict[str, str]:
        """Of the data, and of the weights of the pre-trained model."""
        init = {} if self.pretrained is None else {"init": self.pretrained.sha256}
        return {"data": self.prepared.data_hash, **init}


@dataclass(frozen=True)
class Resumed:
    """What a run that goes on already has: its recipe and its tokenizers."""

    recipe: Recipe
    folder: Path

    def tokenizers(self) -> GivenTokenizers:
        source, target = self.folder / "tokenizer.json", self.folder / TARGET
        return GivenTokenizers(Tokenizer.from_file(source), Tokenizer.from_file(target) if target.is_file() else None)


def open_data(
    recipe: Recipe, say: Say = silent, *, cache: Path | None = None, resumed: Resumed | None = None
) -> TrainingData:
    """Read and tokenise the data of a recipe, and resolve the recipe. A run that is resumed needs no pre-trained model:
    what came from there is in the run."""
    task = check_recipe(recipe)
    pretrained = read_pretrained(recipe) if resumed is None else None
    if pretrained is not None:
        inherited_config(pretrained, recipe, task.head(recipe))  # conflicts are found before the data is read
    corpus = open_corpus(recipe.data, task.format(recipe), say)
    if recipe.init == "none" and recipe.tokenizer.kind == "auto":
        recipe = recipe.replace(tokenizer=recipe.tokenizer.replace(kind=KIND_OF_TASK[recipe.task]).model_dump())
    wanted: TokenizerConfig | GivenTokenizers = recipe.tokenizer
    if pretrained is not None:
        wanted = GivenTokenizers(pretrained.tokenizer, pretrained.target_tokenizer)
    elif recipe.init != "none" and resumed is not None:
        wanted = resumed.tokenizers()
    prepared = prepare(corpus, wanted, cache or cache_folder(), say)
    data = _resolved_data(recipe, corpus)
    if recipe.init != "none" and resumed is not None and resumed.recipe.init == recipe.init:
        model = _resumed_model(recipe, resumed.recipe)
    else:
        model = _resolved_model(recipe, task, prepared, pretrained)
    recipe = recipe.replace(model=model.model_dump(), data=data.model_dump())
    check_recipe(recipe)  # again, now that every key has its value
    return TrainingData(recipe, task, corpus, prepared, pretrained)


def check_recipe(recipe: Recipe) -> Task:
    """What can be checked before any data is read. The recipe's task."""
    task = TASKS[recipe.task]
    recipe.check()
    task.check(recipe)
    return task


def recipe_to_plan(source: str, settings: Sequence[str] = ()) -> Recipe:
    """A recipe or a preset, by its name or file; or the fine-tuning of a model, by its name or folder. Its model has
    the parts of the pre-trained one."""
    path = path_of(source) if source in models() else Path(source)
    if (path / "config.json").is_file():
        table = {"task": recipes.DEFAULT_TASKS[open_model(path).config.family], "init": source}
        recipe = presets.expand(override(table, settings), where=source)
    else:
        recipe = recipes.resolve(source, settings)
    pretrained = read_pretrained(recipe)
    if pretrained is None:
        return recipe
    model = inherited_config(pretrained, recipe, TASKS[recipe.task].head(recipe))
    return recipe.replace(model=model.model_dump())


def build_state(data: TrainingData) -> tuple[TrainState, list[str]]:
    """The model with its initial or pre-trained weights, the datasets, the optimiser; and notes for the user."""
    recipe, prepared, task = data.recipe, data.prepared, data.task
    train, validation = task.datasets(recipe, prepared)
    model, notes = fresh_model(recipe), list[str]()
    if data.pretrained is not None:
        notes += copy_weights(data.pretrained, model, recipe, prepared.labels)
        if keeps_output(data.pretrained, recipe, prepared.labels):
            task.unfold(model, recipe, prepared)
        notes += unknown_note(recipe.init, data.corpus, prepared)
    problem = export_problem(recipe.model)
    if problem is not None:
        notes.append(f"export to Hugging Face will not be possible: {problem}")
    notes += prepared.notes
    if data.training_rows < prepared.rows("train"):
        rows = f"{data.training_rows:,} of {prepared.rows('train'):,} training {data.corpus.format.unit}"
        notes.append(f"trained on {rows} (data.rows)")
    notes += task.notes(recipe, train)
    if not len(prepared.validation) and recipe.data.validation != NONE:
        uncalibrated = ", uncalibrated" if task.calibrated else ""
        notes.append(f"the validation set is empty, so the last weights are kept{uncalibrated}")
    return new_state(model, recipe, task, train, validation), notes


def fresh_model(recipe: Recipe) -> Model:
    """The model of a resolved recipe with its initial weights."""
    dropout, attention_dropout = recipe.train.dropout, recipe.train.attention_dropout
    return build_model(recipe.model, seed=recipe.seed, dropout=dropout, attention_dropout=attention_dropout)


def _resolved_model(recipe: Recipe, task: Task, prepared: Prepared, pretrained: Pretrained | None) -> ModelConfig:
    """The head of the task; vocabulary, labels and segments of the data; and every part of a pre-trained model."""
    head, size = task.head(recipe), prepared.tokenizer.size
    model = recipe.model if pretrained is None else inherited_config(pretrained, recipe, head)
    changed: dict[str, Any] = {"head": head}
    if pretrained is None:
        if model.vocabulary not in (0, size) and model.preset == "none":
            raise UserError(f"model.vocabulary = {model.vocabulary}, but the tokenizer has {size} tokens; accepted: 0")
        changed["vocabulary"] = size
        if prepared.target is not None:
            changed["target_vocabulary"] = prepared.target.size
        is_pair = (prepared.train.pairs or head == "pretraining") and model.family == "encoder"
        changed["segments"] = max(model.segments, 2) if is_pair else model.segments
    if prepared.labels:
        changed["classes"] = len(prepared.labels)
    if head == "tokens":
        changed["pooler"] = "none"  # nothing would read it
    resolved = model.replace(**changed)
    return resolved.replace(pooler=exportable_pooler(resolved)) if resolved.pooler == "auto" else resolved


def _resumed_model(recipe: Recipe, before: Recipe) -> ModelConfig:
    """The model of the run, which a recipe with `init` does not spell out."""
    for key, mine in recipe.model:
        if mine not in (getattr(ModelConfig(), key), getattr(before.model, key)):
            raise UserError(f"model.{key} = {mine!r}: this run was begun with {getattr(before.model, key)!r}")
    return before.model


def _resolved_data(recipe: Recipe, corpus: Corpus) -> DataConfig:
    """[data] with the columns and label names that the catalogue has; of several corpora, what they agree on."""
    files, format = corpus.files["corpus"], corpus.format
    changed: dict[str, Any] = {"label_names": "none"}
    if all(one.columns == files[0].columns for one in files):
        changed |= {role: name or "none" for role, name in asdict(files[0].columns).items()}
    if format.aligned:
        changed["target"], changed["pair"] = changed.get("pair", recipe.data.target), "none"
    if format.documents is not None and all(one.documents == files[0].documents for one in files):
        changed["documents"] = files[0].documents
    if format.labels != "none" and corpus.label_names:
        changed["label_names"] = ", ".join(f"{raw}={name}" for raw, name in corpus.label_names.items())
    return recipe.data.replace(**changed)
