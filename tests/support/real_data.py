"""Where the tests marked `real` find their data: $QKV_DATA, else ../shared/data beside the clone."""

import os
from pathlib import Path
from typing import NoReturn

import pytest

REAL_DATA = Path(os.environ.get("QKV_DATA") or Path(__file__).parents[3] / "shared" / "data")


def unavailable(reason: str) -> NoReturn:
    """Skip on a machine without the data; in CI, which must have it, fail."""
    (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


def real_data(name: str) -> Path:
    """A file of the real data by its path below the folder."""
    path = REAL_DATA / name
    if not path.exists():
        unavailable(f"{path} does not exist; QKV_DATA sets the folder")
    return path
