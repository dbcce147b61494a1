"""The run folder: one writer at a time, old checkpoints deleted, whole models for readers, and a folder that
transformers loads."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import qkv
from qkv import disk
from qkv.config.recipe import Recipe
from qkv.run.checkpoint import Checkpoint
from qkv.run.folder import Run, changes
from qkv.schema import UserError
from tests.support.fork_server import flip, fork_server, sha256, steps_reported, until, write_recipe

TEXTS = ["a good warm film", "dull and boring", "the plot of a scene with words " * 9]


def checkpoint(step: int) -> Checkpoint:
    tensors = {"w": torch.full((3,), float(step))}
    return Checkpoint(step, tensors, {"w.step": torch.tensor(float(step))}, {"step": step}, {"threads": 1})


def begun(path: Path) -> Run:
    run = Run(path)
    path.mkdir(exist_ok=True)
    run.begin(Recipe(), {"tokenizer.json": b"{}"}, {"data": "hash of the data"})
    return run


def test_the_newest_two_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    for step in range(1, 7):
        run.save(checkpoint(step), best_step=2 if step < 6 else 6)
        assert step in run.checkpoints.steps()
        if step == 5:
            assert run.checkpoints.steps() == [5, 4, 2]
    assert run.checkpoints.steps() == [6, 5]
    assert all(run.checkpoints.problems(step) == [] for step in run.checkpoints.steps())
    assert not [entry for entry in (run.path / "checkpoints").iterdir() if ".tmp-" in entry.name]


def test_the_newest_sound_checkpoint_is_found(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    for step in (1, 2):
        run.save(checkpoint(step), best_step=1)
    flip(run.checkpoints.folder(2) / "model.safetensors")
    found, damaged = run.checkpoints.newest()
    assert found is not None
    assert (found.step, found.weights["w"].tolist(), found.progress) == (1, [1.0] * 3, {"step": 1})
    assert list(damaged) == [2]
    assert "step-2/model.safetensors: its content is not what was written" in damaged[2]
    names = [run.checkpoints.set_aside(2).name]
    run.save(checkpoint(2), best_step=1)  # its place is free
    assert run.checkpoints.load(2).weights["w"].tolist() == [2.0] * 3
    names.append(run.checkpoints.set_aside(2).name)
    assert names == ["step-2.damaged-1", "step-2.damaged-2"]
    assert run.checkpoints.steps() == [1]


def test_a_checkpoint_whose_manifest_lists_nothing_is_not_loaded(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.save(checkpoint(1), best_step=1)
    disk.write_manifest(run.checkpoints.folder(1), [])
    with pytest.raises(UserError, match=r"step-1/model\.safetensors: is not listed"):
        run.checkpoints.load(1)


def test_a_last_line_that_is_not_whole_is_ignored(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    for step in (1, 2, 3):
        run.append({"step": step, "loss": 0.1 + step})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    assert [line["step"] for line in run.metrics()] == [1, 2, 3]
    run.cut_back(2)
    assert (run.path / "metrics.jsonl").read_text() == '{"step": 1, "loss": 1.1}\n{"step": 2, "loss": 2.1}\n'


@pytest.mark.parametrize("line", ["[]", "7", '{"loss": 1}', '{"step": "1"}', "\0\0", "[" * 100_000])
def test_a_damaged_metrics_file_is_named(tmp_path: Path, line: str) -> None:
    run = begun(tmp_path / "run")
    (run.path / "metrics.jsonl").write_text(line + "\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl: is not JSON lines"):
        run.cut_back(0)


@pytest.mark.parametrize("name", ["README.md", "model.safetensors", "config.json", "recipe.toml", "tokenizer.json"])
def test_files_in_a_folder_that_is_not_a_run_are_not_overwritten(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(
        UserError, match=f"{name}: already exists, and the folder is not a run; choose another folder with -o"
    ):
        begun(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    run = begun(tmp_path / "run")
    run.save(checkpoint(1), best_step=1)
    mine = [".notes.new", "old.tmp-7", "notes.txt", ".hidden.txt"]
    for name in (*mine, ".model.safetensors.new", ".MANIFEST.json.tmp-99", ".metrics.jsonl.tmp-1"):
        (run.path / name).touch()
    shutil.copytree(run.checkpoints.folder(1), run.path / "checkpoints" / "step-2.tmp-77")
    with run.lock():
        pass
    assert run.checkpoints.steps() == [1]
    assert [entry.name for entry in (run.path / "checkpoints").iterdir()] == ["step-1"]
    assert not (run.path / ".model.safetensors.new").exists()
    there = [entry.name for entry in run.path.iterdir()]
    assert set(mine) < set(there)
    assert sorted(name for name in there if name.endswith(".new") or ".tmp-" in name) == [".notes.new", "old.tmp-7"]


def test_only_one_holds_the_lock(tmp_path: Path) -> None:
    one, other = Run(tmp_path / "run"), Run(tmp_path / "run")
    with one.lock(), pytest.raises(UserError, match="another process is training this run"), other.lock():
        pass
    with Run(tmp_path / "run").lock():
        pass
    assert not (tmp_path / "run").exists(), "a folder that nothing was written into is not left behind"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file; a run is a folder"), Run(tmp_path / "file").lock():
        pass
    with pytest.raises(UserError, match="cannot be written"), Run(tmp_path / "file" / "run").lock():
        pass


def test_a_disk_without_room_is_refused_before_the_first_step(tmp_path: Path) -> None:
    huge = {"w": torch.empty(1).expand(2**60)}
    with pytest.raises(UserError, match=r"checkpoints need [\d,]+ MiB and [\d,]+ MiB are free; make room, or choose"):
        begun(tmp_path / "run").checkpoints.check_room(huge)


def test_changes_name_the_key() -> None:
    one, other = Recipe(), Recipe().replace(seed=8, train={"dropout": 0.25, "save_every": 3})
    assert changes(one, other, ignore=("train.save_every",)) == ["seed was 7, is 8", "train.dropout was 0.1, is 0.25"]


# --- with real trainings


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    write_recipe(folder)
    return folder


def test_a_second_process_is_refused_while_the_first_runs(place: Path) -> None:
    run = place / "locked"
    words = ("train", "my.toml", "-o", run, "--set", "train.steps=100000")
    first = fork_server().start(place, *words, slow=0.05)
    until(lambda: steps_reported(run) >= 8, first)
    second = fork_server().run(place, *words)
    assert second.code == 2
    assert "another process is training this run; wait for it, or stop it" in second.err
    repair = fork_server().run(place, "verify", run, "--repair")
    assert repair.code == 2
    assert "another process" in repair.err
    assert first.kill(signal.SIGKILL).code == -signal.SIGKILL
    third = fork_server().start(place, *words)
    until(lambda: "resuming from step" in third.err(), third)
    assert third.kill(signal.SIGKILL).code == -signal.SIGKILL


def test_predict_works_during_training(place: Path) -> None:
    """A training that replaces its model at every step, and readers that never meet half a model."""
    run = place / "read"
    often = ("steps=100000", "eval_every=1", "keep=last", "save_every=1")
    words = [word for setting in often for word in ("--set", f"train.{setting}")]
    process = fork_server().start(place, "train", "my.toml", "-o", run, *words)
    until(lambda: (run / "model.safetensors").exists(), process)
    found = set[float]()
    while len(found) < 5:  # different models
        assert process.code() is None, process.err()
        (prediction,) = qkv.load(run).predict(["good warm film"])
        assert prediction.probabilities is not None
        found.add(prediction.probabilities["pos"])
    assert process.kill(signal.SIGTERM).code == 128 + signal.SIGTERM


@pytest.fixture(scope="module")
def trained(place: Path) -> Path:
    ended = fork_server().run(place, "train", "my.toml", "-o", "trained", "--set", "train.steps=20")
    assert ended.code == 0, ended.err
    return place / "trained"


def test_the_folder_loads_with_transformers(trained: Path) -> None:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(trained)
    model: Any = AutoModelForSequenceClassification.from_pretrained(trained).eval()
    assert type(model).__name__ == "RoFormerForSequenceClassification"
    for text, ours in zip(TEXTS, qkv.load(trained).predict(TEXTS), strict=True):
        with torch.no_grad():
            logits_1C = model(**tokenizer(text, truncation=True, return_tensors="pt")).logits
        theirs = {model.config.id2label[n]: p for n, p in enumerate(logits_1C.softmax(-1)[0].tolist())}
        assert ours.probabilities == pytest.approx(theirs, abs=1e-5)


def test_parts_without_a_hugging_face_architecture_are_not_exported(place: Path) -> None:
    run = place / "alibi"
    words = ("--set", "model.positions=alibi", "--set", "train.steps=20")
    assert fork_server().run(place, "train", "my.toml", "-o", run, *words).code == 0
    assert json.loads((run / "config.json").read_bytes())["model_type"] == "qkv"
    assert [set(one.probabilities or ()) for one in qkv.load(run).predict(TEXTS)] == [{"neg", "pos"}] * 3
    ended = fork_server().run(place, "export", run, "-o", place / "exported")
    assert ended.code == 2
    assert "needs positions = 'rotary' (here 'alibi')" in ended.err
    assert not (place / "exported").exists()


def test_the_root_says_which_step_its_model_is_of(trained: Path) -> None:
    facts = Run(trained).facts()
    assert facts["step"] == 20
    assert facts["sha256"] == sha256(trained / "model.safetensors")
    temperature = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])["validation_temperature"]
    assert facts["temperature"] == temperature == qkv.load(trained).input_options.temperature
