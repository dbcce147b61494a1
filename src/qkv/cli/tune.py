"""`qkv tune`: a hyper-parameter search for a table, and the best recipe trained."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from qkv.cli.console import AsJson, Settings, readable_seconds, say
from qkv.schema import UserError

if TYPE_CHECKING:
    from qkv.autotrain.tune import Search, Trial
    from qkv.metrics import TestMetrics


def tune(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="Texts and labels: CSV, TSV, JSON lines, Parquet, a folder.")
    ],
    minutes: Annotated[
        float, typer.Option(help="Budget of the trials, 1 to 1440. The best recipe is trained afterwards.")
    ] = 10,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="RUN", help="Run folder; default runs/NAME-tuned.")
    ] = None,
    settings: Settings = None,
    text: Annotated[str | None, typer.Option(metavar="COLUMN", help="Text column.")] = None,
    label: Annotated[str | None, typer.Option(metavar="COLUMN", help="Label column.")] = None,
    pair: Annotated[str | None, typer.Option(metavar="COLUMN", help="Second text of a pair.")] = None,
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Test set: a file with the same columns.")] = None,
    as_json: AsJson = False,
) -> None:
    """Search hyper-parameters for a table by validation loss, then train the best recipe. The same command goes on.

    Trial 1 is the recipe of `qkv train TABLE`; keys given with --set are not searched. Test rows are not used."""
    from qkv.api import default_output
    from qkv.autotrain.plan import is_table, plan_table
    from qkv.autotrain.run import recipe_for
    from qkv.autotrain.tune import best_of, check_minutes, open_search, trial_settings
    from qkv.cli.train import run_training

    check_minutes(minutes)
    if not is_table(table):
        raise UserError(f"{table[:200]}: not a table; accepted: a CSV, TSV, JSON lines or Parquet file, or a folder")
    folder, fixed = output or default_output(table).with_name(f"{default_output(table).name}-tuned"), settings or []
    columns = {"text": text, "label": label, "pair": pair}
    search = open_search(plan_table(table, columns, fixed, test=test, say=say), fixed, say)
    trials = _search(search, folder.with_name(f"{folder.name.removesuffix('-tuned')}.trials.jsonl"), minutes)
    best = best_of(trials)
    say(f"best: trial {best.number}; training it in {folder}")
    chosen = [f"train.{key}={value}" for key, value in trial_settings(search, best.settings).items()]
    recipe, comparison = recipe_for(table, folder, columns, [*fixed, *chosen], test=test, say=say)
    code, found = run_training(recipe, folder, comparison)
    if code == 0:
        _show(search, trials, best, folder, found, as_json=as_json)
    raise typer.Exit(code)


def _search(search: Search, file: Path, minutes: float) -> list[Trial]:
    """Run trials, and keep and list each as it ends. All trials, those of an earlier command first."""
    from qkv.autotrain.tune import TrialLog, run_trials

    log = TrialLog(file, search.key)
    try:
        trials, others = log.read()
        if others and not trials:
            say(f"note: {file} has {others} trials of another table or base recipe; the search begins anew")
        how = f"{search.folds}-fold cross-validation" if search.folds else "the validation rows"
        say(f"search by {how}, {minutes:g} minutes; trials are kept in {file}")
        for trial in trials:
            say(f"{_line(trial, search.metric)}  (kept)")
        for trial in run_trials(search, minutes, trials):
            log.append(trial)
            trials.append(trial)
            say(_line(trial, search.metric))
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}; choose another folder: -o OTHER") from None
    except KeyboardInterrupt:
        say(f"stopped; {len(trials)} finished trials are in {file}; run the same command to go on")
        raise typer.Exit(130) from None
    return trials


def _line(trial: Trial, metric: str) -> str:
    changed = ", ".join(f"{key} {value:g}" for key, value in trial.settings.items()) or "the recipe of `qkv train`"
    figures = "diverged"
    if trial.loss is not None:
        figures = f"validation loss {trial.loss:.4f}, {metric} {trial.score:.4f}"
    return f"trial {trial.number}: {changed}: {figures}, {readable_seconds(trial.seconds)}"


def _show(
    search: Search, trials: list[Trial], best: Trial, folder: Path, found: TestMetrics | None, *, as_json: bool
) -> None:
    """The result of a search and of the run that was trained after it."""
    from qkv.cli.eval import metrics_as_json
    from qkv.cli.train import show_result

    if as_json:
        metrics = None if found is None else json.loads(metrics_as_json(found))
        run = {"folder": str(folder), "metrics": metrics}
        print(json.dumps({"trials": [asdict(one) for one in trials], "best": asdict(best), "run": run}))
        return
    print(_line(best, search.metric))
    if len(trials) > 1:
        print(f"The validation loss is the best of {len(trials)} trials and therefore slightly optimistic.")
    if search.data.prepared.rows("test"):
        print("The search did not use the test rows, whose metrics follow.")
    elif len(trials) > 1:
        print("So are the cross-validated metrics that follow; --test FILE gives metrics on other rows.")
    show_result(folder, 0, found)
