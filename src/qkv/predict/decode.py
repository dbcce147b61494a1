"""Greedy decoding, sampling and beam search over a step function. Knows no text and no model class.

step(tokens_N, origin_N, cache) -> (logits_NV, cache): `origin` says which row of the cache each token continues.

All are generators: a caller may print the steps, draw them or collect them. Rows that have ended are dropped, so that
one long output does not slow down the others.

T texts · N live rows · M rows of the last step · V vocabulary · W beam width
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

State = TypeVar("State")
Step = Callable[[Tensor, Tensor, State], tuple[Tensor, State]]
Limit = int | Sequence[int]  # most tokens of an output: of all texts, or of each
Choose = Callable[[Tensor, Tensor, int], Tensor]  # (logits_NV, rows_N, tokens so far) -> tokens_N


@dataclass(frozen=True)
class NextTokens:
    """The next token of each live row, and its log-probability."""

    rows_N: Tensor
    tokens_N: Tensor
    log_probabilities_N: Tensor


Stop = Callable[[NextTokens], Tensor]  # which rows end here, beside those with an end token


def _never(chosen: NextTokens) -> Tensor:
    return torch.zeros_like(chosen.rows_N, dtype=torch.bool)


def most_probable(logits_NV: Tensor, rows_N: Tensor, position: int) -> Tensor:
    """The token with the largest logit."""
    return logits_NV.argmax(-1)


def greedy(
    step: Step[State],
    logits_NV: Tensor,
    cache: State,
    *,
    end: tuple[int, ...],
    limit: Limit,
    banned: tuple[int, ...] = (),
    choose: Choose = most_probable,
    stop: Stop = _never,
) -> Iterator[NextTokens]:
    """One token a step, at most `limit`, until each row has an `end` token or `stop` ends it. Greedy, unless `choose`
    says otherwise. `banned` ids are never generated."""
    rows_N = torch.arange(len(logits_NV), device=logits_NV.device)
    limit_T = _per_text(limit, len(logits_NV)).to(logits_NV.device)
    for position in itertools.count():
        logits_NV = _ban(logits_NV, banned)
        tokens_N = choose(logits_NV, rows_N, position)
        scores_N = logits_NV.gather(1, tokens_N[:, None])[:, 0] - logits_NV.logsumexp(-1)
        chosen = NextTokens(rows_N, tokens_N, scores_N)
        yield chosen
        alive = (~(_among(tokens_N, end) | stop(chosen)) & (position + 1 < limit_T[rows_N])).nonzero()[:, 0]
        if not len(alive):
            return
        rows_N = rows_N.index_select(0, alive)
        logits_NV, cache = step(tokens_N.index_select(0, alive), alive, cache)


def sample(
    draw: Callable[[Tensor, int], Tensor], *, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Choose:
    """A `choose` that samples. `draw(rows_N, position)` gives a uniform number in [0, 1) for each row.

    Logits are divided by `temperature`; the `top_k` most probable tokens are kept (0: all), then the smallest set of
    these whose probabilities sum to `top_p` (Holtzman et al., 2020: The Curious Case of Neural Text Degeneration).
    """

    def choose(logits_NV: Tensor, rows_N: Tensor, position: int) -> Tensor:
        k = min(top_k, logits_NV.shape[1]) if top_k else logits_NV.shape[1]
        best = (logits_NV.double() / temperature).topk(k)
        shares_NK = best.values.softmax(-1)
        before_NK = shares_NK.cumsum(-1) - shares_NK
        shares_NK = shares_NK.masked_fill(before_NK >= top_p, 0.0)  # the first always stays
        sums_NK = shares_NK.cumsum(-1)
        wanted_N1 = draw(rows_N, position)[:, None].double() * sums_NK[:, -1:]
        at_N1 = torch.searchsorted(sums_NK, wanted_N1, right=True)
        last_N1 = (shares_NK > 0).sum(-1, keepdim=True) - 1  # where rounding would step over the end
        return best.indices.gather(1, torch.minimum(at_N1, last_N1))[:, 0]

    return choose


def length_penalty(length: int, alpha: float) -> float:
    """What the log-probability of so many tokens is divided by (Wu et al., 2016, equation 14; Vaswani et al., 2017,
    section 6.1, take alpha = 0.6)."""
    return float(((5.0 + length) / 6.0) ** alpha)


@dataclass(frozen=True)
class BeamStep:
    """One step of a beam search: every hypothesis, by text and then by log-probability. Those that have ended are not
    continued, nor are those of a text whose answers are certain."""

    length: int  # tokens of each
    texts_M: Tensor
    parents_M: Tensor  # number of the hypothesis, among those of the step before, that it continues
    tokens_M: Tensor
    log_probabilities_M: Tensor  # of all its tokens together, float64
    ended_M: Tensor


@dataclass(frozen=True)
class Hypothesis:
    """A finished output. One that has not `ended` reached the length limit."""

    tokens: tuple[int, ...]
    log_probability: float
    score: float  # log-probability divided by the length penalty
    ended: bool


def beam(
    step: Step[State],
    logits_TV: Tensor,
    cache: State,
    *,
    width: int,
    end: tuple[int, ...],
    limit: Limit,
    alpha: float = 0.6,
    best: int = 1,
    banned: tuple[int, ...] = (),
    early: bool = True,
) -> Iterator[BeamStep]:
    """Beam search: of all continuations of its hypotheses, each text keeps the `width` most probable. One that ends is
    complete and keeps its slot (Sutskever et al., 2014), so a beam of 1 is greedy decoding.

    Greedy decoding takes A (0.7) and ends with 0.07. A beam of two finds B (0.3) with 0.27 (measured by `qkv lab
    beam`).

    A text stops as soon as its `best` answers are certain. This is exact: log-probabilities only fall, and the penalty
    is largest at one end of the remaining lengths, so no live hypothesis can score more than its present
    log-probability divided by that penalty. With `early` false nothing stops early; the answers are the same.
    """
    texts = len(logits_TV)
    limit_T = _per_text(limit, texts)
    longest_T = torch.tensor([length_penalty(one, alpha) for one in limit_T.tolist()], dtype=torch.float64)
    texts_N = parents_N = torch.arange(texts)
    sums_N = torch.zeros(texts, dtype=torch.float64)
    room_T = torch.full((texts,), width)
    complete: list[list[float]] = [[] for _ in range(texts)]  # scores of what has ended, best first
    for length in itertools.count(1):
        origin_M, tokens_M, sums_M = _continued(_ban(logits_TV, banned), texts_N, sums_N, room_T, width)
        texts_M, ended_M = texts_N[origin_M], _among(tokens_M, end).cpu()
        yield BeamStep(length, texts_M, parents_N[origin_M], tokens_M, sums_M, ended_M)
        room_T = room_T - torch.bincount(texts_M[ended_M], minlength=texts)
        for text, total in zip(texts_M[ended_M].tolist(), sums_M[ended_M].tolist(), strict=True):
            scores = [*complete[text], total / length_penalty(length, alpha)]
            complete[text] = sorted(scores, reverse=True)[:best]
        done_M = ended_M | (length >= limit_T[texts_M])
        if early:
            largest_T = longest_T.clamp(min=length_penalty(length + 1, alpha))
            worst_T = torch.tensor([one[-1] if len(one) == best else -torch.inf for one in complete]).double()
            done_M = done_M | _settled(texts_M, ended_M, sums_M / largest_T[texts_M], worst_T)
        alive = (~done_M).nonzero()[:, 0]
        if not len(alive):
            return
        texts_N, sums_N, parents_N = texts_M[alive], sums_M[alive], alive
        rows_N = origin_M[alive].to(tokens_M.device)
        logits_TV, cache = step(tokens_M[alive.to(tokens_M.device)], rows_N, cache)


def ranked(
    trace: Iterable[BeamStep], *, texts: int, limit: Limit, alpha: float, best: int = 1
) -> list[list[Hypothesis]]:
    """The best outputs of each text, from the steps of a beam search with the same `limit` and `alpha`."""
    steps, limit_T = list[BeamLinks](), _per_text(limit, texts)
    complete: list[list[tuple[float, int, int, float, bool]]] = [[] for _ in range(texts)]
    for step in trace:
        steps.append(links(step))
        for number in (step.ended_M | (step.length >= limit_T[step.texts_M])).nonzero()[:, 0].tolist():
            total, ended = float(step.log_probabilities_M[number]), bool(step.ended_M[number])
            score = total / length_penalty(step.length, alpha)
            complete[int(step.texts_M[number])].append((score, step.length, number, total, ended))
    return [
        [
            Hypothesis(tuple(token for _, token in backtrack(steps, length, number)), total, score, ended)
            for score, length, number, total, ended in sorted(found, key=lambda one: (-one[0], one[1]))[:best]
        ]
        for found in complete
    ]


BeamLinks = tuple[list[int], list[int]]  # of one step: the parent and the token of each hypothesis


def links(step: BeamStep) -> BeamLinks:
    return step.parents_M.tolist(), step.tokens_M.tolist()


def backtrack(steps: Sequence[BeamLinks], length: int, number: int) -> list[tuple[int, int]]:
    """The hypotheses that lead to one, from the first token on: their numbers and tokens."""
    path = []
    for parents, tokens in reversed(steps[:length]):
        path.append((number, tokens[number]))
        number = parents[number]
    return path[::-1]


def _continued(
    logits_NV: Tensor, texts_N: Tensor, sums_N: Tensor, room_T: Tensor, width: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The most probable continuations of each text, as many as it has room for: which row they continue, their token,
    and the log-probability of the whole. Rows of a text are adjacent. Impossible continuations are left out."""
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


def _settled(texts_M: Tensor, ended_M: Tensor, most_M: Tensor, worst_T: Tensor) -> Tensor:
    """Of each hypothesis, whether its text is settled: none that goes on can score more than the `worst` answer."""
    most_T = torch.full_like(worst_T, -torch.inf)
    most_T.scatter_reduce_(0, texts_M, most_M.masked_fill(ended_M, -torch.inf), "amax")
    return (most_T <= worst_T)[texts_M]


def _per_text(limit: Limit, texts: int) -> Tensor:
    return torch.full((texts,), limit) if isinstance(limit, int) else torch.tensor(limit)


def _ban(logits_NV: Tensor, banned: tuple[int, ...]) -> Tensor:
    return logits_NV.index_fill(1, torch.tensor(banned, device=logits_NV.device), -torch.inf) if banned else logits_NV


def _among(tokens_N: Tensor, ids: tuple[int, ...]) -> Tensor:
    return torch.isin(tokens_N, torch.tensor(ids, dtype=tokens_N.dtype, device=tokens_N.device))
