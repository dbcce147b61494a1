"""Every task has what the training loop needs of one, and nothing outside `tasks` asks for the name of a task."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import qkv
from qkv.config import recipe as recipes
from qkv.config.recipe import FAMILIES_OF_TASK, HEADS_OF_FAMILY, Family, ModelConfig, Recipe
from qkv.data.batch import Batch
from qkv.schema import Section
from qkv.tasks import TASKS, task_for
from qkv.tasks.task import Validation
from qkv.training.build import build_state, open_data
from qkv.training.loop import TrainState, batches_of, train, validate
from tests.support.cli import write_aligned, write_documents, write_table

SOURCES = Path(qkv.__file__).parent
MAY_COMPARE = ("tasks/", "config/recipe.py")
MODEL = {"width": 8, "heads": 2, "layers": 1, "feedforward": 8, "positions": "rotary"}
TRAIN = {"batch_tokens": 512, "steps": 2, "warmup": 0, "dropout": 0.0}
EVERY = pytest.mark.parametrize("name", TASKS)


# --- names, families, heads


def test_a_task_is_listed_under_its_name_and_a_recipe_accepts_the_same_names() -> None:
    assert {name: task.name for name, task in TASKS.items()} == {name: name for name in TASKS}
    assert set(TASKS) == set(get_args(recipes.TaskName)) == set(FAMILIES_OF_TASK)


@EVERY
def test_its_families_are_known_and_a_recipe_of_each_is_accepted(name: recipes.TaskName) -> None:
    families = FAMILIES_OF_TASK[name]
    assert families
    assert set(families) <= set(get_args(Family))
    for family in families:
        assert TASKS[name].head(recipe_of(name, family)) in HEADS_OF_FAMILY[family]


def test_the_keys_of_a_recipe_name_tasks_that_exist() -> None:
    sections = [type(section) for _, section in Recipe() if isinstance(section, Section)]
    named = [field.json_schema_extra for section in sections for field in section.model_fields.values()]
    tasks = {task for extra in named if isinstance(extra, dict) for task in list(extra.get("tasks") or [])}  # type: ignore[arg-type]
    assert tasks == set(TASKS)


@pytest.mark.parametrize("family", get_args(Family))
def test_a_model_with_a_head_fits_exactly_one_task(family: Family) -> None:
    for head in HEADS_OF_FAMILY[family]:
        config = ModelConfig(family=family, head=head)
        fitting = [task for task in TASKS.values() if task.fits(config.resolve())]
        assert len(fitting) == (0 if head == "none" else 1), head
        assert task_for(config) == (fitting[0] if fitting else None)
        assert all(family in FAMILIES_OF_TASK[task.name] for task in fitting)


@EVERY
def test_the_model_of_a_task_fits_it(name: recipes.TaskName) -> None:
    for family in FAMILIES_OF_TASK[name]:
        recipe = recipe_of(name, family)
        assert task_for(recipe.model.replace(head=TASKS[name].head(recipe))) is TASKS[name]


# --- a training


def recipe_of(name: str, family: str, corpus: str = "none.txt", **data: Any) -> Recipe:
    return Recipe.read({
        "task": name, "data": {"corpus": corpus, "length": 16, **data}, "model": {**MODEL, "family": family},
        "tokenizer": {"kind": "wordpiece", "vocab_size": 60}, "train": TRAIN,
    })  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus for each task."""
    path, number = tmp_path_factory.mktemp("tasks"), range(80)
    write_table(path / "classify.csv", [("text", "label"), *((f"text {n}", "ab"[n % 2]) for n in number)])
    write_table(path / "regress.csv", [("text", "label"), *((f"text {n}", str(n / 7)) for n in number)])
    for name in ("fill", "complete"):
        write_documents(path / f"{name}.txt", (f"One {n}. Two {n + 1}. Three {n + 2}." for n in number))
    write_aligned(path, "translate", ((f"one {n}", f"{n} eins") for n in number))
    return path


def state_of(folder: Path, name: recipes.TaskName) -> TrainState:
    suffix = {"classify": ".csv", "regress": ".csv"}.get(name, ".txt")
    corpus = f"{folder / name}.a -> {folder / name}.b" if name == "translate" else f"{folder / name}{suffix}"
    data = {"documents": "blank-lines"} if name == "complete" else {}
    opened = open_data(recipe_of(name, FAMILIES_OF_TASK[name][0], corpus, **data), cache=folder / "cache")
    return build_state(opened)[0]


@EVERY
def test_every_part_of_the_loss_has_a_count(folder: Path, name: recipes.TaskName) -> None:
    state = state_of(folder, name)
    (batch,) = batches_of(state, 0)
    assert isinstance(batch, Batch)
    totals = state.task.loss(state.model, batch, state.recipe)
    assert totals.keys() == batch.counts.keys()
    assert all(count > 0 for count in batch.counts.values())
    for total in totals.values():
        assert total.shape == ()
        assert total.requires_grad
        assert math.isfinite(total.item())


@EVERY
def test_losses_and_counts_of_parts_add_up_to_those_of_the_whole(folder: Path, name: recipes.TaskName) -> None:
    """Which lets the loop compute a batch in micro-batches."""
    state = state_of(folder, name)
    epoch, examples_B = state.train.sampler.batch(0)
    assert len(examples_B) > 3
    model = state.model.double().eval()
    parts = [state.train.collate(some, epoch) for some in (examples_B, examples_B[:3], examples_B[3:])]
    losses = [
        {part: total.item() for part, total in state.task.loss(model, one, state.recipe).items()} for one in parts
    ]
    for part, total in losses[0].items():
        assert total == pytest.approx(losses[1].get(part, 0.0) + losses[2].get(part, 0.0), rel=1e-9)
        assert parts[0].counts[part] == pytest.approx(parts[1].counts[part] + parts[2].counts[part])
    assert parts[0].real_tokens == parts[1].real_tokens + parts[2].real_tokens


@EVERY
def test_a_training_reports_its_loss_and_its_validation(folder: Path, name: recipes.TaskName) -> None:
    state = state_of(folder, name)
    lines = [report.line for report in train(state) if report.line is not None]
    assert math.isfinite(lines[-1]["loss"])
    found = validate(state)
    assert isinstance(found, Validation)
    assert math.isfinite(found.loss)
    assert all(math.isfinite(value) for value in found.metrics.values())
    assert validate(state) == found
    assert torch.is_grad_enabled()


# --- nothing else asks for the name of a task


def is_task(node: ast.expr) -> bool:
    return (isinstance(node, ast.Name) and node.id == "task") or (
        isinstance(node, ast.Attribute) and node.attr == "task"
    )


def comparisons(source: str) -> Iterator[int]:
    """Lines that compare `task` or `.task` with something, or match on it."""
    for node in ast.walk(ast.parse(source)):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        subject = [node.subject] if isinstance(node, ast.Match) else []
        if any(is_task(side) for side in (*sides, *subject)):
            assert isinstance(node, ast.expr | ast.stmt)
            yield node.lineno


def test_a_comparison_with_a_task_is_found() -> None:
    found = ("task == 'fill'", "recipe.task != 'fill'", "task in ('fill',)", "'fill' == a.b.task", "task not in names")
    assert all(list(comparisons(source)) == [1] for source in found)
    assert list(comparisons("match recipe.task:\n    case 'fill': pass")) == [1]
    assert not list(comparisons("TASKS[recipe.task].head(recipe)\ntasks == other\ntask.name\n# task == 'fill'"))


def test_no_other_file_compares_a_task() -> None:
    files = {file.relative_to(SOURCES).as_posix(): file for file in SOURCES.rglob("*.py")}
    assert {"tasks/task.py", "config/recipe.py", "training/loop.py", "cli/train.py"} <= files.keys()
    found = {
        name: list(comparisons(file.read_text())) for name, file in files.items() if not name.startswith(MAY_COMPARE)
    }
    assert {name: lines for name, lines in found.items() if lines} == {}
