"""Hugging Face folders: hostile ones are refused with a sentence, good ones come back as they were, and what is written
is there whole or not at all."""

from __future__ import annotations

import json
import os
import pickle
import re
import resource
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from qkv.exchange.folder import INDEX, WEIGHTS, Folder, open_folder, write_folder
from qkv.schema import UserError

CONFIG = {"model_type": "tiny", "hidden_size": 13, "scale": float("inf")}
TENSORS = {"wide": torch.arange(6.0).view(2, 3), "half": torch.ones(5, dtype=torch.bfloat16), "ids": torch.arange(7)}
Change = Callable[[Path], object]


def good(path: Path, **changes: Any) -> Path:
    """A small folder, written by our own hand."""
    parts = {"config": CONFIG, "generation": {}, "tensors": TENSORS, "files": {"tokenizer.json": b"{}"}}
    write_folder(path, **{**parts, **changes})
    return path


def entry(shape: list[Any], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def file(name: str, content: bytes | str) -> Change:
    """Replace one file."""
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def weights(header: Any, data: int = 8, length: int | None = None) -> Change:
    """Replace the weights: the length of the header, the header, and so many bytes of data."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return file(WEIGHTS, struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))


def cut(name: str, keep: int) -> Change:
    return lambda folder: os.truncate(folder / name, keep)


def link(name: str, to: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return change


def instead(name: str, make: Callable[[Path], object]) -> Change:
    """Something in the place of a file that is not a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def only(name: str) -> Change:
    return lambda folder: (folder / WEIGHTS).rename(folder / name)


def sharded(placed: Any, whole: bool = False) -> Change:
    """The weights as the one shard `model-1.safetensors`, and an index of our choice."""

    def change(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "model-1.safetensors")
        (folder / INDEX).write_text(json.dumps(placed if whole else {"weight_map": placed}))

    return change


PLACED = dict.fromkeys(TENSORS, "model-1.safetensors")
HOSTILE: dict[str, tuple[Change, str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json; accepted: a run, a name of `qkv models"),
    "config not UTF-8": (file("config.json", b"\xff{}"), "config.json: must be a JSON object in UTF-8, at most"),
    "config not JSON": (file("config.json", "{'a': 1}"), "config.json: must be a JSON object"),
    "config a list": (file("config.json", "[1]"), "it holds a list"),
    "config empty": (file("config.json", ""), "Expecting value: line 1 column 1"),
    "config too large": (file("config.json", "{}" + " " * 10_000_000), "at most 10,000,000 bytes and 50 levels deep"),
    "config a bomb": (file("config.json", '{"a":' * 100_000), "levels deep; maximum recursion depth"),
    "config a small bomb": (file("config.json", '{"a":' + "[" * 60 + "]" * 60 + "}"), "it is nested deeper"),
    "config a long number": (file("config.json", '{"a":' + "9" * 5000 + "}"), "Exceeds the limit (4300 digits)"),
    "config a link": (link("config.json", "/etc/hostname"), "outside the folder; make real files with `cp -rL"),
    "config a circle": (link("config.json", "config.json"), "config.json: not a regular file; accepted: a real file"),
    "config a pipe": (instead("config.json", os.mkfifo), "config.json: not a regular file"),
    "config a folder": (instead("config.json", Path.mkdir), "config.json: not a regular file"),
    "generation not JSON": (file("generation_config.json", "nan?"), "generation_config.json: must be a JSON object"),
    "tokenizer a link": (link("tokenizer.json", "../../x.json"), "tokenizer.json: a link to a file outside"),
    "tokenizer a device": (link("tokenizer.json", "/dev/zero"), "tokenizer.json: a link to a file outside"),
    "no weights": (lambda f: (f / WEIGHTS).unlink(), "has no model.safetensors; accepted:"),
    "other weights": (only("adapter_model.safetensors"), "has no model.safetensors; accepted:"),
    "bin": (only("pytorch_model.bin"), "pytorch_model.bin: can run code when opened, so it is not opened"),
    "h5": (only("tf_model.h5"), "tf_model.h5: can run code when opened"),
    "msgpack": (only("flax_model.msgpack"), "accepted: model.safetensors. If you trust that file, load it with"),
    "ckpt": (only("model.ckpt"), "`save_pretrained` it"),
    "bin with codes": (only("\x1b[2J.bin"), "'\\x1b[2J.bin': can run code"),
    "weights a link": (link(WEIGHTS, "/etc/hostname"), "model.safetensors: a link to a file outside"),
    "weights a dead link": (link(WEIGHTS, "nowhere"), "model.safetensors: not a regular file"),
    "weights a pipe": (instead(WEIGHTS, os.mkfifo), "model.safetensors: not a regular file"),
    "weights empty": (file(WEIGHTS, b""), "not a whole and valid safetensors file: Error while deserializing header"),
    "weights short": (cut(WEIGHTS, 5), "header too small"),
    "weights cut in the header": (cut(WEIGHTS, 50), "invalid header length"),
    "weights cut in the data": (cut(WEIGHTS, 300), "not fully covered"),
    "weights a pickle": (file(WEIGHTS, pickle.dumps(TENSORS["wide"])), "its header would be"),
    "weights a zip": (file(WEIGHTS, b"PK\3\4" + bytes(90)), "its header would be 67,324,752 bytes, more than"),
    "header of 2^63": (weights({}, length=2**63), "its header would be 9,223,372,036,854,775,808 bytes"),
    "header beyond the file": (weights({}, length=1000), "invalid header length"),
    "header too large": (weights(b" " * 10_000_001), "its header would be 10,000,001 bytes, more than 10,000,000"),
    "header not JSON": (weights(b"{nope}"), "invalid JSON in header"),
    "header not UTF-8": (weights(b'{"\xff"}'), "invalid UTF-8 in header"),
    "header a list": (weights([1]), "invalid JSON in header"),
    "overlap": (weights({"a": entry([2], 0, 8), "b": entry([2], 4, 12)}, 12), "invalid offset for tensor `b`"),
    "hole": (weights({"a": entry([2], 0, 8), "b": entry([2], 12, 20)}, 20), "invalid offset for tensor `b`"),
    "offsets beyond the file": (weights({"a": entry([4], 0, 16)}), "not fully covered"),
    "bytes left over": (weights({"a": entry([2], 0, 8)}, 9), "not fully covered"),
    "shape that does not fit": (weights({"a": entry([3], 0, 8)}), "invalid shape, data type, or offset"),
    "negative shape": (weights({"a": entry([-1, -2], 0, 8)}), "invalid value: integer `-1`"),
    "huge shape": (weights({"a": entry([2**62, 2**62], 0, 8)}), "overflow computing buffer size"),
    "huge shape of nothing": (weights({"a": entry([0, 2**63], 0, 0)}, 0), "accepted: up to 8 sides, each below 2^40"),
    "too many sides": (weights({"a": entry([1] * 9, 0, 4)}, 4), "has shape (1, 1, 1, 1, 1, 1, 1, 1, 1); accepted: up"),
    "unknown dtype": (weights({"a": entry([2], 0, 8, "X32")}), "unknown variant `X32`"),
    "dtype that is not read": (weights({"a": entry([8], 0, 8, "F8_E4M3")}), "has dtype F8_E4M3; accepted: F64, F32,"),
    "name with codes": (weights({"\x1b[2J": entry([2], 0, 8)}), "accepted: names of at most 500 printable characters"),
    "error with codes": (weights({"\x1b[2J": entry([2], 4, 12)}, 12), "invalid offset for tensor `\\x1b[2J`"),
    "index a list": (sharded([], whole=True), "model.safetensors.index.json: must be a JSON object"),
    "index without map": (sharded({}, whole=True), "weight_map must be an object of tensor names and file names"),
    "index of nothing": (sharded({}), "weight_map must be an object"),
    "index with numbers": (sharded({"wide": 1}), "weight_map names '1'; accepted: the plain name of"),
    "shard above": (sharded({"wide": "../model-1.safetensors"}), "weight_map names '../model-1.safetensors'; acc"),
    "shard elsewhere": (sharded({"wide": "/model-1.safetensors"}), "accepted: the plain name of a .safetensors file"),
    "shard below": (sharded({"wide": "a/model-1.safetensors"}), "accepted: the plain name"),
    "shard of Windows": (sharded({"wide": "a\\model-1.safetensors"}), "accepted: the plain name"),
    "shard without name": (sharded({"wide": ""}), "weight_map names ''"),
    "shard with a zero": (sharded({"wide": "a\0.safetensors"}), "accepted: the plain name"),
    "shard a pickle": (sharded({"wide": "model-1.bin"}), "weight_map names 'model-1.bin'; accepted: the plain name"),
    "shard missing": (sharded(PLACED | {"wide": "m-2.safetensors"}), "m-2.safetensors: named in model.safetensors"),
    "tensor missing": (sharded(PLACED | {"more": "model-1.safetensors"}), "places tensor 'more' in model-1"),
    "tensor not placed": (sharded({"wide": "model-1.safetensors"}), "index.json does not place there"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_folders_are_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    change, sentence = HOSTILE[name]
    folder = good(tmp_path / "folder")
    change(folder)
    with pytest.raises(UserError, match=re.escape(sentence)) as caught:
        open_folder(folder)
    shown = str(caught.value)
    assert shown.startswith(str(folder))
    assert shown.isprintable()
    assert len(shown) < 700


def test_a_folder_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"nowhere: no such model; accepted: a run, a name of `qkv models list`,",
    ):
        open_folder(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: not a folder; accepted:"):
        open_folder(tmp_path / "file")


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = good(tmp_path / "folder")
    sharded(PLACED | {"other": "model-2.safetensors"})(folder)
    second = good(tmp_path / "second", tensors={"other": torch.ones(3), "wide": torch.zeros(2, 3)})
    (second / WEIGHTS).rename(folder / "model-2.safetensors")
    with pytest.raises(UserError, match=r"model-2.safetensors: holds tensor 'wide', which .* does not place there"):
        open_folder(folder)


def same(folder: Folder, tensors: dict[str, Tensor]) -> None:
    assert folder.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    assert folder.dtypes == {name: tensor.dtype for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        assert torch.equal(folder.tensor(name), tensor), name


def test_round_trip(tmp_path: Path) -> None:
    kinds = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    tensors = {f"{kind}": torch.randn(3, 5).to(kind) for kind in kinds}
    tensors |= {"one": torch.tensor(1.5), "none": torch.ones(0, 3)}
    files = {"README.md": "Grüße\n".encode(), "tokenizer.json": b"{}"}
    path = good(tmp_path / "new", tensors=tensors | {"turned": torch.ones(2, 3).t()}, generation={"b": 1}, files=files)
    folder = open_folder(path)
    same(folder, tensors | {"turned": torch.ones(3, 2)})
    assert (folder.config, folder.generation, folder.tokenizer) == (CONFIG, {"b": 1}, path / "tokenizer.json")
    assert (path / "README.md").read_text(encoding="utf-8") == "Grüße\n"
    text = (path / "config.json").read_text()
    assert text == '{\n  "hidden_size": 13,\n  "model_type": "tiny",\n  "scale": Infinity\n}\n'
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1, "safetensors alone would make a private file"
    with pytest.raises(UserError, match=r"new: none of its 7 tensors is called 'two'"):
        folder.tensor("two")


def test_a_mapped_tensor_outlives_the_folder_and_leaves_the_file_alone(tmp_path: Path) -> None:
    path = good(tmp_path / "folder", generation={}, files={})
    assert not (path / "generation_config.json").exists()
    folder = open_folder(path)
    assert (folder.generation, folder.tokenizer) == ({}, None)
    tensor = folder.tensor("wide")
    del folder
    tensor.fill_(9)
    same(open_folder(path), TENSORS)


def test_links_that_stay_in_the_folder_are_followed(tmp_path: Path) -> None:
    path = good(tmp_path / "folder")
    (path / WEIGHTS).rename(path / "blob")
    link(WEIGHTS, "blob")(path)
    (tmp_path / "entry").symlink_to(path)
    same(open_folder(tmp_path / "entry"), TENSORS)


def test_one_file_wins_over_an_index(tmp_path: Path) -> None:
    path = good(tmp_path / "folder")
    (path / INDEX).write_text("not even JSON")
    same(open_folder(path), TENSORS)


def test_shards_as_transformers_writes_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import transformers

    sizes = {"vocab_size": 19, "n_embd": 12, "n_layer": 2, "n_head": 3, "n_positions": 29}
    model = transformers.GPT2Model(transformers.GPT2Config(**sizes))
    model.save_pretrained(tmp_path, max_shard_size="4KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    folder = open_folder(tmp_path)
    same(folder, dict(model.state_dict()))
    assert folder.config["n_embd"] == 12
    good(tmp_path / "one", config=folder.config, tensors={name: folder.tensor(name) for name in folder.shapes})
    again = transformers.GPT2Model.from_pretrained(tmp_path / "one")
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak is read from Linux' /proc")
def test_opening_reads_headers_only(tmp_path: Path) -> None:
    """200 MB of weights, in a file with a hole in place of them: opening costs less than 1 MB, using them costs all."""

    def memory(kind: str) -> float:
        return int(re.findall(rf"{kind}:\s+(\d+)", Path("/proc/self/status").read_text())[0]) / 1024

    def peak(work: Callable[[], object]) -> float:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        before = memory("VmRSS")
        work()
        return memory("VmHWM") - before

    path = good(tmp_path / "folder")
    open_folder(path)
    weights({"big": entry([50_000_000], 0, 200_000_000)}, 0)(path)
    os.truncate(path / WEIGHTS, (path / WEIGHTS).stat().st_size + 200_000_000)
    folders: list[Folder] = []
    assert peak(lambda: folders.append(open_folder(path))) < 1
    assert folders[0].shapes == {"big": (50_000_000,)}
    assert peak(lambda: folders[0].tensor("big")) < 1
    assert peak(lambda: folders[0].tensor("big").sum()) > 150, "or this test measures nothing"


def test_a_place_that_is_taken_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = good(tmp_path / "taken")
    (path / "config.json").write_text("mine")
    with pytest.raises(UserError, match=r"taken: there is something already; accepted: a new path, or an empty folder"):
        good(path)
    assert (path / "config.json").read_text() == "mine"
    with pytest.raises(UserError, match=r"config.json: there is something already"):
        good(path / "config.json")
    with pytest.raises(UserError, match=r"there is no folder .*/missing to put it in; make it first"):
        good(tmp_path / "missing" / "new")
    (tmp_path / "empty").mkdir()
    same(open_folder(good(tmp_path / "empty")), TENSORS)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UserError, match=r"here: is the folder you are in"):
        good(Path())


@pytest.mark.parametrize("name", ["../a", "a/b", "", ".", "..", "/a", "a\0", "config.json", WEIGHTS, INDEX])
def test_names_of_files_are_plain_and_new(name: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"accepted: the plain name of a file that this folder does not have yet"):
        good(tmp_path / "new", files={name: b""})
    assert list(tmp_path.iterdir()) == []


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk does, to every file of this process: beyond this many bytes a write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"4,294,967,296\.0 MiB are needed and [\d,.]+ MiB are free there; "):
        good(tmp_path / "new", tensors={"w": torch.zeros(1).expand(2**50)})
    (tmp_path / "empty").mkdir()
    for name, files in {"new": {}, "empty": {"README.md": b"long" * 500_000}}.items():
        with (
            files_of_at_most(1_000_000),
            pytest.raises(UserError, match=rf"{name}: cannot be written: .*File too large.* MiB are needed"),
        ):
            good(tmp_path / name, tensors={"w": torch.zeros(500_000)}, files=files)
    with pytest.raises(UserError, match=r"x: cannot be written: .*File name too long"):
        good(tmp_path / ("x" * 250))
    assert [*tmp_path.rglob("*")] == [tmp_path / "empty"]


def test_a_failure_of_any_kind_leaves_nothing(tmp_path: Path) -> None:
    class Interrupted(dict[str, Tensor]):
        def items(self) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        good(tmp_path / "new", tensors=Interrupted(TENSORS))
    shared = torch.zeros(6)
    with pytest.raises(RuntimeError, match="share memory"):
        good(tmp_path / "new", tensors={"a": shared, "b": shared})
    assert list(tmp_path.iterdir()) == []


def test_all_is_on_the_disk_before_the_name_changes(tmp_path: Path) -> None:
    calls: list[str] = []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, called: calls.append(called.__name__) if event == "c_call" else None)
    try:
        good(tmp_path / "new")
    finally:
        sys.setprofile(before)
    files = len(list((tmp_path / "new").iterdir()))
    order = [name for name in calls if name in ("fsync", "rename")]
    assert order == ["fsync"] * (files + 1) + ["rename", "fsync"], "each file, their folder; then the folder above"


def test_another_writer_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"new.tmp-{os.getpid()}").mkdir()
    (tmp_path / f"new.tmp-{os.getpid()}" / "theirs").touch()
    with pytest.raises(UserError, match=r"new: cannot be written: .*File exists"):
        good(tmp_path / "new")
    assert (tmp_path / f"new.tmp-{os.getpid()}" / "theirs").exists()


WRITER = """
import itertools, pathlib, sys, torch
from qkv.exchange.folder import write_folder
for n in itertools.count(1):
    parts = {"config": {"n": n}, "generation": {"n": n}, "files": {"README.md": b"x" * 1000}}
    write_folder(pathlib.Path(sys.argv[1], f"out-{n}"), tensors={"w": torch.full((200_000,), n)}, **parts)
"""


def whole(path: Path) -> None:
    folder, n = open_folder(path), int(path.name.removeprefix("out-"))
    assert (folder.config, folder.generation, (path / "README.md").stat().st_size) == ({"n": n}, {"n": n}, 1000)
    assert torch.equal(folder.tensor("w"), torch.full((200_000,), n))


def test_half_written_is_never_visible(tmp_path: Path) -> None:
    """One process writes folder after folder until it is killed; this one looks all the time, and once afterwards."""
    writer = subprocess.Popen([sys.executable, "-W", "error", "-c", WRITER, str(tmp_path)])
    seen: set[str] = set()
    try:
        while len([name for name in seen if ".tmp-" not in name]) < 20:
            new = {path.name for path in tmp_path.iterdir()} - seen
            for name in new:
                if ".tmp-" not in name:
                    whole(tmp_path / name)
            seen |= new
            assert writer.poll() is None, "the writer died by itself"
    finally:
        writer.kill()
        writer.wait()
    assert any(".tmp-" in name for name in seen), "or this test never saw a folder being written"
    for path in tmp_path.glob("out-*"):
        if ".tmp-" not in path.name:
            whole(path)


def test_a_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    """What cloning from a hub leaves where git lfs is not installed."""
    path = good(tmp_path / "m")
    (path / WEIGHTS).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(UserError, match=r"model\.safetensors: a pointer of Git LFS, not the weights; `git lfs pull`"):
        open_folder(path)
