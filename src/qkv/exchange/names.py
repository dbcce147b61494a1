"""What the numbers of a foreign model are called: its labels, and the token ids that begin, end or never are an answer.

A config may come from a stranger: what is printed or used as an index is checked, what is not used is let be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qkv.config import ModelConfig
from qkv.exchange.folder import Folder
from qkv.schema import UserError, fits_a_line

CARRIED = {  # keys of a config.json that go out again as they came: nothing that is run, nothing that changes numbers
    "pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "num_beams", "max_length", "id2label", "label2id",
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "dropout", "attention_dropout",
    "activation_dropout", "seq_classif_dropout", "resid_pdrop", "embd_pdrop", "attn_pdrop", "dropout_rate",
    "initializer_range", "init_std", "initializer_factor", "rope_theta", "task_specific_params",
}  # fmt: skip


@dataclass(frozen=True)
class Names:
    """Label names, and special ids. `longest` is how many tokens a text may have where the model's tables end."""

    labels: tuple[str, ...] = ()
    start: int | None = None  # what a translation is begun with
    first: int | None = None  # what it must say first
    end: tuple[int, ...] = ()
    never: tuple[int, ...] = ()
    longest: int | None = None


def names_of(folder: Folder, config: ModelConfig) -> Names:
    """As config.json and generation_config.json say; the second has the last word."""
    said: dict[str, Any] = {**folder.config, **folder.generation}
    vocabulary = config.resolve().target_vocabulary or config.vocabulary
    if config.head not in ("words", "pretraining") or config.family == "encoder":
        return Names(labels_of(said, config), longest=_longest(folder, config))
    start, first, end = (
        _ids(folder, said, key, vocabulary) for key in ("decoder_start_token_id", "forced_bos_token_id", "eos_token_id")
    )
    banned = said.get("bad_words_ids")
    never = (
        [word[0] for word in banned if isinstance(word, list) and len(word) == 1] if isinstance(banned, list) else []
    )
    return Names(
        start=start[0] if start else None,
        first=first[0] if first else None,
        end=end,
        never=_ids(folder, {"bad_words_ids": never}, "bad_words_ids", vocabulary),
        longest=_longest(folder, config),
    )


def labels_of(said: Mapping[str, Any], config: ModelConfig) -> tuple[str, ...]:
    """A name for each class: theirs, if they are different and fit on a line, else LABEL_0, LABEL_1, ..."""
    count, given = config.classes if config.head == "classes" else 0, said.get("id2label")
    found = [given.get(str(i)) for i in range(count)] if isinstance(given, dict) else []
    names = [name for name in found if isinstance(name, str) and fits_a_line(name)]
    return tuple(names) if len(set(names)) == count else tuple(f"LABEL_{i}" for i in range(count))


def carried(said: Mapping[str, Any], config: ModelConfig) -> dict[str, Any]:
    """The keys that go out again, with labels in a form that readers agree on."""
    kept = {key: value for key, value in said.items() if key in CARRIED - {"id2label", "label2id"}}
    labels = labels_of(said, config)
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


def _longest(folder: Folder, config: ModelConfig) -> int | None:
    """Positions an input may use: BART's tables have two rows more."""
    stated = folder.config.get("max_position_embeddings")
    return stated if type(stated) is int and config.positions == "learned" and 0 < stated < config.context else None
