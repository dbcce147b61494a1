"""The command line as a person meets it: output, help, clear errors with exit code 2, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qkv import __version__


def qkv(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "qkv.cli.main", *arguments], capture_output=True, text=True, timeout=120
    )


def test_explain_shows_the_arithmetic_and_the_models() -> None:
    result = qkv("explain")
    assert (result.returncode, result.stderr) == (0, "")
    for piece in (
        "query of it: q = (6, 0)",
        "69.591",
        "0.897",
        "decoder: no word attends to a later one",
        "63,082,496",
    ):
        assert piece in result.stdout


def test_plan_for_people() -> None:
    result = qkv("plan", "gpt2", "--set", "model.layers=6", "--length", "1024")
    assert result.returncode == 0
    assert "Modified from: GPT-2" in result.stdout
    assert "Radford et al., 2019" in " ".join(result.stdout.split())
    assert "81,912,576" in result.stdout
    assert "4 x 1,024 tokens" in result.stdout


def test_plan_for_programs() -> None:
    result = qkv("plan", "vaswani-base", "--json")
    found = json.loads(result.stdout)
    assert found["total"] == sum(found["parameters"].values()) == 63_082_496
    assert found["flops_per_token"][0]["length"] == 128
    assert set(found["memory_bytes"]) >= {"weights", "gradients", "optimiser", "activations", "total"}


def test_plan_lists_all_presets_when_asked_for_none() -> None:
    result = qkv("plan")
    assert result.returncode == 0
    assert all(name in result.stdout for name in ("bert-base", "gpt2", "t5-small", "llama2-7b", "6,738,415,616"))


def test_help_recipe_is_itself_a_recipe(tmp_path: Path) -> None:
    written = tmp_path / "all-keys.toml"
    written.write_text(qkv("plan", "--help-recipe").stdout)
    result = qkv("plan", str(written), "--set", "model.vocabulary=1000")
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["plan", "bert-bse"], "bert-bse: neither a recipe, a preset nor a TOML file; did you mean bert-base?"),
        (["plan", "missing.toml"], "missing.toml: no such file; a recipe is a TOML file"),
        (["plan", "gpt2", "--set", "model.layers"], "--set model.layers: must have the form key=value"),
        (["plan", "gpt2", "--set", "model.layres=3"], "model.layres: unknown key; did you mean layers?"),
        (
            ["plan", "gpt2", "--set", "model.layers=1000000"],
            "model.layers = 1000000: must be at least 1 and at most 1,000",
        ),
        (["plan", "gpt2", "--set", "model.heads=7"], "heads = 7 does not divide width = 768; accepted: 1, 2, 3, 4, 6"),
        (["plan", "gpt2", "--length", "5000"], "length = 5000: must be at least 1 and at most 1,024"),
        (["plan", "small-encoder", "--set", "model.vocabulary=0"], "set it, for example model.vocabulary=8000"),
        (["plan", "--json"], "need a preset or recipe"),
        (["plan", "gpt2", "--set", "layers=2"], "layers: unknown key; did you mean model.layers?"),
        (["plan", "."], ".: cannot be read: Is a directory"),
        (["nonsense"], "nonsense"),
    ],
)
def test_mistakes_get_a_sentence_and_exit_code_2(arguments: list[str], sentence: str) -> None:
    result = qkv(*arguments)
    assert result.returncode == 2
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_version() -> None:
    assert qkv("--version").stdout == f"qkv {__version__}\n"


def test_help_does_not_load_torch() -> None:
    code = """
import sys
from qkv.cli.main import main
sys.argv = ["qkv", "--help"]
try:
    main()
finally:
    assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60).returncode == 0


def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = f"{sys.executable} -P -m qkv.cli.main plan --help-recipe | head -1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_modified_preset_says_so() -> None:
    assert "Modified from: BERT-base" in qkv("plan", "bert-base", "--set", "model.layers=2").stdout
    assert "Modified from" not in qkv("plan", "bert-base").stdout


def test_a_terminal_without_utf8_is_no_reason_to_fail() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-P", "-m", "qkv.cli.main", "plan", "bert-tiny"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert (result.returncode, result.stderr) == (0, "")
