"""What may be a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import qkv
from qkv.config.recipes import resolve
from qkv.schema import UserError
from qkv.training.trainer import open_trainer
from tests.support.fork_server import sha256, write_recipe


def test_a_checkpoint_is_not_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder has a manifest too, and training there would delete its weights."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QKV_CACHE", str(tmp_path / "cache"))
    recipe = str(write_recipe(tmp_path))
    settings = ["train.steps=2", "train.save_every=1"]
    qkv.train(recipe, "run", settings=settings)
    checkpoint = Path("run/checkpoints/step-2")
    before = sha256(checkpoint / "model.safetensors")
    refused = pytest.raises(UserError, match=r"step-2: has a manifest but no recipe\.toml, so it is not a run")
    with refused, open_trainer(resolve(recipe, settings), checkpoint):
        pass
    assert sha256(checkpoint / "model.safetensors") == before
