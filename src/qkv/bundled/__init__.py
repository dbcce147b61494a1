"""Small models that come with the package: Hugging Face folders beside this file, each with a card that says how it was
made."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PREFIX = "bundled-"


def names() -> list[str]:
    """All bundled models, alphabetically."""
    found = (one.name for one in Path(str(files(__name__))).iterdir() if (one / "config.json").is_file())
    return sorted(PREFIX + name for name in found)


def folder(name: str) -> Path:
    """The folder of a bundled model."""
    return Path(str(files(__name__))) / name.removeprefix(PREFIX)
