"""A training can be killed at any instant, and the same command resumes to the same bits.

The recipe has all that could go wrong: dropout, token dropout, ragged lengths, several epochs, a best model that is
kept apart. Tests marked `faults` kill; they are run by `make faults`.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import qkv
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.verify import verify
from tests.support import fork_server as server
from tests.support.fork_server import (
    EPOCH,
    Ended,
    Process,
    assert_same_end,
    flip,
    fork_server,
    sha256,
    steps_reported,
    timeless,
    until,
    write_recipe,
)

SAVED = 7  # save_every of the recipe


def resumed_from(ended: Ended) -> int:
    """The step from which a process says that it resumed."""
    found = re.search(r"^resuming from step ([\d,]+)$", ended.err, re.M)
    return int(found[1].replace(",", "")) if found else 0


def train(place: Path, run: Path | str, *words: str, **fault: object) -> Ended:
    return fork_server().run(place, "train", "my.toml", "-o", run, *words, **fault)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, an uninterrupted run `whole`, and `half`, which was killed after step 38."""
    folder = tmp_path_factory.mktemp("place")
    write_recipe(folder)
    ended = train(folder, "whole")
    assert ended.code == 0, ended.err
    assert train(folder, "half", after_step=38, signal=signal.SIGKILL).code == -signal.SIGKILL
    return folder


@pytest.fixture
def half(place: Path) -> Path:
    """A copy of the run that was killed."""
    shutil.rmtree(place / "copy", ignore_errors=True)
    return Path(shutil.copytree(place / "half", place / "copy"))


def test_the_recipe_is_what_these_tests_need(place: Path) -> None:
    lines = timeless(place / "whole")
    assert [line["step"] for line in lines] == list(range(1, 4 * EPOCH + 5))
    assert lines[EPOCH - 1]["epoch"] == 1.0
    assert Run(place / "half").checkpoints.steps() == [35, 28, 20]
    assert steps_reported(place / "half") == 38


def test_a_killed_training_resumes_to_the_same_bits(place: Path, half: Path) -> None:
    assert verify(half)[1] == "the same qkv train command resumes from step 35"
    ended = train(place, half)
    assert (ended.code, resumed_from(ended)) == (0, 35)
    assert_same_end(place / "whole", half)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_stops_at_the_next_step_and_can_resume(place: Path, how: signal.Signals, code: int) -> None:
    run = place / how.name
    process = fork_server().start(place, "train", "my.toml", "-o", run, slow=0.02)
    until(lambda: steps_reported(run) >= 9, process)
    before = steps_reported(run)
    ended = process.kill(how)
    found = re.search(r"^stopped safely at step (\d+); run the same command to resume$", ended.err, re.M)
    assert found
    assert (ended.code, ended.out) == (code, "")
    step = int(found[1])
    assert step == max(Run(run).checkpoints.steps()) == steps_reported(run) >= before
    again = train(place, run)
    assert (again.code, resumed_from(again)) == (0, step)
    assert_same_end(place / "whole", run)


def hashes(run: Path) -> dict[str, str]:
    return {str(file.relative_to(run)): sha256(file) for file in run.rglob("*") if file.is_file()}


def test_a_finished_run_trained_again_changes_nothing(place: Path) -> None:
    before, listed = hashes(place / "whole"), (place / "whole" / "README.md").stat().st_mtime_ns
    ended = train(place, "whole")
    assert ended.code == 0
    assert "this run is already finished, at step 60" in ended.err
    assert hashes(place / "whole") == before
    assert (place / "whole" / "README.md").stat().st_mtime_ns == listed


@pytest.mark.parametrize(
    ("setting", "difference"),
    [
        ("train.dropout=0.3", "train.dropout was 0.2, is 0.3"),
        ("seed=12", "seed was 11, is 12"),
    ],
)
def test_another_recipe_is_refused(place: Path, setting: str, difference: str) -> None:
    before = hashes(place / "half")
    ended = train(place, "half", "--set", setting)
    assert ended.code == 2
    assert f"half: was begun with another recipe:\n  {difference}\nOnly train.report_every, " in ended.err
    assert hashes(place / "half") == before


def test_another_number_of_threads_is_noted(place: Path, half: Path) -> None:
    ended = train(place, half, "--set", "runtime.threads=2")
    assert (ended.code, resumed_from(ended)) == (0, 35)
    assert "note: threads was 1, is 2: the last bits will differ" in ended.err


def test_how_often_to_save_may_change(place: Path, half: Path) -> None:
    words = [
        word for name in ("save_every=11", "eval_every=10", "report_every=3") for word in ("--set", f"train.{name}")
    ]
    ended = train(place, half, *words)
    assert (ended.code, resumed_from(ended)) == (0, 35)
    last = Path("checkpoints", "step-60", "model.safetensors")
    assert sha256(half / last) == sha256(place / "whole" / last)
    steps = [line["step"] for line in timeless(half)]
    assert steps[-12:] == [35, 36, 39, 40, 42, 45, 48, 50, 51, 54, 57, 60]


@pytest.mark.parametrize("name", ["half", "young"])
def test_other_data_is_refused(tmp_path: Path, place: Path, name: str) -> None:
    """Also where there is no checkpoint yet that could have noted it."""
    if name == "young" and not (place / name).exists():
        assert train(place, name, after_step=3, signal=signal.SIGKILL).code == -signal.SIGKILL
    write_recipe(tmp_path)
    shutil.copytree(place / name, tmp_path / "run")
    rows = tmp_path / "rows.csv"
    rows.write_text(rows.read_text().replace("good", "fine", 1))
    ended = train(tmp_path, "run")
    assert ended.code == 2
    assert "run: the data has changed since this run was begun; to train anew, choose another folder: `-o OTHER`" in (
        ended.err
    )
    go_on = "; to go on from this model with the new rows: `-o OTHER --set init=run`"
    assert (go_on in ended.err) == (name == "half")  # the young one has no model yet
    if name == "half":
        on = train(tmp_path, "on", "--set", "init=run", "--set", "train.steps=2")
        assert on.code == 0, on.err
        assert "note: output layer taken from run\n" in on.err


def remove_tail(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("model.safetensors", flip),
        ("optimiser.safetensors", flip),
        ("progress.json", flip),
        ("MANIFEST.json", flip),
        ("optimiser.safetensors", remove_tail),
        ("model.safetensors", Path.unlink),
        ("MANIFEST.json", Path.unlink),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(place: Path, half: Path, name: str, harm: Callable[[Path], None]) -> None:
    file = half / "checkpoints" / "step-35" / name
    harm(file)
    ended = train(place, half)
    assert (ended.code, resumed_from(ended)) == (0, 28)
    assert f"note: {file}: " in ended.err
    assert "; resuming from step 28, and the damaged checkpoint is kept as step-35.damaged-1\n" in ended.err
    assert_same_end(place / "whole", half)


def test_two_damaged_checkpoints_cost_no_sound_one(place: Path, half: Path) -> None:
    for step in (35, 28):
        flip(half / "checkpoints" / f"step-{step}" / "progress.json")
    ended = train(place, half, after_step=21, signal=signal.SIGTERM)
    assert (ended.code, resumed_from(ended)) == (143, 20)
    assert Run(half).checkpoints.steps() == [22, 21, 20]
    ended = train(place, half)
    assert (ended.code, resumed_from(ended)) == (0, 22)
    assert_same_end(place / "whole", half)


def test_without_a_sound_checkpoint_training_starts_at_step_0(place: Path, half: Path) -> None:
    for step in (35, 28, 20):
        (half / "checkpoints" / f"step-{step}" / "MANIFEST.json").write_text("[]")
    ended = train(place, half)
    assert (ended.code, resumed_from(ended)) == (0, 0)
    assert ended.err.count("training starts at step 0") == 3
    assert_same_end(place / "whole", half)


@pytest.mark.parametrize("largest", [40_000, 20_000])
def test_a_full_disk_is_told_and_costs_nothing(place: Path, half: Path, largest: int) -> None:
    """A limit on the size of files stands for the full disk: writing fails in the same place, with another number."""
    (half / "metrics.jsonl").write_text("")  # it may be larger than the limit
    ended = train(place, half, largest_file=largest)
    assert ended.code == 2
    assert re.search(
        r"error: .*copy: step 4[02] cannot be written: .*File too large.*; the last checkpoint is intact", ended.err
    )
    assert all(not part.problems for part in verify(half)[0])
    assert max(Run(half).checkpoints.steps()) == 35
    assert qkv.load(half).predict(["good"])[0].label in ("neg", "pos")
    again = train(place, half)
    assert (again.code, resumed_from(again)) == (0, 35)
    for name in ("model.safetensors", "checkpoints/step-60/optimiser.safetensors"):
        assert sha256(half / name) == sha256(place / "whole" / name)


def test_runs_are_compared(place: Path) -> None:
    again = place / "again"
    assert train(place, again).code == 0
    assert train(place, "other", "--set", "train.dropout=0.3", "--set", "train.steps=25").code == 0
    equal = fork_server().run(place, "compare", "whole", "again")
    assert equal.code == 0
    assert "again against whole" in equal.out
    assert "the same recipe, data and machine: the results must be equal to the bit" in equal.out
    other = fork_server().run(place, "compare", "whole", "other", "-o", "curves.png")
    assert other.code == 0
    assert "train.dropout was 0.2, is 0.3" in other.out
    assert "train.steps was 60, is 25" in other.out
    assert "must be equal" not in other.out
    assert (place / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "accuracy 0." in other.out
    alone = fork_server().run(place, "compare", "whole")
    assert (alone.code, alone.err) == (2, "error: whole: only one run; give two or more\n")
    none = fork_server().run(place, "compare", "whole", "cache")
    assert (none.code, none.err) == (2, "error: cache: is not a run; a run is a folder that `qkv train` wrote\n")


# --- kills


def fresh(place: Path, *words: str, fault: dict[str, int] | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a fresh interpreter."""
    start = ["-P", "-m", "qkv.cli.main"] if fault is None else [server.__file__, "once", json.dumps(fault)]
    environment = {**os.environ, "QKV_CACHE": str(place / "cache")}
    command = [sys.executable, *start, *words]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def reference(place: Path) -> Callable[[int], Path]:
    """The uninterrupted run in two threads, by the number of micro-batches."""

    def of(pieces: int) -> Path:
        run = place / f"reference-{pieces}"
        if not run.exists():
            ended = fresh(place, "train", "my.toml", "-o", run.name, *choice(pieces))
            assert ended.returncode == 0, ended.stderr
        return run

    return of


def choice(pieces: int) -> list[str]:
    return ["--set", f"train.micro_batches={pieces}", "--set", "runtime.threads=2"]


@pytest.mark.faults
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("step", [38, 2 * EPOCH], ids=["mid-epoch", "epoch boundary"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_resume_in_a_fresh_process_ends_equal(
    place: Path, reference: Callable[[int], Path], pieces: int, step: int, how: signal.Signals
) -> None:
    run = f"killed-{pieces}-{step}-{how.name}"
    asked = how == signal.SIGTERM  # it stops at the step after the one in which it was asked
    fault = {"after_step": step - 1 if asked else step, "signal": int(how)}
    first = fresh(place, "train", "my.toml", "-o", run, *choice(pieces), fault=fault)
    assert first.returncode == (143 if asked else -signal.SIGKILL), first.stderr
    assert steps_reported(place / run) == step
    second = fresh(place, "train", "my.toml", "-o", run, *choice(pieces))
    assert second.returncode == 0, second.stderr
    saved = resumed_from(Ended(0, second.stdout, second.stderr))
    assert saved == (step if asked else step - step % SAVED)
    assert 0 <= step - saved < SAVED
    assert_same_end(reference(pieces), place / run)


@pytest.mark.faults
def test_forty_kills_at_random_moments(place: Path) -> None:
    """Wherever the process is: opening its run, in a step, in a validation, between two files. Each loses little."""
    words = ("--set", "train.steps=600", "--set", "train.micro_batches=2", "--set", "train.save_every=5")
    assert train(place, "uninterrupted", *words).code == 0
    run, chance, moved = Run(place / "killed-often"), random.Random(3), 0
    for kill in range(40):
        saved = max(run.checkpoints.steps(), default=0)
        process = fork_server().start(place, "train", "my.toml", "-o", run.path, *words)
        if kill % 4:  # the others are killed while they open their run
            _until_step(process, run, saved + chance.randrange(12))
        time.sleep(chance.random() * (0.02 if kill % 4 else 0.4))
        ended = process.kill(signal.SIGKILL)
        assert ended.code == -signal.SIGKILL
        if kill % 4 and saved:
            assert resumed_from(ended) == saved
        if run.begun:
            assert all(not part.problems for part in verify(run.path)[0])
            reached, kept = steps_reported(run.path), max(run.checkpoints.steps(), default=0)
            assert kept >= saved
            assert reached - kept <= 5
            moved += kept > saved
    ended = train(place, run.path, *words)
    assert ended.code == 0, ended.err
    assert resumed_from(ended) > 0
    assert moved > 10
    assert_same_end(place / "uninterrupted", run.path)


def _until_step(process: Process, run: Run, step: int) -> None:
    """Wait until a process has opened its run, and so cut its reports back, and has come to a step."""
    until(lambda: " steps on " in process.err() and steps_reported(run.path) >= step, process)


SHORT = {
    "steps = 60": "steps = 4",
    "save_every = 7": "save_every = 1",
    "eval_every = 20": 'eval_every = 2\nkeep = "last"',
}


@pytest.mark.faults
def test_a_kill_before_any_operation_on_the_disk(tmp_path: Path) -> None:
    """Of a whole training: its beginning, four checkpoints, two models, old checkpoints deleted, the card."""
    text = write_recipe(tmp_path).read_text()
    for old, new in SHORT.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "my.toml").write_text(text)
    fork_server().run(tmp_path, "train-only", "my.toml", "first-of-all")  # prepares the data
    whole = fork_server().run(tmp_path, "train-only", "my.toml", "uninterrupted", operation=0)
    assert whole.code == 0, whole.err
    operations = int(whole.err.split()[-1])
    assert operations > 80
    first = fork_server().run(tmp_path, "train-only", "my.toml", "first", after_step=2, signal=signal.SIGKILL)
    assert first.code == -signal.SIGKILL
    models = [sha256(tmp_path / name / "model.safetensors") for name in ("first", "uninterrupted")]
    assert models[0] != models[1]
    seen = []
    for number in range(1, operations + 1):
        run = tmp_path / f"killed-{number}"
        assert fork_server().run(tmp_path, "train-only", "my.toml", run, operation=number).code == -signal.SIGKILL
        if Run(run).begun:
            assert all(not part.problems for part in verify(run)[0]), number
            seen.append(_model_in(run, models))
        ended = fork_server().run(tmp_path, "train-only", "my.toml", run)
        assert ended.code == 0, ended.err
        assert_same_end(tmp_path / "uninterrupted", run)
        assert Run(run).checkpoints.steps()[:2] == [4, 3]
        shutil.rmtree(run)
    assert seen == sorted(seen)
    assert set(seen) == {-1, 0, 1}


def _model_in(run: Path, models: list[str]) -> int:
    """Which model a reader gets: none yet (-1), or one of these."""
    if not (run / "model.safetensors").exists():
        with pytest.raises(UserError, match="this run has no model yet"):
            qkv.load(run)
        return -1
    assert qkv.load(run).predict(["good warm film"])[0].label in ("neg", "pos")
    return models.index(sha256(run / "model.safetensors"))


# --- the same for masked tokens and next sentences, and for fine-tuning

FILL = """
task = "fill"
seed = 11
[data]
corpus = "documents.txt"
length = 32
[tokenizer]
vocab_size = 200
[model]
context = 64
width = 16
heads = 2
layers = 2
feedforward = 32
positions = "rotary"
embedding_norm = true
output_bias = true
pooler = "tanh"
[train]
pair_overlap = 0.4
token_match = true
steps = 40
batch_tokens = 340
learning_rate = 5e-3
warmup = 5
dropout = 0.2
report_every = 1
save_every = 7
eval_every = 20
[runtime]
threads = 1
"""
TUNE = {"seed = 11\n": 'seed = 11\ninit = "fill-1"\n', "steps = 60": "steps = 40"}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `fill.toml`, its uninterrupted runs `fill-1` and `fill-3` (by the number of micro-batches), and
    `tune.toml`, which fine-tunes the first as a classifier, with `tune-1`."""
    folder, chance = tmp_path_factory.mktemp("kinds"), random.Random(6)
    text = write_recipe(folder).read_text()
    for old, new in TUNE.items():
        assert old in text
        text = text.replace(old, new)
    table, rest = text.split("[model]\n")
    (folder / "tune.toml").write_text(f"{table}[train]\n{rest.split('[train]')[1].lstrip()}")
    (folder / "fill.toml").write_text(FILL)
    words = [*server.GOOD, *server.BAD, *server.OTHER]
    sentences = [" ".join(chance.choices(words, k=chance.choice([2, 4, 7, 11]))).capitalize() for _ in range(400)]
    cuts = sorted(chance.sample(range(1, 400), 79))
    documents = [". ".join(sentences[a:z]) + "." for a, z in zip([0, *cuts], [*cuts, 400], strict=True)]
    (folder / "documents.txt").write_text("\n\n".join(documents))
    for name, pieces in (("fill", 1), ("fill", 3), ("tune", 1)):
        ended = train_kind(folder, name, pieces, f"{name}-{pieces}")
        assert ended.code == 0, ended.err
    return folder


def kind_words(name: str, pieces: int, run: str) -> list[str]:
    return ["train", f"{name}.toml", "-o", run, "--set", f"train.micro_batches={pieces}"]


def train_kind(folder: Path, name: str, pieces: int, run: str, **fault: object) -> Ended:
    return fork_server().run(folder, *kind_words(name, pieces, run), **fault)


def epoch_of(run: Path) -> int:
    """Steps of one epoch."""
    first = timeless(run)[0]
    return round(first["step"] / first["epoch"])


def test_the_recipe_for_documents_has_all_that_could_go_wrong(kinds: Path) -> None:
    lines = timeless(kinds / "fill-1")
    parts = ("token_loss", "next_sentence_loss", "token_match_loss")
    assert all(line[part] > 0 for line in lines for part in parts)
    assert 7 < epoch_of(kinds / "fill-1") < 20
    assert sha256(kinds / "fill-1" / "model.safetensors") != sha256(kinds / "fill-3" / "model.safetensors")


@pytest.mark.parametrize("name", ["fill", "tune"])
def test_a_killed_training_of_another_kind_resumes_to_the_same_bits(kinds: Path, name: str) -> None:
    run = f"killed-{name}"
    assert train_kind(kinds, name, 1, run, after_step=24, signal=signal.SIGKILL).code == -signal.SIGKILL
    ended = train_kind(kinds, name, 1, run)
    assert (ended.code, resumed_from(ended)) == (0, 21)
    assert_same_end(kinds / f"{name}-1", kinds / run)


@pytest.mark.faults
@pytest.mark.parametrize("boundary", [False, True], ids=["mid-epoch", "epoch boundary"])
@pytest.mark.parametrize(("name", "pieces"), [("fill", 1), ("fill", 3), ("tune", 1)])
def test_every_kind_resumes_in_a_fresh_process_and_ends_equal(
    kinds: Path, name: str, pieces: int, boundary: bool
) -> None:
    run, whole = f"fresh-{name}-{pieces}-{boundary}", kinds / f"{name}-{pieces}"
    step = 2 * epoch_of(whole) if boundary else 2 * epoch_of(whole) + 5
    first = fresh(kinds, *kind_words(name, pieces, run), fault={"after_step": step, "signal": int(signal.SIGKILL)})
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert steps_reported(kinds / run) == step
    second = fresh(kinds, *kind_words(name, pieces, run))
    assert second.returncode == 0, second.stderr
    saved = resumed_from(Ended(0, second.stdout, second.stderr))
    assert saved == max(step - step % SAVED, step - step % 20 if step >= 20 else 0)
    assert_same_end(whole, kinds / run)
