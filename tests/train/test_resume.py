"""A training can be killed at any instant, and the same command goes on to the same bits.

The recipe has all that could go astray: dropout, hidden tokens, ragged lengths, several epochs, a best model that is
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

import fork_server
import pytest

import qkv
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.verify import verify
from tests.support.fork_server import (
    EPOCH,
    Ended,
    Process,
    assert_same_end,
    flip,
    fork_server,
    sha256,
    steps_reported,
    until,
    write_recipe,
)

SAVED = 7  # save_every of the recipe


def went_on_from(ended: Ended) -> int:
    """The step at which a life says that it went on."""
    found = re.search(r"^going on from step ([\d,]+)$", ended.err, re.M)
    return int(found[1].replace(",", "")) if found else 0


def train(place: Path, run: Path | str, *words: str, **death: object) -> Ended:
    return fork_server().live(place, "train", "my.toml", "-o", run, *words, **death)


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
    lines = fork_server.timeless(place / "whole")
    assert [line["step"] for line in lines] == list(range(1, 4 * EPOCH + 5))
    assert lines[EPOCH - 1]["epoch"] == 1.0
    assert Run(place / "half").checkpoints() == [35, 28, 20]
    assert steps_reported(place / "half") == 38


def test_a_killed_training_goes_on_to_the_same_bits(place: Path, half: Path) -> None:
    assert verify(half)[1] == "the same qkv train command goes on from step 35"
    ended = train(place, half)
    assert (ended.code, went_on_from(ended)) == (0, 35)
    assert_same_end(place / "whole", half)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_asked_to_stop_it_stops_at_the_next_step_and_can_go_on(place: Path, how: signal.Signals, code: int) -> None:
    run = place / how.name
    life = fork_server().start(place, "train", "my.toml", "-o", run, slow=0.02)
    until(lambda: steps_reported(run) >= 9, life)
    before = steps_reported(run)
    ended = life.kill(how)
    found = re.search(r"^stopped safely at step (\d+); the same command goes on from there$", ended.err, re.M)
    assert found
    assert (ended.code, ended.out) == (code, "")
    step = int(found[1])
    assert step == max(Run(run).checkpoints()) == steps_reported(run) >= before
    again = train(place, run)
    assert (again.code, went_on_from(again)) == (0, step)
    assert_same_end(place / "whole", run)


def hashes(run: Path) -> dict[str, str]:
    return {str(file.relative_to(run)): sha256(file) for file in run.rglob("*") if file.is_file()}


def test_a_finished_run_trained_again_changes_nothing(place: Path) -> None:
    before, listed = hashes(place / "whole"), (place / "whole" / "README.md").stat().st_mtime_ns
    ended = train(place, "whole")
    assert ended.code == 0
    assert "this run was finished before, at step 60" in ended.err
    assert hashes(place / "whole") == before
    assert (place / "whole" / "README.md").stat().st_mtime_ns == listed


@pytest.mark.parametrize(
    ("setting", "difference"),
    [
        ("train.dropout=0.3", "train.dropout was 0.2, is 0.3"),
        ("runtime.threads=2", "runtime.threads was 1, is 2"),
        ("seed=12", "seed was 11, is 12"),
    ],
)
def test_another_recipe_is_refused(place: Path, setting: str, difference: str) -> None:
    before = hashes(place / "half")
    ended = train(place, "half", "--set", setting)
    assert ended.code == 2
    assert f"half: was begun with another recipe:\n  {difference}\nOnly train.report_every, " in ended.err
    assert hashes(place / "half") == before


def test_how_often_to_save_may_change(place: Path, half: Path) -> None:
    words = [
        word for name in ("save_every=11", "eval_every=10", "report_every=3") for word in ("--set", f"train.{name}")
    ]
    ended = train(place, half, *words)
    assert (ended.code, went_on_from(ended)) == (0, 35)
    last = Path("checkpoints", "step-60", "model.safetensors")
    assert sha256(half / last) == sha256(place / "whole" / last)
    assert [line["step"] for line in fork_server.timeless(half)][-10:] == [35, 36, 39, 40, 42, 45, 48, 50, 51, 54, 57, 60][
        -10:
    ]


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
    assert "run: the data has changed since this run was begun; it cannot go on with other data" in ended.err


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
    assert (ended.code, went_on_from(ended)) == (0, 28)
    assert f"note: {file}: " in ended.err
    assert "the checkpoint of step 28 is used, and the damaged one is set aside as step-35.damaged-1" in ended.err
    assert_same_end(place / "whole", half)


def test_two_damaged_checkpoints_cost_no_sound_one(place: Path, half: Path) -> None:
    for step in (35, 28):
        flip(half / "checkpoints" / f"step-{step}" / "progress.json")
    ended = train(place, half, after_step=21, signal=signal.SIGTERM)
    assert (ended.code, went_on_from(ended)) == (143, 20)
    assert Run(half).checkpoints() == [22, 21, 20]
    ended = train(place, half)
    assert (ended.code, went_on_from(ended)) == (0, 22)
    assert_same_end(place / "whole", half)


def test_without_a_sound_checkpoint_it_begins_anew(place: Path, half: Path) -> None:
    for step in (35, 28, 20):
        (half / "checkpoints" / f"step-{step}" / "MANIFEST.json").write_text("[]")
    ended = train(place, half)
    assert (ended.code, went_on_from(ended)) == (0, 0)
    assert ended.err.count("training begins at step 0") == 3
    assert_same_end(place / "whole", half)


@pytest.mark.parametrize("largest", [40_000, 20_000])
def test_a_full_disk_is_told_and_costs_nothing(place: Path, half: Path, largest: int) -> None:
    """A limit on the size of files stands for the full disk: writing fails in the same place, with another number."""
    (half / "metrics.jsonl").write_text("")  # it may be larger than the limit
    ended = train(place, half, largest_file=largest)
    assert ended.code == 2
    assert re.search(
        r"error: .*copy: step 4[02] cannot be written: .*File too large.*; what was saved before", ended.err
    )
    assert all(not finding.problems for finding in verify(half)[0])
    assert max(Run(half).checkpoints()) == 35
    assert qkv.load(half).predict(["good"])[0].label in ("neg", "pos")
    again = train(place, half)
    assert (again.code, went_on_from(again)) == (0, 35)
    for name in ("model.safetensors", "checkpoints/step-60/optimiser.safetensors"):
        assert sha256(half / name) == sha256(place / "whole" / name)


def test_runs_are_compared(place: Path) -> None:
    again = place / "again"
    assert train(place, again).code == 0
    assert train(place, "other", "--set", "train.dropout=0.3", "--set", "train.steps=25").code == 0
    equal = fork_server().live(place, "compare", "whole", "again")
    assert equal.code == 0
    assert "again against whole" in equal.out
    assert "the same recipe, data and machine: they must agree to the bit" in equal.out
    other = fork_server().live(place, "compare", "whole", "other", "-o", "curves.png")
    assert other.code == 0
    assert "train.dropout was 0.2, is 0.3" in other.out
    assert "train.steps was 60, is 25" in other.out
    assert "must agree" not in other.out
    assert (place / "curves.png").read_bytes().startswith(b"\x89PNG")
    none = fork_server().live(place, "compare", "whole", "cache")
    assert (none.code, none.err) == (2, "error: cache: is no run; a run is what `qkv train` writes\n")


# --- deaths


def fresh(place: Path, *words: str, death: dict[str, int] | None = None) -> subprocess.CompletedProcess[str]:
    """A command in a fresh interpreter."""
    start = ["-m", "qkv.cli.main"] if death is None else [fork_server.__file__, "once", json.dumps(death)]
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
    death = {"after_step": step - 1 if asked else step, "signal": int(how)}
    first = fresh(place, "train", "my.toml", "-o", run, *choice(pieces), death=death)
    assert first.returncode == (143 if asked else -signal.SIGKILL), first.stderr
    assert steps_reported(place / run) == step
    second = fresh(place, "train", "my.toml", "-o", run, *choice(pieces))
    assert second.returncode == 0, second.stderr
    saved = went_on_from(Ended(0, second.stdout, second.stderr))
    assert saved == (step if asked else step - step % SAVED)
    assert 0 <= step - saved < SAVED
    assert_same_end(reference(pieces), place / run)


@pytest.mark.faults
def test_forty_kills_at_random_moments(place: Path) -> None:
    """Wherever a life is: opening its run, in a step, in an evaluation, between two files. Each loses little."""
    words = ("--set", "train.steps=600", "--set", "train.micro_batches=2", "--set", "train.save_every=5")
    assert train(place, "peace", *words).code == 0
    run, chance, moved = Run(place / "war"), random.Random(3), 0
    for kill in range(40):
        saved = max(run.checkpoints.steps(), default=0)
        life = fork_server().start(place, "train", "my.toml", "-o", run.path, *words)
        if kill % 4:  # the others die while they open their run
            _until_step(life, run, saved + chance.randrange(12))
        time.sleep(chance.random() * (0.02 if kill % 4 else 0.4))
        ended = life.kill(signal.SIGKILL)
        assert ended.code == -signal.SIGKILL
        if kill % 4 and saved:
            assert went_on_from(ended) == saved
        if run.begun:
            assert all(not finding.problems for finding in verify(run.path)[0])
            reached, kept = steps_reported(run.path), max(run.checkpoints.steps(), default=0)
            assert kept >= saved
            assert reached - kept <= 5
            moved += kept > saved
    ended = train(place, run.path, *words)
    assert ended.code == 0, ended.err
    assert went_on_from(ended) > 0
    assert moved > 10
    assert_same_end(place / "peace", run.path)


def _until_step(life: Process, run: Run, step: int) -> None:
    """Wait until a life has opened its run, and so cut its reports back, and has come to a step."""
    until(lambda: " steps on " in life.err() and steps_reported(run.path) >= step, life)


SHORT = {
    "steps = 60": "steps = 4",
    "save_every = 7": "save_every = 1",
    "eval_every = 20": 'eval_every = 2\nkeep = "last"',
}


@pytest.mark.faults
def test_a_kill_before_any_operation_on_the_disk(tmp_path: Path) -> None:
    """Of a whole training: its beginning, four checkpoints, two models, old checkpoints let go of, the card."""
    text = write_recipe(tmp_path).read_text()
    for old, new in SHORT.items():
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "my.toml").write_text(text)
    whole = fork_server().live(tmp_path, "learn", "my.toml", "whole", operation=0)
    whole = fork_server().live(tmp_path, "learn", "my.toml", "peace", operation=0)  # the data is prepared by now
    assert whole.code == 0, whole.err
    operations = int(whole.err.split()[-1])
    assert operations > 80
    first = fork_server().live(tmp_path, "learn", "my.toml", "first", after_step=2, signal=signal.SIGKILL)
    assert first.code == -signal.SIGKILL
    models = [sha256(tmp_path / name / "model.safetensors") for name in ("first", "peace")]
    assert models[0] != models[1]
    seen = []
    for number in range(1, operations + 1):
        run = tmp_path / f"killed-{number}"
        assert fork_server().live(tmp_path, "learn", "my.toml", run, operation=number).code == -signal.SIGKILL
        if Run(run).begun:
            assert all(not finding.problems for finding in verify(run)[0]), number
            seen.append(_model_in(run, models))
        ended = fork_server().live(tmp_path, "learn", "my.toml", run)
        assert ended.code == 0, ended.err
        assert_same_end(tmp_path / "peace", run)
        assert Run(run).checkpoints()[:2] == [4, 3]
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


# --- the same for hidden words and next sentences, and for a training that goes on from another model

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
    `tune.toml`, which goes on from the first to labels, with `tune-1`."""
    folder, chance = tmp_path_factory.mktemp("kinds"), random.Random(6)
    text = write_recipe(folder).read_text()
    for old, new in TUNE.items():
        assert old in text
        text = text.replace(old, new)
    table, rest = text.split("[model]\n")
    (folder / "tune.toml").write_text(f"{table}[train]\n{rest.split('[train]')[1].lstrip()}")
    (folder / "fill.toml").write_text(FILL)
    words = [*fork_server.GOOD, *fork_server.BAD, *fork_server.OTHER]
    sentences = [" ".join(chance.choices(words, k=chance.choice([2, 4, 7, 11]))).capitalize() for _ in range(400)]
    cuts = sorted(chance.sample(range(1, 400), 79))
    documents = [". ".join(sentences[a:z]) + "." for a, z in zip([0, *cuts], [*cuts, 400], strict=True)]
    (folder / "documents.txt").write_text("\n\n".join(documents))
    for name, pieces in (("fill", 1), ("fill", 3), ("tune", 1)):
        ended = learn_kind(folder, name, pieces, f"{name}-{pieces}")
        assert ended.code == 0, ended.err
    return folder


def kind_words(name: str, pieces: int, run: str) -> list[str]:
    return ["train", f"{name}.toml", "-o", run, "--set", f"train.micro_batches={pieces}"]


def learn_kind(folder: Path, name: str, pieces: int, run: str, **death: object) -> Ended:
    return fork_server().live(folder, *kind_words(name, pieces, run), **death)


def epoch_of(run: Path) -> int:
    """Steps of one epoch."""
    first = fork_server.timeless(run)[0]
    return round(first["step"] / first["epoch"])


def test_the_recipe_for_documents_has_all_that_could_go_astray(kinds: Path) -> None:
    lines = fork_server.timeless(kinds / "fill-1")
    assert all(line["word_loss"] > 0 and line["next_loss"] > 0 for line in lines)
    assert 7 < epoch_of(kinds / "fill-1") < 20
    assert sha256(kinds / "fill-1" / "model.safetensors") != sha256(kinds / "fill-3" / "model.safetensors")


@pytest.mark.parametrize("name", ["fill", "tune"])
def test_a_killed_training_of_another_kind_goes_on_to_the_same_bits(kinds: Path, name: str) -> None:
    run = f"killed-{name}"
    assert learn_kind(kinds, name, 1, run, after_step=24, signal=signal.SIGKILL).code == -signal.SIGKILL
    ended = learn_kind(kinds, name, 1, run)
    assert (ended.code, went_on_from(ended)) == (0, 21)
    assert_same_end(kinds / f"{name}-1", kinds / run)


@pytest.mark.faults
@pytest.mark.parametrize("boundary", [False, True], ids=["mid-epoch", "epoch boundary"])
@pytest.mark.parametrize(("name", "pieces"), [("fill", 1), ("fill", 3), ("tune", 1)])
def test_every_kind_resumes_in_a_fresh_process_and_ends_equal(
    kinds: Path, name: str, pieces: int, boundary: bool
) -> None:
    run, whole = f"fresh-{name}-{pieces}-{boundary}", kinds / f"{name}-{pieces}"
    step = 2 * epoch_of(whole) if boundary else 2 * epoch_of(whole) + 5
    first = fresh(kinds, *kind_words(name, pieces, run), death={"after_step": step, "signal": int(signal.SIGKILL)})
    assert first.returncode == -signal.SIGKILL, first.stderr
    assert steps_reported(kinds / run) == step
    second = fresh(kinds, *kind_words(name, pieces, run))
    assert second.returncode == 0, second.stderr
    saved = went_on_from(Ended(0, second.stdout, second.stderr))
    assert saved == max(step - step % SAVED, step - step % 20 if step >= 20 else 0)
    assert_same_end(whole, kinds / run)
