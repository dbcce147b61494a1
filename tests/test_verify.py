"""A damaged file is named, never used, and repaired where it can be."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import qkv
from qkv import disk
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.verify import verify
from tests.support.fork_server import assert_same_end, flip, fork_server, sha256, write_recipe


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-9])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe and a finished run, `whole`."""
    folder = tmp_path_factory.mktemp("place")
    write_recipe(folder)
    ended = fork_server().run(folder, "train", "my.toml", "-o", "whole")
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


def test_a_sound_run_is_ok(place: Path) -> None:
    ended = fork_server().run(place, "verify", "whole")
    assert ended.code == 0
    assert ended.out.splitlines() == [
        *(f"{part:<12} ok" for part in ("root", "step 60", "step 56", f"step {best(place)}")),
        "this run is finished; the same qkv train command would change nothing",
    ]


def test_a_folder_that_is_not_a_run_is_refused(place: Path) -> None:
    ended = fork_server().run(place, "verify", "cache")
    assert (ended.code, ended.out) == (2, "")
    assert (
        ended.err == "error: cache: is not a run: it has no MANIFEST.json; a run is a folder that `qkv train` wrote\n"
    )


def test_a_damaged_model_is_never_used_and_rebuilt_to_the_bit(place: Path, run: Path) -> None:
    flip(run / "model.safetensors")
    ended = fork_server().run(place, "verify", run)
    assert ended.code == 1
    assert "model.safetensors: its content is not what was written" in ended.out
    assert "the root is damaged, so no command can use this run; try --repair" in ended.out
    for words in (["predict", str(run), "good"], ["eval", str(run)], ["train", "my.toml", "-o", str(run)]):
        ended = fork_server().run(place, *words)
        assert (ended.code, ended.out) == (2, ""), words
        assert f"{run / 'model.safetensors'}: its content is not what was written" in ended.err
    ended = fork_server().run(place, "verify", run, "--repair")
    assert ended.code == 0, ended.err
    assert f"the model was rebuilt from step {best(place)}; `qkv train` writes its card again" in ended.out
    assert sha256(run / "model.safetensors") == sha256(place / "whole" / "model.safetensors")
    assert fork_server().run(place, "train", "my.toml", "-o", run).code == 0
    assert_same_end(place / "whole", run)
    assert (run / "README.md").read_text() == (place / "whole" / "README.md").read_text().replace("# whole", "# copy")
    assert fork_server().run(place, "verify", run, "--repair").out.startswith("nothing to repair\n")


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "README.md", "MANIFEST.json", "recipe.toml"])
@pytest.mark.parametrize("harm", [flip, truncate, Path.unlink])
def test_damage_to_the_root_is_named(run: Path, name: str, harm: Callable[[Path], None]) -> None:
    harm(run / name)
    if name == "MANIFEST.json" and harm is Path.unlink:
        with pytest.raises(UserError, match=r"is not a run: it has no MANIFEST\.json"):
            verify(run)
        return
    parts, outlook = verify(run)
    assert [part.name for part in parts if part.problems] == ["root"]
    assert str(run / name) in parts[0].problems[0]
    assert "the root is damaged" in outlook
    with pytest.raises(UserError, match=str(run / name)):
        qkv.load(run)


@pytest.mark.parametrize("name", ["tokenizer.json", "config.json", "MANIFEST.json"])
def test_the_root_is_rebuilt_from_the_data_and_the_checkpoints(place: Path, run: Path, name: str) -> None:
    flip(run / name)
    refused = fork_server().run(place, "train", "my.toml", "-o", run)
    assert refused.code == 2
    assert f"{run / name}" in refused.err
    assert fork_server().run(place, "verify", run, "--repair").code == 0
    for file in ("model.safetensors", "config.json", "tokenizer.json", "recipe.toml"):
        assert sha256(run / file) == sha256(place / "whole" / file)
    assert Run(run).facts() == Run(place / "whole").facts()
    assert verify(run)[1] == "the same qkv train command resumes from step 60"


def test_a_run_of_an_older_version_is_repaired(place: Path, run: Path) -> None:
    """A later qkv has more keys, so the recipe it writes is longer than the one that was listed."""
    file = run / "recipe.toml"
    older = "".join(line for line in file.read_text().splitlines(True) if not line.startswith("label_smoothing"))
    assert len(older) < file.stat().st_size
    disk.replace_listed(run, "recipe.toml", older.encode(), data=Run(run).hashes()["data"])
    flip(run / "README.md")
    assert fork_server().run(place, "verify", run, "--repair").code == 0
    assert sha256(file) == sha256(place / "whole" / "recipe.toml")
    assert not Run(run).problems()


def test_a_damaged_recipe_is_not_guessed(place: Path, run: Path) -> None:
    file = run / "recipe.toml"
    file.write_text(file.read_text().replace("dropout = 0.2", "dropout = 0.3"))
    for words in (["train", "my.toml", "-o", str(run)], ["verify", str(run), "--repair"]):
        ended = fork_server().run(place, *words)
        assert ended.code == 2
        assert str(file) in ended.err
    assert f"{file}: is damaged and cannot be rebuilt; train in another folder" in ended.err


def test_repair_refuses_what_would_make_another_model(place: Path, run: Path) -> None:
    flip(run / "model.safetensors")
    flip(run / "checkpoints" / f"step-{best(place)}" / "model.safetensors")
    ended = fork_server().run(place, "verify", run, "--repair")
    assert ended.code == 2
    assert f"its model came from step {best(place)}, whose checkpoint is lost; train in another folder" in ended.err
    assert (run / "checkpoints" / f"step-{best(place)}.damaged-1").is_dir()
    assert Run(run).problems(), "it is still damaged, and says so"


def test_repair_refuses_other_data(place: Path, run: Path) -> None:
    flip(run / "tokenizer.json")
    rows = place / "rows.csv"
    before = rows.read_text()
    try:
        rows.write_text(before + "one more good row,pos\n")
        ended = fork_server().run(place, "verify", run, "--repair")
    finally:
        rows.write_text(before)
    assert ended.code == 2
    assert "the data has changed since this run was begun" in ended.err


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "progress.json", "MANIFEST.json"])
def test_a_damaged_checkpoint_is_named_and_set_aside(place: Path, run: Path, name: str) -> None:
    file = run / "checkpoints" / "step-56" / name
    flip(file)
    ended = fork_server().run(place, "verify", run)
    assert ended.code == 1
    assert str(file) in ended.out
    ended = fork_server().run(place, "verify", run, "--repair")
    assert ended.code == 0
    assert "step-56 is damaged and was set aside as step-56.damaged-1" in ended.out
    assert Run(run).checkpoints.steps() == [60, best(place)]
