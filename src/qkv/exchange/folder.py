"""A Hugging Face folder on disk: read with suspicion, written whole or not at all.

This file knows files, not architectures. A folder may be hostile: everything in it is checked before a tensor
is asked for, and nothing in it is ever run. Weights are read from safetensors only, because every other format of
weights is a program or can hold one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from qkv.disk import new_folder
from qkv.schema import UserError

CONFIG, GENERATION, TOKENIZER = "config.json", "generation_config.json", "tokenizer.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MODULES, POOLING = "modules.json", "1_Pooling/"  # of sentence-transformers
LARGEST_TEXT = 10_000_000  # bytes of JSON, also of the JSON inside a safetensors file: parsed it takes 20 times as much
LARGEST_FILE = 100_000_000  # bytes of a tokenizer's file
DEEPEST = 50  # levels of JSON; far below where printing or copying a value would run out of stack
PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}", re.ASCII)
UNSAFE = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".h5", ".msgpack"}
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
ACCEPTED = (
    f"accepted: a run, a name of `qkv models list`, or a folder with {CONFIG} and {WEIGHTS} as `save_pretrained` "
    "writes it"
)
T = TypeVar("T")


@dataclass(frozen=True)
class ModelFiles:
    """A model ready to be written: the name of its class, config.json, and weights. `computed` are tensors among them
    that are not trained."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    computed: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Folder:
    """A folder that passed every check. Weights are mapped, not read; the files must stay as they are meanwhile."""

    path: Path
    config: dict[str, Any]  # config.json
    generation: dict[str, Any]  # generation_config.json, empty where there is none
    tokenizer: Path | None  # tokenizer.json, where there is one
    pooling: dict[str, Any]  # config.json of the pooling module of sentence-transformers, empty where there is none
    shapes: dict[str, tuple[int, ...]]  # of every tensor
    dtypes: dict[str, torch.dtype]  # of every tensor; buffers such as position ids may be whole numbers
    handles: dict[str, Any] = field(repr=False, compare=False)  # tensor name -> its open safetensors file

    def tensor(self, name: str) -> Tensor:
        """One tensor, mapped to its file: copy out of it and let it go. Writing to it does not change the file."""
        if name not in self.handles:
            raise UserError(f"{self.path}: none of its {len(self.shapes)} tensors is called {name!r}")
        return self.handles[name].get_tensor(name)

    def content(self, name: str) -> bytes | None:
        """Another file of the folder as it is, such as vocab.txt; None where there is none."""
        file = _file(self.path, name)
        if file is None:
            return None
        if file.stat().st_size > LARGEST_FILE:
            raise UserError(f"{self.path / name}: larger than {LARGEST_FILE:,} bytes, the most that is copied")
        return file.read_bytes()


def open_folder(path: Path) -> Folder:
    """Check a folder and read what describes it. No tensor is read: shapes come from the headers of the files."""
    try:
        if not path.is_dir():
            problem = "not a folder" if path.exists() else "no such model"
            raise UserError(f"{path}: {problem}; {ACCEPTED}")
        config = _read_json(path, CONFIG)
        if config is None:
            raise UserError(f"{path}: has no {CONFIG}; {ACCEPTED}")
        generation, tokenizer = _read_json(path, GENERATION) or {}, _file(path, TOKENIZER)
        pooling = _read_pooling(path)
        placed = _placed(path)
        shapes, dtypes, handles = {}, {}, {}
        for file in sorted(set(placed.values())) or [WEIGHTS]:
            opened = _open_weights(path, file)
            for name, shape, dtype in _described(opened, path / file):
                if placed and placed.get(name) != file:
                    raise UserError(f"{path / file}: holds tensor {name!r}, which {INDEX} does not place there")
                shapes[name], dtypes[name], handles[name] = shape, dtype, opened
        missing = sorted(placed.keys() - shapes.keys())
        if missing:
            name, file = _shown(missing[0]), placed[missing[0]]
            raise UserError(f"{path / INDEX}: places tensor {name!r} in {file}, which does not hold it")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    return Folder(path, config, generation, tokenizer, pooling, shapes, dtypes, handles)


def _file(folder: Path, name: str) -> Path | None:
    """One file of the folder, None where there is none. A link that leads out of it could show any file of this
    machine to whoever sent the folder; a pipe or a device may never end."""
    given = folder / name
    if not given.is_symlink() and not given.exists():
        return None
    real = Path(os.path.realpath(given))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise UserError(f"{given}: a link to a file outside the folder; make real files with `cp -rL {folder} COPY`")
    if not real.is_file():
        raise UserError(f"{given}: not a regular file; accepted: a real file, or a link to one in the same folder")
    return real


def _read_pooling(folder: Path) -> dict[str, Any]:
    """How sentence-transformers pools the tokens of a text: its list of modules says where that is written."""
    for module in _read_value(folder, MODULES, list) or []:
        is_pooling = isinstance(module, dict) and str(module.get("type")).endswith(".Pooling")
        if is_pooling and PLAIN_NAME.fullmatch(str(module.get("path"))):
            return _read_json(folder, f"{module['path']}/{CONFIG}") or {}
    return {}


def _read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """The object in a JSON file, None where there is no such file."""
    return _read_value(folder, name, dict)


def _read_value(folder: Path, name: str, kind: type[T]) -> T | None:
    """The object or list in a JSON file, None where there is no such file."""
    file = _file(folder, name)
    if file is None:
        return None
    try:
        if file.stat().st_size > LARGEST_TEXT:
            raise ValueError("it is larger")
        value = json.loads(file.read_bytes().decode("utf-8"))
        if not isinstance(value, kind):
            raise ValueError(f"it holds a {type(value).__name__}")
        if _depth(value) > DEEPEST:
            raise ValueError("it is nested deeper")
    except (ValueError, RecursionError) as error:
        form = "object" if kind is dict else "list"
        wanted = f"a JSON {form} in UTF-8, at most {LARGEST_TEXT:,} bytes and {DEEPEST} levels deep"
        raise UserError(f"{folder / name}: must be {wanted}; {error}") from None
    return value


def _depth(value: Any) -> int:
    """Levels of lists and objects, found level by level: recursion is what a bomb is built to exhaust."""
    level, depth = [value], 0
    while level := [item for item in level if isinstance(item, dict | list)]:
        level = [inner for item in level for inner in (item.values() if isinstance(item, dict) else item)]
        depth += 1
    return depth


def _placed(folder: Path) -> dict[str, str]:
    """Which file holds which tensor, from the index; empty where one file holds all, which wins as in transformers."""
    if _file(folder, WEIGHTS):
        return {}
    index = _read_json(folder, INDEX)
    if index is None:
        unsafe = sorted(file.name for file in folder.iterdir() if file.suffix in UNSAFE)
        if unsafe:
            raise UserError(
                f"{folder / _shown(unsafe[0])}: can run code when opened, so it is not opened; accepted: {WEIGHTS}. If "
                f"you trust that file, load it with transformers, in the class of its task, and `save_pretrained` it"
            )
        raise UserError(f"{folder}: has no {WEIGHTS}; {ACCEPTED}")
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise UserError(f"{folder / INDEX}: weight_map must be an object of tensor names and file names")
    for file in placed.values():
        if not isinstance(file, str) or not file.endswith(".safetensors") or not PLAIN_NAME.fullmatch(file):
            wanted = "the plain name of a .safetensors file in the same folder"
            raise UserError(f"{folder / INDEX}: weight_map names {_shown(file)!r}; accepted: {wanted}")
    return placed


def _open_weights(folder: Path, name: str) -> Any:
    """A safetensors file whose header is sound. The library checks that header against the file: its length, its JSON,
    every dtype, and offsets that fit the shapes and cover the file without hole or overlap. But it takes headers of
    100 MB, which cost 13 seconds and 2.3 GB to parse."""
    file = _file(folder, name)
    if file is None:
        raise UserError(f"{folder / name}: named in {INDEX}, but there is no such file")
    with file.open("rb") as opened:
        start = opened.read(16)
    if start.startswith(b"version https://"):
        raise UserError(
            f"{folder / name}: a pointer of Git LFS, not the weights; `git lfs pull` in that folder gets them"
        )
    header = int.from_bytes(start[:8], "little")
    try:
        if header > LARGEST_TEXT:
            raise SafetensorError(f"its header would be {header:,} bytes, more than {LARGEST_TEXT:,}")
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        reason = _shown(str(error))
        raise UserError(f"{folder / name}: not a whole and valid safetensors file: {reason}; {ACCEPTED}") from None


def _described(opened: Any, file: Path) -> Iterator[tuple[str, tuple[int, ...], torch.dtype]]:
    """Name, shape and dtype of every tensor of a file. Left to check here: dtypes that are not read, names that would
    garble a terminal, and sides without a bound where another side is 0 (torch then fails with a TypeError)."""
    for name in opened.keys():  # noqa: SIM118  (not a dict: it cannot be iterated)
        part = opened.get_slice(name)
        shape, dtype = tuple(part.get_shape()), part.get_dtype()
        if not name.isprintable() or len(name) > 500:
            raise UserError(f"{file}: tensor {_shown(name)!r}: accepted: names of at most 500 printable characters")
        if len(shape) > 8 or max(shape, default=0) >= 2**40:
            sizes = _shown(str(shape))
            raise UserError(f"{file}: tensor {name!r} has shape {sizes}; accepted: up to 8 sides, each below 2^40")
        if dtype not in DTYPES:
            raise UserError(f"{file}: tensor {name!r} has dtype {dtype}; accepted: {', '.join(DTYPES)}")
        yield name, shape, DTYPES[dtype]


def _shown(found: Any) -> str:
    """Untrusted text for an error message: short, and without control characters."""
    text = str(found)[:200]
    return text if text.isprintable() else ascii(text)


def write_folder(
    path: Path,
    *,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    files: Mapping[str, bytes],
    last: Callable[[Path], str] | None = None,
) -> None:
    """Write a folder that appears complete or not at all, also when the process is killed or the disk is full: it is
    made beside its place, forced to the disk, and renamed. `files` are further ones by name, as tokenizer.json.
    Tensors that share memory are the caller's to part. An empty `generation` writes no file. `last` is shown the folder
    before it appears, to try it; what it says becomes README.md."""
    own = {CONFIG: _json(config), **({GENERATION: _json(generation)} if generation else {})}
    for name in files:
        if not PLAIN_NAME.fullmatch(name.removeprefix(POOLING)) or name in (CONFIG, GENERATION, WEIGHTS, INDEX):
            raise UserError(f"{_shown(name)!r}: accepted: the plain name of a file that this folder does not have yet")
    target = Path(os.path.realpath(path))
    weights = sum(tensor.nbytes + 256 for tensor in tensors.values())
    needed = weights + sum(len(content) + 4096 for content in [*own.values(), *files.values()])
    try:
        _check_place(target, needed)
        with new_folder(target, manifest=False, locked=False) as folder:
            _fill(folder, {**own, **files}, tensors)
            if last is not None:
                (folder / "README.md").write_text(last(folder), encoding="utf-8")
    except (OSError, SafetensorError) as error:
        reason = f"{_shown(error)} ({needed / 2**20:,.1f} MiB are needed)"
        raise UserError(f"{target}: cannot be written: {reason}; nothing half-written was left") from None


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode("utf-8")


def _check_place(target: Path, needed: int) -> None:
    """Refuse before the first byte what can be known before: a place that is taken, or a disk that is too full."""
    if not target.parent.is_dir():
        raise UserError(f"{target}: there is no folder {target.parent} to put it in; make it first")
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise UserError(f"{target}: there is something already; accepted: a new path, or an empty folder")
    if target.exists() and target.samefile("."):
        raise UserError(f"{target}: is the folder you are in, which cannot be replaced; accepted: a new path")
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        sizes = f"{needed / 2**20:,.1f} MiB are needed and {free / 2**20:,.1f} MiB are free there"
        raise UserError(f"{target}: {sizes}; make room, or choose a path on another disk")


def _fill(folder: Path, files: Mapping[str, bytes], tensors: Mapping[str, Tensor]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    weights = folder / WEIGHTS
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, weights, {"format": "pt"})
    weights.chmod((folder / CONFIG).stat().st_mode)  # safetensors makes a file that only its owner may read
