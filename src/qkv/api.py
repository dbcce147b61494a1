"""The same from Python: `qkv.load(folder)` gives what `qkv predict` uses."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

from qkv.config import ModelConfig
from qkv.exchange.folder import Folder, open_folder
from qkv.exchange.hf import read_model
from qkv.predict import Names, Predictor
from qkv.schema import UserError
from qkv.text.tokenizer import Tokenizer


def load(run: str | PathLike[str]) -> Predictor:
    """A model and its tokenizer from a Hugging Face folder: `.predict(texts)`, `.embed(texts)`, `.model`, `.config`."""
    folder = open_folder(Path(run))
    model, config = read_model(folder)
    tokenizer = Tokenizer.from_file(folder.tokenizer) if folder.tokenizer else None
    return Predictor(model, config, tokenizer, names_of(folder, config))


def names_of(folder: Folder, config: ModelConfig) -> Names:
    """What the numbers of a foreign model are called: labels and special ids, as its two configs say."""
    said: dict[str, Any] = {**folder.config, **folder.generation}
    labels = said.get("id2label")
    count = config.classes if config.head == "classes" else 0
    if count and isinstance(labels, dict) and {str(i) for i in range(count)} <= labels.keys():
        names = tuple(str(labels[str(i)]) for i in range(count))
    else:
        names = tuple(f"LABEL_{i}" for i in range(count))
    vocabulary = config.resolve().target_vocabulary or config.vocabulary
    start, padding = (_ids(folder, said, key, vocabulary) for key in ("decoder_start_token_id", "pad_token_id"))
    never = padding if padding and padding == start and said.get("bad_words_ids") else ()
    return Names(names, start[0] if start else None, _ids(folder, said, "eos_token_id", vocabulary), never)


def _ids(folder: Folder, said: dict[str, Any], key: str, vocabulary: int) -> tuple[int, ...]:
    """The token ids under a key: none, one or several, each within the vocabulary."""
    found = said.get(key)
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(i) is int and 0 <= i < vocabulary for i in ids):
        raise UserError(f"{folder.path}: {key} = {found!r} must be token ids from 0 to {vocabulary - 1}")
    return tuple(ids)
