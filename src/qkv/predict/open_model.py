"""A model from a folder: to predict with, to fine-tune, to export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from qkv.config.recipe import ModelConfig, Recipe
from qkv.exchange.folder import Folder, open_folder
from qkv.exchange.hf import read_model
from qkv.model.transformer import Model
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class OpenedModel:
    """A model read from a folder, before it is used."""

    path: Path
    folder: Folder
    model: Model
    config: ModelConfig
    tokenizer: Tokenizer | None
    run: Run

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of a run, or of an export of one."""
        return self.run.recipe


def open_model(path: Path) -> OpenedModel:
    """Read a run or a Hugging Face folder. Every file of a run is verified first."""
    run = Run(path)
    if run.begun:
        run.check()
        if not run.has_model():
            raise UserError(f"{path}: this run has no model yet; the first is written at its first validation")
    folder = open_folder(path)
    model, config = read_model(folder)
    tokenizer = Tokenizer.from_file(folder.tokenizer) if folder.tokenizer else None
    return OpenedModel(path, folder, model, config, tokenizer, run)
