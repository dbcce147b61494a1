"""The crash test sees every difference, and runs the installed qkv, whatever the current folder holds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from qkv.crash_test import compare_to_the_bit, train_command
from qkv.run.folder import Run
from tests.support.fork_server import assert_same_end, flip, fork_server, write_recipe


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, a finished run `whole`, and a package `qkv` that no command may import."""
    folder = tmp_path_factory.mktemp("place")
    write_recipe(folder)
    ended = fork_server().run(folder, "train", "my.toml", "-o", "whole")
    assert ended.code == 0, ended.err
    (folder / "qkv").mkdir()
    (folder / "qkv" / "__init__.py").write_text("raise SystemExit('the planted qkv was imported')\n")
    return folder


def test_the_comparison_sees_every_difference(place: Path) -> None:
    run = Path(shutil.copytree(place / "whole", place / "copy"))
    whole = Run(place / "whole")
    assert compare_to_the_bit(whole, Run(run)).holds
    last, metrics = run / "checkpoints" / "step-60", run / "metrics.jsonl"
    for number, file in enumerate(
        [run / "model.safetensors", last / "model.safetensors", last / "optimiser.safetensors"]
    ):
        flip(file)
        comparison = compare_to_the_bit(whole, Run(run))
        assert list(comparison.equal.values()) == [place != number for place in range(4)]
        assert not comparison.holds
        flip(file)
    text = metrics.read_text()
    metrics.write_text(text.replace('"seconds": ', '"seconds": 1'))
    assert compare_to_the_bit(whole, Run(run)).holds
    metrics.write_text(text.replace('"loss": ', '"loss": 1', 1))
    assert not compare_to_the_bit(whole, Run(run)).holds


def test_a_package_qkv_in_the_current_folder_is_not_imported(place: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    environment["QKV_CACHE"] = str(place / "cache")

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)

    unsafe = run(sys.executable, "-m", "qkv.cli.main", "--version")
    assert "the planted qkv was imported" in unsafe.stderr  # so this test would see it
    command = [*train_command("my.toml", ["train.steps=2", "train.eval_every=1"]), "-o", "short"]
    ended = run(*command)
    assert ended.returncode == 0, ended.stderr
    assert Run(place / "short").is_done()


@pytest.mark.faults
def test_crash_test_kills_and_compares(place: Path) -> None:
    """The command itself, in fresh processes: two kills, and an end equal to the bit."""
    words = ("--kills", "2", "--set", "train.steps=400", "--set", "train.save_every=10")
    ended = fork_server().run(place, "crash-test", "my.toml", *words, "-o", "crashes")
    assert ended.code == 0, ended.out + ended.err
    kills = [line.split() for line in ended.out.splitlines() if "SIG" in line]
    assert [kill[:2] for kill in kills] == [["1", "SIGKILL"], ["2", "SIGTERM"]]
    assert ended.out.count("equal to the bit") == 4
    assert_same_end(place / "crashes" / "whole", place / "crashes" / "killed")
    again = fork_server().run(place, "crash-test", "my.toml", "-o", "crashes")
    assert again.code == 2
    assert "crashes: is not empty; a crash test needs a new folder with -o" in again.err
