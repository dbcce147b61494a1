"""The same from Python: `qkv.load(folder)` gives what `qkv predict` uses."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from qkv.exchange.folder import open_folder
from qkv.exchange.hf import read_model
from qkv.exchange.names import names_of
from qkv.predict import Predictor
from qkv.text.tokenizer import Tokenizer


def load(run: str | PathLike[str]) -> Predictor:
    """A model and its tokenizer from a Hugging Face folder: `.predict(texts)`, `.embed(texts)`, `.model`, `.config`."""
    folder = open_folder(Path(run))
    model, config = read_model(folder)
    tokenizer = Tokenizer.from_file(folder.tokenizer) if folder.tokenizer else None
    return Predictor(model, config, tokenizer, names_of(folder, config))
