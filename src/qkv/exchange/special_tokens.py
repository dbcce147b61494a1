"""Labels, special tokens and pooling of a foreign model, from its config.json and the files beside it.

A config may be hostile: whatever is printed or used as an index is checked, the rest is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkv.config.recipe import ModelConfig
from qkv.exchange.folder import Folder
from qkv.schema import UserError, fits_a_line

CARRIED = {  # keys of a config.json that an export keeps: none is executed, none changes a result
    "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "num_beams", "max_length", "id2label", "label2id",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout",
    "activation_dropout", "seq_classif_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate",
    "initializer_range", "init_std", "initializer_factor", "rope_theta", "task_specific_params",
}  # fmt: skip

POOL_NAMES = {"cls": "first", "cls_token": "first", "mean": "mean", "mean_tokens": "mean", "lasttoken": "last"}


@dataclass(frozen=True)
class SpecialTokens:
    """Token ids with a role in generation."""

    start: int | None = None  # decoder start token
    forced_first: int | None = None  # first output token
    end: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()  # never generated


def special_tokens(folder: Folder, config: ModelConfig) -> SpecialTokens:
    """As config.json and generation_config.json say; the second takes precedence."""
    if config.head != "tokens" or config.family == "encoder":
        return SpecialTokens()
    found: dict[str, Any] = {**folder.config, **folder.generation}
    vocabulary = config.resolve().target_vocabulary or config.vocabulary
    start, first, end = (
        _ids(folder, found, key, vocabulary)
        for key in ("decoder_start_token_id", "forced_bos_token_id", "eos_token_id")
    )
    bad = found.get("bad_words_ids")
    single = [word[0] for word in bad if isinstance(word, list) and len(word) == 1] if isinstance(bad, list) else []
    return SpecialTokens(
        start=start[0] if start else None,
        forced_first=first[0] if first else None,
        end=end,
        banned=_ids(folder, {"bad_words_ids": single}, "bad_words_ids", vocabulary),
    )


def label_names(said: Mapping[str, Any], config: ModelConfig) -> tuple[str, ...]:
    """A name for each class: as in config.json if all differ and fit on a line, else LABEL_0, LABEL_1, ..."""
    count, given = config.classes if config.head == "classification" else 0, said.get("id2label")
    found = [given.get(str(i)) for i in range(count)] if isinstance(given, dict) else []
    names = [name for name in found if isinstance(name, str) and fits_a_line(name)]
    return tuple(names) if len(set(names)) == count else tuple(f"LABEL_{i}" for i in range(count))


def carried(said: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The keys that an export keeps, with labels in a form that all readers accept."""
    kept = {key: value for key, value in said.items() if key in CARRIED - {"id2label", "label2id"}}
    labels = label_names(said, config)
    if labels:
        kept |= {
            "id2label": {str(i): label for i, label in enumerate(labels)},
            "label2id": {label: i for i, label in enumerate(labels)},
        }
    return kept


def _ids(folder: Folder, said: Mapping[str, Any], key: str, vocabulary: int) -> tuple[int, ...]:
    """The token ids under a key: none, one or several, each within the vocabulary."""
    found = said.get(key)
    ids = found if isinstance(found, list) else [] if found is None else [found]
    if not all(type(i) is int and 0 <= i < vocabulary for i in ids):
        raise UserError(f"{folder.path}: {key} = {str(found)[:60]} must be token ids from 0 to {vocabulary - 1}")
    return tuple(ids)


def max_positions(folder: Folder, config: ModelConfig) -> int | None:
    """Positions that an input may use, where the model's table has more: BART's has two that are unused."""
    stated = folder.config.get("max_position_embeddings")
    return stated if type(stated) is int and config.positions == "learned" and 0 < stated < config.context else None


def embedding_pool(folder: Folder) -> str:
    """How a folder of sentence-transformers pools the tokens of a text, by our name where there is one; else mean."""
    said = folder.pooling
    flags = [key.removeprefix("pooling_mode_") for key, on in said.items() if key.startswith("pooling_mode_") and on]
    named = said.get("pooling_mode")
    found = [named] if isinstance(named, str) else flags
    return "mean" if not found else POOL_NAMES.get(found[0], found[0]) if len(found) == 1 else "+".join(found)
