"""A model ready to be written: what a folder will hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Written:
    """The name of its class, its config.json and its weights; `computed` are tables among them that are not learnt."""

    name: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    computed: frozenset[str] = frozenset()
