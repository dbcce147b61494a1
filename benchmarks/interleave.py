"""Timing two or more things fairly on a noisy machine: in turns, in one process, as medians and ratios."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median


def interleaved(things: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each thing in each round; every round runs all of them once. Two rounds of warming up do not count."""
    seconds: dict[str, list[float]] = {name: [] for name in things}
    for turn in range(rounds + 2):
        for name, thing in things.items():
            start = time.perf_counter()
            thing()
            if turn >= 2:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(slow: list[float], fast: list[float]) -> tuple[float, float, float]:
    """How many times faster `fast` is: the median of the ratios within a round, and their quartiles."""
    ratios = sorted(a / b for a, b in zip(slow, fast, strict=True))
    return ratios[len(ratios) // 4], median(ratios), ratios[(3 * len(ratios)) // 4]
