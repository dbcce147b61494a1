"""From a table to a recipe: which columns, which task, which pre-trained encoder, which hyper-parameters."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from qkv import hub
from qkv.autotrain import rules
from qkv.autotrain.table import Roles, TableFacts, find_roles, table_facts
from qkv.config import presets
from qkv.config.recipe import TEXT_HEADS, Recipe
from qkv.corpus import files
from qkv.corpus.corpus import Corpus, open_corpus
from qkv.exchange.special_tokens import label_names
from qkv.predict.predictor import open_model
from qkv.schema import Say, UserError, listed, override, silent
from qkv.tasks import TASKS
from qkv.tokenizer.tokenizer import Tokenizer

SAMPLE = 2000  # rows whose lengths decide
PREFERRED, ALWAYS_HERE = "minilm", "bundled-encoder"
TABLE_SUFFIXES = tuple(kind for kind in files.READERS if kind not in (".txt", ".text", ".raw"))


@dataclass(frozen=True)
class Plan:
    """What was chosen for a table, and why."""

    table: dict[str, Any]  # the recipe, as its keys are written
    recipe: Recipe
    roles: Roles
    facts: TableFacts
    notes: tuple[str, ...]

    @property
    def folds(self) -> int:
        """Of the cross-validation; 0: the table is large enough to be split, or the recipe says how."""
        return rules.folds_for(self.facts.rows) if self.recipe.data.validation == "none" else 0

    def sentences(self) -> list[str]:
        """What was found in the table, and the recipe that was chosen for it."""
        roles, facts = self.roles, self.facts
        second = f" and {roles.pair!r}" if roles.pair else ""
        found = f"{len(facts.labels)} labels" if facts.labels else "numbers"
        what = f"text {roles.text!r}{second}, label {roles.label!r} ({found})"
        recipe = [f"  {line}" if line else "" for line in self.to_toml().strip().splitlines()]
        return [
            f"{self.recipe.data.corpus}: {facts.rows:,} rows; {what}: {self.recipe.task}",
            *(f"note: {note}" for note in self.notes),
            "chosen for these rows (--save-recipe FILE writes it, --set changes a key):",
            *recipe,
        ]

    def to_toml(self) -> str:
        """The chosen keys as a recipe."""
        return tomli_w.dumps(self.table)


def is_table(source: str) -> bool:
    """Whether `qkv train` was given data instead of a recipe: a file of a known format, or a folder of them."""
    name = source.lower().removesuffix(".gz")
    if name.endswith((*TABLE_SUFFIXES, ".xlsx", ".zip")):
        return True
    return os.path.isdir(source) and not os.path.exists(Path(source, "config.json"))  # noqa: PTH110, PTH112


def plan_table(
    source: str, columns: Mapping[str, str | None], settings: Iterable[str] = (), *, test: str | None = None,
    say: Say = silent,
) -> Plan:  # fmt: skip
    """Choose a recipe for a table. `columns` are the ones that the user names: text, pair, label, target."""
    paths = files.find(source)
    in_folders = files.in_class_folders(paths)
    roles = Roles("classify", "text", None, "label") if in_folders else find_roles(paths, **columns)
    if roles.label is None:
        raise UserError(
            f"{source}: columns {roles.text!r} and {roles.pair!r} hold text and there is no label, so this is a "
            "translation, for which a recipe is needed: task = 'translate' (docs/tasks.md); for labels: --label COLUMN"
        )
    settings = list(settings)
    task = override({}, settings).get("task", roles.task)
    chosen: dict[str, Any] = {
        "task": task,
        "data": {"corpus": source, "text": roles.text, "pair": roles.pair or "none", "label": roles.label or "label"},
    }
    named = override({}, settings).get("init", _usual_start())
    if not isinstance(named, str):
        raise UserError(f"init = {named!r}: must be the name of a model, a run or a folder")
    if named == "none":
        raise UserError(
            f"{source}: init = none: a table alone fine-tunes a model; to train from scratch write a recipe"
        )
    first = Recipe.read(chosen, source)
    corpus = open_corpus(first.data, TASKS[first.task].format(first), say)
    classes = corpus.format.labels == "classes"
    facts = table_facts(corpus.labelled(["train", "validation", "test"]), paths[0].name, classes=classes)
    _check_enough(facts, source)
    start, tokenizer, kept = _start(named, facts, TASKS[task].head(Recipe()))
    lengths = _lengths(corpus, tokenizer)
    special = len(tokenizer.template(pair=roles.pair is not None))
    found = rules.fine_tuning(facts.rows, lengths, facts.rarest_share, start, special=special)
    chosen = {**chosen, "init": named, "data": chosen["data"] | found["data"], "train": found["train"] | kept}
    if test is not None:
        chosen["data"]["test"] = test
    if not classes:
        del chosen["data"]["balance"]
    chosen = override(chosen, settings)
    notes = [*roles.notes, *facts.notes]
    if not classes:
        notes.append(f"{roles.label!r} holds numbers; if they are classes: --set task=classify")
    if named == ALWAYS_HERE:
        notes.append(f"a larger encoder learns more from few rows: `qkv models get {PREFERRED}` (83 MB), then -o OTHER")
    return Plan(chosen, presets.expand(chosen, where=source), roles, facts, tuple(notes))


def _usual_start() -> str:
    return PREFERRED if hub.is_present(PREFERRED) else ALWAYS_HERE


def _start(init: str, facts: TableFacts, head: str) -> tuple[rules.Start, Tokenizer, dict[str, bool]]:
    """The pre-trained model, its tokenizer, and the keys that follow from its head: one that answers for texts already
    needs no pooling layer, and one that knows these labels keeps its output layer."""
    path = hub.path_of(init)
    opened = open_model(path)
    config = opened.config.resolve()
    if opened.tokenizer is None:
        raise UserError(f"init: {path}: has no tokenizer.json, so the meaning of its embeddings is unknown")
    context = config.context if config.positions == "learned" else 10**6
    kept: dict[str, bool] = {}
    if config.family != "encoder" or config.norm_place != "post":
        kept = {"pooling_layer": False}
    if config.head in TEXT_HEADS:
        known = label_names({**opened.folder.config, **opened.folder.generation}, config)
        same = config.head == head and (head == "regression" or set(known) == set(facts.labels))
        kept = {"pooling_layer": False, "fit_head": not same}
    return rules.Start(init, config.width, config.layers, config.feedforward, context), opened.tokenizer, kept


def _lengths(corpus: Corpus, tokenizer: Tokenizer) -> Sequence[int]:
    """Tokens of the first texts, both texts of a pair together."""
    rows = [row for _, row in itertools.islice(corpus.rows(["train", "validation", "test"]), SAMPLE)]
    firsts, seconds = tokenizer.ids([row.text for row in rows]), tokenizer.ids([row.pair or "" for row in rows])
    return [len(first) + len(second) for first, second in zip(firsts, seconds, strict=True)] or [1]


def _check_enough(facts: TableFacts, source: str) -> None:
    if facts.texts < rules.FEWEST_TEXTS:
        found = f"{facts.rows:,} rows with text and label, {facts.texts:,} different texts"
        raise UserError(f"{source}: {found}; at least {rules.FEWEST_TEXTS} different texts are needed")
    if len(facts.labels) == 1:
        only = listed(repr(label) for label in facts.labels)
        raise UserError(f"{source}: only one label, {only}, in {facts.rows:,} rows; a classifier needs at least two")
