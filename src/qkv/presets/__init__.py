"""Named models, each a TOML file beside this one with its paper cited; and the road from text to a Recipe."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from qkv.config import ModelConfig, Recipe
from qkv.schema import UserError, nearest, override, read_toml

TASK_OF_FAMILY = {"encoder": "classify", "decoder": "complete", "encoder-decoder": "translate"}


def names() -> list[str]:
    """All presets, alphabetically."""
    return sorted(file.name.removesuffix(".toml") for file in files(__name__).iterdir() if file.name.endswith(".toml"))


def citation(name: str) -> str:
    """The comment a preset opens with: its paper, the place in it, and what to know."""
    lines = _text(name).splitlines()
    return " ".join(line.removeprefix("#").strip() for line in lines if line.startswith("#"))


def load(name: str) -> ModelConfig:
    """A preset as a model config."""
    return ModelConfig.read(_table(name), where=f"preset {name}")


def resolve(source: str, settings: Iterable[str] = ()) -> Recipe:
    """A recipe from the name of a preset or the path of a TOML file, with dotted settings like `model.layers=8`."""
    if source in names():
        table: dict[str, Any] = {"model": {"preset": source}, "task": TASK_OF_FAMILY[load(source).family]}
    elif source.endswith(".toml") or os.path.exists(source):  # noqa: PTH110  (Path raises where a name is too long)
        table = read_toml(Path(source))
    else:
        raise UserError(f"{source[:200]}: neither a preset nor a TOML file; {nearest(source, names())}")
    return expand(override(table, settings), where=source)


def expand(table: Mapping[str, Any], where: str = "") -> Recipe:
    """A recipe from plain values, with the preset it names laid under its other model keys."""
    model = table.get("model", {})
    if isinstance(model, dict) and isinstance(model.get("preset"), str) and model["preset"] != "none":
        table = {**table, "model": {**_table(model["preset"]), **model}}
    return Recipe.read(table, where)


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(_text(name))


def _text(name: str) -> str:
    if name not in names():
        raise UserError(f"preset {name!r}: unknown; {nearest(name, names())}")
    return files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
