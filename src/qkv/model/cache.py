"""What a decoder remembers between steps, as an explicit value: nothing in the model changes when it generates.

N rows · H heads · S remembered positions · K head width
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class KeyValue:
    """Keys and values of one attention: what each position offers and what it holds. Keys are already rotated."""

    k_NHSK: Tensor
    v_NHSK: Tensor

    def append(self, new: KeyValue) -> KeyValue:
        return KeyValue(torch.cat([self.k_NHSK, new.k_NHSK], 2), torch.cat([self.v_NHSK, new.v_NHSK], 2))

    def rows(self, origin_N: Tensor) -> KeyValue:
        return KeyValue(self.k_NHSK.index_select(0, origin_N), self.v_NHSK.index_select(0, origin_N))


@dataclass(frozen=True)
class Cache:
    """All a decoder needs to go on: a key and value for every layer and past position, and which of them count."""

    own: tuple[KeyValue, ...]  # a layer each: self-attention over what was generated
    memory: tuple[KeyValue, ...]  # a layer each: cross-attention over the source; empty in a plain decoder
    memory_keep_NS: Tensor | None
    pos_NS: Tensor
    keep_NS: Tensor
    source_N: Tensor  # which source each row asks: rows that change places within one need no copy of its memory

    @staticmethod
    def empty(
        rows: int, device: torch.device, memory: tuple[KeyValue, ...] = (), memory_keep_NS: Tensor | None = None
    ) -> Cache:
        """Nothing generated yet."""
        pos_N0 = torch.zeros(rows, 0, dtype=torch.long, device=device)
        return Cache((), memory, memory_keep_NS, pos_N0, pos_N0.bool(), torch.arange(rows, device=device))

    def last_positions(self) -> Tensor:
        """The position (N, 1) of each row's last visible token; -1 where there is none yet."""
        seen_NS = torch.where(self.keep_NS, self.pos_NS, -1)
        return F.pad(seen_NS, (1, 0), value=-1).amax(1, keepdim=True)

    def rows(self, origin_N: Tensor) -> Cache:
        """Row i of the result continues row origin[i]: how a beam moves, grows and shrinks."""
        if torch.equal(origin_N, torch.arange(len(self.pos_NS), device=origin_N.device)):
            return self
        memory, memory_keep_NS, source_N = self.memory, self.memory_keep_NS, self.source_N.index_select(0, origin_N)
        if not torch.equal(source_N, self.source_N):
            memory = tuple(kv.rows(origin_N) for kv in memory)
            memory_keep_NS = None if memory_keep_NS is None else memory_keep_NS.index_select(0, origin_N)
        return Cache(
            tuple(kv.rows(origin_N) for kv in self.own),
            memory,
            memory_keep_NS,
            self.pos_NS.index_select(0, origin_N),
            self.keep_NS.index_select(0, origin_N),
            source_N,
        )
