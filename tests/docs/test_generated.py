"""Generated pages equal the code, and the examples run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRINTED = {  # what an example must print, whatever the machine
    "classify_csv.py": "billing",
    "translate.py": "two five one -> zwei fünf eins",
    "complete.py": "streamed: It was a",
    "pretrain_finetune.py": "tokens for [MASK]: coat, hat, umbrella",
    "attention.py": "sœur  <-  sister",
}


def run(*words: str | Path, folder: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "QKV_CACHE": str(folder / "cache")}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_generated_pages_are_up_to_date(tmp_path: Path) -> None:
    run(ROOT / "docs" / "generate.py", "--check", folder=tmp_path)


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_examples_run_and_print_what_they_promise(name: str, tmp_path: Path) -> None:
    assert PRINTED[name] in run(ROOT / "examples" / name, folder=tmp_path)
    assert name in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
