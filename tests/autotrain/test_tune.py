"""The hyper-parameter search: its space, its budget, its folds and the trials that it keeps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qkv.autotrain import ladder, tune
from qkv.autotrain.plan import plan_table
from qkv.autotrain.scoring import Scoring
from qkv.autotrain.tune import Search, Trial, TrialLog, best_of, candidates, open_search, run_trials, trial_settings
from qkv.schema import UserError
from qkv.training.build import TrainingData
from tests.support.cli import write_table

SETTINGS = ["init=bundled-encoder", "runtime.threads=1"]


def opened(folder: Path, *settings: str, rows: int = 24) -> Search:
    texts = [[f"{'good fine' if n % 2 else 'bad poor'} film {n}", "ny"[n % 2]] for n in range(rows)]
    write_table(folder / "t.csv", [["text", "label"], *texts])
    chosen = [*SETTINGS, *settings]
    return open_search(plan_table(str(folder / "t.csv"), {}, chosen), chosen)


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Search:
    return opened(tmp_path_factory.mktemp("table"), "train.steps=40")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """Trials that train nothing, and a clock on which each takes ten seconds."""
    monkeypatch.setattr(tune, "validated", lambda data, folds: (data.recipe.train.token_dropout, 0.5))
    seconds = itertools.count(0, 10)
    return lambda: float(next(seconds))


def test_no_trial_comes_twice_and_the_first_is_the_recipe_of_train(tmp_path: Path) -> None:
    search = opened(tmp_path)
    found = list(candidates(search))
    assert found[0] == {}
    assert len(found) == len({tuple(sorted(one.items())) for one in found}) == 3**4
    assert found == list(candidates(search))
    assert found[1:] != sorted(found[1:], key=lambda one: sorted(one.items()))


def test_keys_that_the_user_set_are_not_searched(tmp_path: Path) -> None:
    search = opened(tmp_path, "train.learning_rate=0.001", "train.token_dropout=0.3")
    assert set(search.space) == {"steps", "layer_decay"}
    assert len(list(candidates(search))) == 9
    assert all(set(one) <= set(search.space) for one in candidates(search))


def test_warmup_and_validations_follow_the_steps(tmp_path: Path) -> None:
    search = opened(tmp_path)
    base = search.base
    found = trial_settings(search, {"steps": 2 * base.steps})
    assert found == {"steps": 2 * base.steps, "warmup": 2 * base.warmup, "eval_every": 2 * base.eval_every}
    fixed = opened(tmp_path, "train.warmup=7")
    assert "warmup" not in trial_settings(fixed, {"steps": 2 * base.steps})


def test_all_trials_have_the_same_folds(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[tuple[list[int], float]]()

    def outputs(data: TrainingData, inside: ladder.Ints, outside: ladder.Ints, scoring: Scoring):  # type: ignore[no-untyped-def]
        seen.append((outside.tolist(), data.recipe.train.token_dropout))
        return [np.zeros((len(outside), scoring.outputs))], np.ones(len(outside), np.float32)

    monkeypatch.setattr(ladder, "_transformers", outputs)
    trials = list(itertools.islice(run_trials(search, 1440), 4))
    folds = [[rows for rows, _ in seen[5 * n : 5 * n + 5]] for n in range(4)]
    assert len(seen) == 5 * len(trials)
    assert folds == [folds[0]] * 4
    assert sorted(itertools.chain(*folds[0])) == list(range(24))
    assert len({dropout for _, dropout in seen}) > 1


def test_the_budget_ends_the_search(search: Search, fake: Callable[[], float]) -> None:
    assert len(list(run_trials(search, 1, clock=fake))) == 6  # of ten seconds each
    assert len(list(run_trials(search, 1440, clock=fake))) == 27  # the whole space


def test_trial_1_always_runs_and_longer_trials_are_estimated_by_their_steps(
    tmp_path: Path, fake: Callable[[], float]
) -> None:
    search = opened(tmp_path)
    slow = Trial(1, {}, search.base.steps, 0.5, 0.5, 50.0)
    following = list(candidates(search))[1]
    estimated = 50.0 * following.get("steps", search.base.steps) / search.base.steps
    assert list(run_trials(search, (50 + estimated - 1) / 60, [slow], fake)) == []
    assert len(list(run_trials(search, (50 + estimated + 1) / 60, [slow], fake))) >= 1
    assert len(list(run_trials(search, 0.01, clock=fake))) == 1


def test_kept_trials_are_not_run_again(search: Search, fake: Callable[[], float], tmp_path: Path) -> None:
    log = TrialLog(tmp_path / "runs" / "t.trials.jsonl", search.key)
    first = list(run_trials(search, 0.5, clock=fake))
    for trial in first:
        log.append(trial)
    with log.path.open("a") as file:
        file.write('{"half a li')
    kept, others = log.read()
    assert (kept, others) == (first, 0)
    more = list(run_trials(search, 1, kept, fake))
    assert [trial.number for trial in [*first, *more]] == [1, 2, 3, 4, 5, 6]
    assert len({str(trial.settings) for trial in [*first, *more]}) == 6
    assert TrialLog(log.path, "another").read() == ([], 3)


def test_the_key_is_of_table_recipe_and_space_but_not_of_threads(search: Search, tmp_path: Path) -> None:
    same = replace(search, data=replace(search.data, recipe=search.data.recipe.replace(runtime={"threads": 2})))
    other = replace(search, data=replace(search.data, recipe=search.data.recipe.replace(seed=5)))
    assert same.key == search.key != other.key
    keys = {opened(tmp_path, rows=rows).key for rows in (24, 26)} | {opened(tmp_path, "train.layer_decay=0.8").key}
    assert len(keys) == 3


def test_a_diverged_trial_is_a_result_but_not_the_best(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(data: TrainingData, folds: int) -> tuple[float, float]:
        if data.recipe.train.token_dropout == 0.4:
            raise UserError("the loss is nan")
        return data.recipe.train.token_dropout, 0.5

    monkeypatch.setattr(tune, "validated", diverges)
    trials = list(run_trials(search, 1440))
    assert sum(trial.loss is None for trial in trials) == 9
    assert best_of(trials).loss == 0.1


def test_a_larger_table_is_scored_on_its_validation_rows(tmp_path: Path) -> None:
    search = opened(tmp_path, "train.steps=2", "data.validation=split", rows=200)
    assert search.folds == 0
    (trial,) = itertools.islice(run_trials(search, 1), 1)
    assert trial.loss is not None
    assert trial.score is not None
    assert 0 <= trial.score <= 1
    empty = r"there are no validation rows to score trials on; accepted: split"
    with pytest.raises(UserError, match=empty):
        opened(tmp_path, "data.validation=none", rows=1600)


@pytest.mark.parametrize("minutes", [0.0, 0.99, 1441.0, float("nan")])
def test_minutes_have_limits(minutes: float) -> None:
    with pytest.raises(UserError, match="must be from 1 to 1440"):
        tune.check_minutes(minutes)
