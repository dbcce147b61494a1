"""Small models that come with the package: Hugging Face folders beside this file, each with a card that says how it was
made."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

PREFIX = "bundled-"


def names() -> list[str]:
    """All bundled models, alphabetically."""
    found = (folder.name for folder in Path(str(files(__name__))).iterdir() if (folder / "config.json").is_file())
    return sorted(PREFIX + name for name in found)


def path_of(run: str) -> Path:
    """The folder of a model: of a bundled one by its name, else the path itself."""
    return Path(str(files(__name__))) / run.removeprefix(PREFIX) if run in names() else Path(run).expanduser()
