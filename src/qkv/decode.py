"""Token after token from a step function. Knows no text and no model class.

step(tokens_N, origin_N, cache) -> (logits_NV, cache): `origin` says which row of the cache each token continues.

N rows · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

State = TypeVar("State")
Step = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]


@dataclass(frozen=True)
class Chosen:
    """One more token for each row, and how likely it was. A row that has ended stays out of `rows`."""

    rows_N: Tensor
    tokens_N: Tensor
    log_probabilities_N: Tensor


def greedy(
    step: Step[State],
    logits_NV: Tensor,
    cache: State,
    *,
    end: tuple[int, ...],
    limit: int,
    never: tuple[int, ...] = (),
) -> Iterator[Chosen]:
    """The likeliest token each time, at most `limit` times, until each row has given an `end`. `never` are ids not to
    give.

    Rows that have ended are dropped, so that the last long answer does not pay for the others.
    """
    rows_N = torch.arange(len(logits_NV), device=logits_NV.device)
    for given in range(limit):
        if never:
            logits_NV = logits_NV.index_fill(1, torch.tensor(never, device=logits_NV.device), -torch.inf)
        scores_N, tokens_N = logits_NV.log_softmax(-1).max(-1)
        yield Chosen(rows_N, tokens_N, scores_N)
        alive = torch.isin(tokens_N, torch.tensor(end, device=tokens_N.device), invert=True).nonzero()[:, 0]
        if not len(alive) or given + 1 == limit:
            return
        rows_N = rows_N.index_select(0, alive)
        logits_NV, cache = step(tokens_N.index_select(0, alive), alive, cache)
