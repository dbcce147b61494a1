"""Training from a table: plan, ladder, run. What `qkv train TABLE` and `qkv.train(table)` do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from qkv import runtime
from qkv.autotrain.ladder import baselines, cross_validate
from qkv.autotrain.plan import Plan, plan_table
from qkv.calibration import COLDEST, HOTTEST
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import NONE, SPLIT
from qkv.run.folder import Run
from qkv.schema import Say, UserError, override, silent
from qkv.training.build import open_data
from qkv.training.comparison import BaselineComparison

DECIDED = ("train.steps", "train.epochs", "train.temperature")  # by the cross-validation


def recipe_for(
    source: str,
    folder: Path,
    columns: Mapping[str, str | None],
    settings: Sequence[str] = (),
    *,
    test: str | None = None,
    say: Say = silent,
) -> tuple[Recipe, BaselineComparison | None]:
    """The recipe to train a table with, in a folder, and the comparison with simpler models. A run that was begun there
    keeps its recipe."""
    if Run(folder).begun:
        return _begun(folder, source, {**columns, "test": test}, settings), None
    plan = plan_table(source, columns, settings, test=test, say=say)
    for sentence in plan.sentences():
        say(sentence)
    return _compare(plan, say)


def _begun(folder: Path, source: str, columns: Mapping[str, str | None], settings: Sequence[str]) -> Recipe:
    """The recipe of a run that was begun from this table, to resume it."""
    recipe = Run(folder).recipe
    if recipe is None or Path(recipe.data.corpus).resolve() != Path(source).resolve():
        other = "another recipe" if recipe is None else recipe.data.corpus
        raise UserError(f"{folder}: is a run of {other}; choose another folder: -o OTHER")
    for role, name in columns.items():
        if name is not None and name != getattr(recipe.data, role):
            begun_with = getattr(recipe.data, role)
            raise UserError(f"--{role} {name}: {folder} was begun with {begun_with!r}; choose another folder: -o OTHER")
    if recipe.train.steps == recipe.train.epochs == 0:  # the cross-validation has decided so
        settings = [one for one in settings if one.partition("=")[0].strip() not in DECIDED]
    if settings:
        recipe = Recipe.read(override(recipe.model_dump(), settings), str(folder))
    return recipe


def _compare(plan: Plan, say: Say) -> tuple[Recipe, BaselineComparison | None]:
    """Compare simpler models on the same rows. With few rows the cross-validation also decides whether fine-tuning is
    better than the fitted output layer alone, and the temperature. The recipe to train, and the comparison."""
    runtime.start(plan.recipe.runtime.threads)
    data, folds = open_data(plan.recipe, say), plan.folds
    if data.pretrained is not None and data.pretrained.saw_all and plan.recipe.data.test in (SPLIT, NONE):
        say(
            f"note: {plan.recipe.init} was trained on all rows of its table, perhaps on these: no comparison and no "
            "cross-validation; --test FILE gives metrics on other rows"
        )
        return plan.recipe, None
    if not folds:
        say("baselines on the test set: the simplest prediction, and a linear model on TF-IDF")
        return plan.recipe, baselines(data) if data.prepared.rows("test") else None
    say(f"{folds}-fold cross-validation of the baselines and of this recipe:")
    ladder = cross_validate(data, folds, lambda fold: say(f"  fold {fold} of {folds}"))
    for rung in ladder.comparison.rungs:
        interval = f"({rung.interval[0]:.3f} to {rung.interval[1]:.3f})"
        say(f"  {rung.name:<38} {ladder.comparison.metric} {rung.score:.3f} {interval}  loss {rung.loss:.3f}")
    changed = plan.recipe.train.model_dump()
    if data.task.calibrated:
        changed["temperature"] = round(min(max(ladder.temperature, COLDEST), HOTTEST), 4)
    if not ladder.fine_tune and plan.recipe.train.fit_head:
        say("fine-tuning does not lower the loss on these rows: only the output layer is fitted")
        changed |= {"steps": 0, "epochs": 0}
    tested = data.prepared.rows("test") > 0
    return plan.recipe.replace(train=changed), baselines(data) if tested else ladder.comparison
