"""Token after token from a step function: greedy, sampled, or by beam search. Knows no text and no model class.

step(tokens_N, origin_N, cache) -> (logits_NV, cache): `origin` says which row of the cache each token continues.

Both are generators: a caller may print what comes, draw it, or collect it. Rows that have ended are dropped, so that
the last long answer does not pay for the others.

T texts · N rows that go on · M rows that were just made · V vocabulary · W width of the beam
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

State = TypeVar("State")
Step = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
Choose = Callable[[Tensor, Tensor, int], Tensor]  # (logits_NV, rows_N, tokens so far) -> tokens_N


@dataclass(frozen=True)
class Chosen:
    """One more token for each row, and how likely it was. A row that has ended stays out of `rows`."""

    rows_N: Tensor
    tokens_N: Tensor
    log_probabilities_N: Tensor


Over = Callable[[Chosen], Tensor]  # which of these rows have ended, beyond those that gave an end


def _nobody(chosen: Chosen) -> Tensor:
    return torch.zeros_like(chosen.rows_N, dtype=torch.bool)


def likeliest(logits_NV: Tensor, rows_N: Tensor, place: int) -> Tensor:
    """The token with the highest score."""
    return logits_NV.argmax(-1)


def greedy(
    step: Step[State],
    logits_NV: Tensor,
    cache: State,
    *,
    end: tuple[int, ...],
    limit: int,
    never: tuple[int, ...] = (),
    choose: Choose = likeliest,
    over: Over = _nobody,
) -> Iterator[Chosen]:
    """One token each time, at most `limit` times, until each row has given an `end` or is `over`; the likeliest, unless
    `choose` says otherwise. `never` are ids not to give."""
    rows_N = torch.arange(len(logits_NV), device=logits_NV.device)
    for place in range(limit):
        logits_NV = _without(logits_NV, never)
        tokens_N = choose(logits_NV, rows_N, place)
        scores_N = logits_NV.gather(1, tokens_N[:, None])[:, 0] - logits_NV.logsumexp(-1)
        chosen = Chosen(rows_N, tokens_N, scores_N)
        yield chosen
        alive = (~(_among(tokens_N, end) | over(chosen))).nonzero()[:, 0]
        if not len(alive) or place + 1 == limit:
            return
        rows_N = rows_N.index_select(0, alive)
        logits_NV, cache = step(tokens_N.index_select(0, alive), alive, cache)


def sampler(
    draw: Callable[[Tensor, int], Tensor], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Choose:
    """A `choose` that draws by chance. `draw(rows_N, place)` gives a number from 0 to 1 for each row.

    Scores are divided by `temperature`; of the likeliest tokens `top_k` are left (0: all), and of those as few as have
    `top_p` of the probability together (Holtzman et al., 2020: The Curious Case of Neural Text Degeneration).
    """

    def choose(logits_NV: Tensor, rows_N: Tensor, place: int) -> Tensor:
        k = min(top_k, logits_NV.shape[1]) if top_k else logits_NV.shape[1]
        best = (logits_NV.double() / temperature).topk(k)
        shares_NK = best.values.softmax(-1)
        before_NK = shares_NK.cumsum(-1) - shares_NK
        shares_NK = shares_NK.masked_fill(before_NK >= top_p, 0.0)  # the first always stays
        sums_NK = shares_NK.cumsum(-1)
        wanted_N1 = draw(rows_N, place)[:, None].double() * sums_NK[:, -1:]
        at_N1 = torch.searchsorted(sums_NK, wanted_N1, right=True)
        last_N1 = (shares_NK > 0).sum(-1, keepdim=True) - 1  # where rounding would step over the end
        return best.indices.gather(1, torch.minimum(at_N1, last_N1))[:, 0]

    return choose


def length_penalty(length: int, alpha: float) -> float:
    """What the log-probability of so many tokens is divided by (Wu et al., 2016, equation 14; Vaswani et al., 2017,
    section 6.1, take alpha = 0.6)."""
    return float(((5.0 + length) / 6.0) ** alpha)


@dataclass(frozen=True)
class Grown:
    """One step of a beam search: every hypothesis it holds, by text and then the likeliest first. Those that have ended
    go no further, and those of a text that is settled do not either."""

    length: int  # tokens of each
    texts_M: Tensor
    parents_M: Tensor  # number of the hypothesis, among those of the step before, that it continues
    tokens_M: Tensor
    log_probabilities_M: Tensor  # of all its tokens together, float64
    ended_M: Tensor


@dataclass(frozen=True)
class Hypothesis:
    """An answer. One that has not `ended` was as long as allowed."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float  # what it is ranked by: divided by the length penalty
    ended: bool


def beam(
    step: Step[State],
    logits_TV: Tensor,
    cache: State,
    *,
    width: int,
    end: tuple[int, ...],
    limit: int,
    alpha: float = 0.6,
    best: int = 1,
    never: tuple[int, ...] = (),
    early: bool = True,
) -> Iterator[Grown]:
    """Beam search: of all continuations of the hypotheses held, each text keeps the `width` likeliest. One that ends is
    complete, and takes its place with it (Sutskever et al., 2014): a beam of 1 is greedy.

    Greedy search takes A (0.7) and ends with 0.07. A beam of two finds B (0.3) with 0.27 (measured by `qkv lab beam`).

    Stops a text as soon as its `best` answers are certain. That is exact: log-probabilities only fall, and no penalty
    within `limit` exceeds that at one of both ends, so no hypothesis still held can come to more than its present
    log-probability divided by that. With `early` false nothing stops before the end; the answers are the same.
    """
    texts = len(logits_TV)
    texts_N = parents_N = torch.arange(texts)
    sums_N = torch.zeros(texts, dtype=torch.float64)
    room_T = torch.full((texts,), width)
    complete: list[list[float]] = [[] for _ in range(texts)]  # scores of what has ended, best first
    for length in range(1, limit + 1):
        origin_M, tokens_M, sums_M = _continued(_without(logits_TV, never), texts_N, sums_N, room_T, width)
        texts_M, ended_M = texts_N[origin_M], _among(tokens_M, end).cpu()
        yield Grown(length, texts_M, parents_N[origin_M], tokens_M, sums_M, ended_M)
        room_T = room_T - torch.bincount(texts_M[ended_M], minlength=texts)
        for text, total in zip(texts_M[ended_M].tolist(), sums_M[ended_M].tolist(), strict=True):
            scores = [*complete[text], total / length_penalty(length, alpha)]
            complete[text] = sorted(scores, reverse=True)[:best]
        if length == limit:
            return
        largest = max(length_penalty(length + 1, alpha), length_penalty(limit, alpha))
        worst = [one[-1] if len(one) == best else -torch.inf for one in complete]
        hopeless_T = torch.tensor(worst, dtype=torch.float64)
        alive = (~ended_M & ~(early & _settled(texts_M, ended_M, sums_M / largest, hopeless_T))).nonzero()[:, 0]
        if not len(alive):
            return
        texts_N, sums_N, parents_N = texts_M[alive], sums_M[alive], alive
        rows_N = origin_M[alive].to(tokens_M.device)
        logits_TV, cache = step(tokens_M[alive.to(tokens_M.device)], rows_N, cache)


def ranked(trace: Iterable[Grown], *, texts: int, limit: int, alpha: float, best: int = 1) -> list[list[Hypothesis]]:
    """The best answers of each text, by what a beam search of the same `limit` and `alpha` went through."""
    layers = list[tuple[list[int], list[int]]]()  # of each step: parents and tokens
    complete: list[list[tuple[float, int, int, float, bool]]] = [[] for _ in range(texts)]
    for grown in trace:
        layers.append((grown.parents_M.tolist(), grown.tokens_M.tolist()))
        final = grown.ended_M if grown.length < limit else torch.ones_like(grown.ended_M)
        for number in final.nonzero()[:, 0].tolist():
            total, ended = float(grown.log_probabilities_M[number]), bool(grown.ended_M[number])
            score = total / length_penalty(grown.length, alpha)
            complete[int(grown.texts_M[number])].append((score, grown.length, number, total, ended))
    return [
        [
            Hypothesis(_path(layers, length, number), total, score, ended)
            for score, length, number, total, ended in sorted(found, key=lambda one: (-one[0], one[1]))[:best]
        ]
        for found in complete
    ]


def _path(layers: list[tuple[list[int], list[int]]], length: int, number: int) -> tuple[int, ...]:
    """All tokens of a hypothesis, from where it ended back to its beginning."""
    tokens = []
    for parents, made in reversed(layers[:length]):
        tokens.append(made[number])
        number = parents[number]
    return tuple(reversed(tokens))


def _continued(
    logits_NV: Tensor, texts_N: Tensor, sums_N: Tensor, room_T: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The likeliest continuations of each text, as many as it has room for: which row they continue, their token, and
    the log-probability of the whole. Rows of a text stand together. Impossible ones are none."""
    k = min(width, logits_NV.shape[1])
    best = logits_NV.log_softmax(-1).topk(k)
    gains_NK = best.values.double().cpu()
    present_P, counts_P = texts_N.unique_consecutive(return_counts=True)
    first_P = counts_P.cumsum(0) - counts_P
    group_N = torch.repeat_interleave(torch.arange(len(present_P)), counts_P)
    slot_N = torch.arange(len(texts_N)) - first_P[group_N]
    sums_PWK = torch.full((len(present_P), int(counts_P.max()), k), -torch.inf, dtype=torch.float64)
    sums_PWK[group_N, slot_N] = sums_N[:, None] + gains_NK
    top = sums_PWK.flatten(1).topk(min(width, sums_PWK[0].numel()))
    rank = torch.arange(top.values.shape[1])
    group_M, rank_M = ((rank < room_T[present_P, None]) & (top.values > -torch.inf)).nonzero(as_tuple=True)
    place_M = top.indices[group_M, rank_M]
    origin_M = first_P[group_M] + place_M // k
    device = best.indices.device
    tokens_M = best.indices[origin_M.to(device), (place_M % k).to(device)]
    return origin_M, tokens_M, top.values[group_M, rank_M]


def _settled(texts_M: Tensor, ended_M: Tensor, most_M: Tensor, hopeless_T: Tensor) -> Tensor:
    """Of each hypothesis, whether its text is settled: none that goes on can come above what is `hopeless`."""
    most_T = torch.full_like(hopeless_T, -torch.inf)
    most_T.scatter_reduce_(0, texts_M, most_M.masked_fill(ended_M, -torch.inf), "amax")
    return (most_T <= hopeless_T)[texts_M]


def _without(logits_NV: Tensor, never: tuple[int, ...]) -> Tensor:
    return logits_NV.index_fill(1, torch.tensor(never, device=logits_NV.device), -torch.inf) if never else logits_NV


def _among(tokens_N: Tensor, ids: tuple[int, ...]) -> Tensor:
    return torch.isin(tokens_N, torch.tensor(ids, dtype=tokens_N.dtype, device=tokens_N.device))
