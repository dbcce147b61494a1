"""Trainings by name, each a TOML file beside this one that says what it gives; and the road from a name to a Recipe."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from qkv.config import presets
from qkv.config.recipe import Recipe
from qkv.schema import UserError, nearest, override, read_toml

DEFAULT_TASKS = {"encoder": "classify", "decoder": "complete", "encoder-decoder": "translate"}


def names() -> list[str]:
    """All recipes, alphabetically."""
    return sorted(file.name.removesuffix(".toml") for file in files(__name__).iterdir() if file.name.endswith(".toml"))


def promise(name: str) -> str:
    """The comment a recipe opens with: what it learns, how long it takes, what it gives."""
    return " ".join(line.removeprefix("#").strip() for line in _text(name).splitlines() if line.startswith("#"))


def resolve(source: str, settings: Iterable[str] = ()) -> Recipe:
    """A recipe from its name, from a preset's name or from a TOML file, with dotted settings like `model.layers=8`."""
    if source in names():
        table: dict[str, Any] = tomllib.loads(_text(source))
    elif source in presets.names():
        table = {"model": {"preset": source}, "task": DEFAULT_TASKS[presets.load(source).family]}
    elif source.endswith(".toml") or os.path.exists(source):  # noqa: PTH110  (Path raises where a name is too long)
        table = read_toml(Path(source))
    else:
        known = nearest(source, dict.fromkeys([*names(), *presets.names()]))
        raise UserError(f"{source[:200]}: neither a recipe, a preset nor a TOML file; {known}")
    return presets.expand(override(table, settings), where=source)


def _text(name: str) -> str:
    return files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
