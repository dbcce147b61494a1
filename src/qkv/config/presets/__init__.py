"""Named models, each a TOML file beside this one with its paper cited; and how a recipe builds on one."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

from qkv.config.recipe import FAMILIES_OF_TASK, ModelConfig, Recipe
from qkv.schema import UserError, nearest

SMALL = {"encoder": "small-encoder", "decoder": "small-decoder", "encoder-decoder": "small-translator"}


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


def expand(table: Mapping[str, Any], where: str = "") -> Recipe:
    """A recipe from plain values, with the preset it names laid under its other model keys. One that trains from
    scratch and says nothing about its model has the small preset of its family, which can be exported."""
    model = table.get("model", {})
    task: Any = str(table.get("task", Recipe().task))
    families = FAMILIES_OF_TASK.get(task)
    if model == {} and families and table.get("init", "none") == "none":
        model = {"preset": SMALL[families[0]]}
    if isinstance(model, dict) and isinstance(model.get("preset"), str) and model["preset"] != "none":
        table = {**table, "model": {**_table(model["preset"]), **model}}
    return Recipe.read(table, where)


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(_text(name))


def _text(name: str) -> str:
    if name not in names():
        raise UserError(f"preset {name!r}: unknown; {nearest(name, names())}")
    return files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
