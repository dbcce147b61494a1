"""A damaged file is named, never used, and repaired where it can be; and the verdict of a crash test can be trusted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import qkv
from qkv import disk
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.verify import compare_to_the_bit, verify
from tests.support.fork_server import assert_same_end, flip, fork_server, sha256, write_recipe


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a finished run, `whole`."""
    folder = tmp_path_factory.mktemp("place")
    write_recipe(folder)
    ended = fork_server().live(folder, "train", "my.toml", "-o", "whole")
    assert ended.code == 0, ended.err
    assert best(folder) < 56, "the model is to come from neither of the last two checkpoints"
    return folder


def best(place: Path) -> int:
    """The step whose model is kept."""
    return int(Run(place / "whole").facts()["step"])


@pytest.fixture
def run(place: Path) -> Path:
    """A copy of the finished run, to be damaged."""
    shutil.rmtree(place / "copy", ignore_errors=True)
    return Path(shutil.copytree(place / "whole", place / "copy"))


def test_a_sound_run_is_as_written(place: Path) -> None:
    ended = fork_server().live(place, "verify", "whole")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        *(f"{part:<12} as written" for part in ("root", "step 60", "step 56", f"step {best(place)}")),
        "this run is finished; training it again changes nothing",
    ]


def test_what_is_no_run_is_said_to_be_none(place: Path) -> None:
    ended = fork_server().live(place, "verify", "cache")
    assert (ended.code, ended.out) == (2, "")
    assert ended.err == "error: cache: is no run: it has no MANIFEST.json; a run is what `qkv train` writes\n"


def test_a_damaged_model_is_used_by_nobody_and_made_anew_to_the_bit(place: Path, run: Path) -> None:
    flip(run / "model.safetensors")
    ended = fork_server().live(place, "verify", run)
    assert ended.code == 1
    assert "model.safetensors: its content is not what was written" in ended.out
    assert "its root is damaged" in ended.out
    for words in (["predict", str(run), "good"], ["eval", str(run)], ["train", "my.toml", "-o", str(run)]):
        ended = fork_server().live(place, *words)
        assert (ended.code, ended.out) == (2, ""), words
        assert f"{run / 'model.safetensors'}: its content is not what was written" in ended.err
    ended = fork_server().live(place, "verify", run, "--repair")
    assert ended.code == 0, ended.err
    assert f"its model was made anew from step {best(place)}; its card is written when it is trained again" in ended.out
    assert sha256(run / "model.safetensors") == sha256(place / "whole" / "model.safetensors")
    assert fork_server().live(place, "train", "my.toml", "-o", run).code == 0
    assert_same_end(place / "whole", run)
    assert (run / "README.md").read_text() == (place / "whole" / "README.md").read_text().replace("# whole", "# copy")
    assert fork_server().live(place, "verify", run, "--repair").out.startswith("nothing to repair\n")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "README.md", "MANIFEST.json", "recipe.toml"])
@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_damage_to_the_root_is_named(run: Path, name: str, harm: Callable[[Path], None]) -> None:
    harm(run / name)
    if name == "MANIFEST.json" and harm is Path.unlink:
        with pytest.raises(UserError, match=r"is no run: it has no MANIFEST\.json"):
            verify(run)
        return
    findings, future = verify(run)
    assert [finding.part for finding in findings if finding.problems] == ["root"]
    assert str(run / name) in findings[0].problems[0]
    assert "its root is damaged" in future
    with pytest.raises(UserError, match=str(run / name)):
        qkv.load(run)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "MANIFEST.json"])
def test_the_root_is_made_anew_from_the_data_and_the_checkpoints(place: Path, run: Path, name: str) -> None:
    flip(run / name)
    refused = fork_server().live(place, "train", "my.toml", "-o", run)
    assert refused.code == 2
    assert f"{run / name}" in refused.err
    assert fork_server().live(place, "verify", run, "--repair").code == 0
    for file in ("model.safetensors", "config.json", "tokenizer.json", "recipe.toml"):
        assert sha256(run / file) == sha256(place / "whole" / file)
    assert Run(run).facts() == Run(place / "whole").facts()
    assert verify(run)[1] == "the same qkv train command goes on from step 60"


def test_a_run_of_an_older_version_is_repaired(place: Path, run: Path) -> None:
    """A later qkv has more keys, so the recipe it writes is longer than the one that was listed."""
    file = run / "recipe.toml"
    older = "".join(line for line in file.read_text().splitlines(True) if not line.startswith("label_smoothing"))
    assert len(older) < file.stat().st_size
    disk.replace_listed(run, "recipe.toml", older.encode(), data=Run(run).began_with()["data"])
    flip(run / "README.md")
    assert fork_server().live(place, "verify", run, "--repair").code == 0
    assert sha256(file) == sha256(place / "whole" / "recipe.toml")
    assert not Run(run).problems()


def test_a_damaged_recipe_is_not_guessed(place: Path, run: Path) -> None:
    file = run / "recipe.toml"
    file.write_text(file.read_text().replace("dropout = 0.2", "dropout = 0.3"))
    for words in (["train", "my.toml", "-o", str(run)], ["verify", str(run), "--repair"]):
        ended = fork_server().live(place, *words)
        assert ended.code == 2
        assert str(file) in ended.err
    assert "is damaged, and nothing else tells what it said" in ended.err


def test_repair_refuses_what_would_make_another_model(place: Path, run: Path) -> None:
    flip(run / "model.safetensors")
    flip(run / "checkpoints" / f"step-{best(place)}" / "model.safetensors")
    ended = fork_server().live(place, "verify", run, "--repair")
    assert ended.code == 2
    assert f"its model came from step {best(place)}, whose checkpoint is lost too" in ended.err
    assert (run / "checkpoints" / f"step-{best(place)}.damaged-1").is_dir()
    assert Run(run).problems(), "it is still damaged, and says so"


def test_repair_refuses_other_data(place: Path, run: Path) -> None:
    flip(run / "tokenizer.json")
    rows = place / "rows.csv"
    before = rows.read_text()
    try:
        rows.write_text(before + "one more good row,pos\n")
        ended = fork_server().live(place, "verify", run, "--repair")
    finally:
        rows.write_text(before)
    assert ended.code == 2
    assert "the data has changed since this run was begun" in ended.err


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "progress.json", "MANIFEST.json"])
def test_a_damaged_checkpoint_is_named_and_set_aside(place: Path, run: Path, name: str) -> None:
    file = run / "checkpoints" / "step-56" / name
    flip(file)
    ended = fork_server().live(place, "verify", run)
    assert ended.code == 1
    assert str(file) in ended.out
    ended = fork_server().live(place, "verify", run, "--repair")
    assert ended.code == 0
    assert "step-56 is damaged and was set aside as step-56.damaged-1" in ended.out
    assert Run(run).checkpoints() == [60, best(place)]


def test_the_verdict_sees_every_difference(place: Path, run: Path) -> None:
    whole = Run(place / "whole")
    assert compare_to_the_bit(whole, Run(run)).holds
    last, metrics = run / "checkpoints" / "step-60", run / "metrics.jsonl"
    for number, file in enumerate(
        [run / "model.safetensors", last / "model.safetensors", last / "optimiser.safetensors"]
    ):
        flip(file)
        verdict = compare_to_the_bit(whole, Run(run))
        assert list(verdict.equal.values()) == [place != number for place in range(4)]
        flip(file)
    text = metrics.read_text()
    metrics.write_text(text.replace('"seconds": ', '"seconds": 1'))
    assert compare_to_the_bit(whole, Run(run)).holds
    metrics.write_text(text.replace('"loss": ', '"loss": 1', 1))
    assert not compare_to_the_bit(whole, Run(run)).holds


@pytest.mark.faults
def test_crash_test_kills_and_compares(place: Path) -> None:
    """The command itself, in fresh processes: two deaths, and an end equal to the bit."""
    words = ("--kills", "2", "--set", "train.steps=400", "--set", "train.save_every=10")
    ended = fork_server().live(place, "crash-test", "my.toml", *words, "-o", "crashes")
    assert ended.code == 0, ended.out + ended.err
    deaths = [line.split() for line in ended.out.splitlines() if "SIG" in line]
    assert [death[:2] for death in deaths] == [["1", "SIGKILL"], ["2", "SIGTERM"]]
    assert ended.out.count("equal to the bit") == 4
    assert_same_end(place / "crashes" / "whole", place / "crashes" / "killed")
    again = fork_server().live(place, "crash-test", "my.toml", "-o", "crashes")
    assert again.code == 2
    assert "crashes: is not empty; a crash test begins anew" in again.err
