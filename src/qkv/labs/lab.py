"""What a lab is: a question, its claims, a measurement, and rules that stand beside it.

A lab measures once for each seed. Every claim names one effect, a number; over the seeds it has a mean and an interval,
and a rule says where that interval must lie. Nothing else decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["holds", "holds with a correction", "does not hold", "undecided at this size"]
HOLDS: Verdict = "holds"
CORRECTED: Verdict = "holds with a correction"
FAILS: Verdict = "does not hold"
UNDECIDED: Verdict = "undecided at this size"
FIRST_SEED = 101  # sizes and rules were found with lower ones; where these had a say too, docs/decisions.md (53) tells
# Student's t at 97.5%, by degrees of freedom: half the width of a 95% interval in standard errors.
STUDENT = (math.inf, 12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


def readable(value: float) -> str:
    """Three or four digits, whole numbers whole."""
    if not math.isfinite(value):
        return str(value)
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 1e-3 or abs(value) >= 1e5 else f"{value:.4g}"


def shown(effect: float, low: float, high: float) -> str:
    """An effect with its interval, if that is wider than a point."""
    return readable(effect) + ("" if low == high else f" ({readable(low)} to {readable(high)})")


@dataclass(frozen=True)
class Rule:
    """Where the whole 95% interval of an effect must lie for its claim to hold. All of it outside: it does not hold."""

    low: float = -math.inf
    high: float = math.inf

    def decide(self, interval: tuple[float, float]) -> Verdict:
        lowest, highest = interval
        if math.isnan(lowest) or math.isnan(highest):
            return UNDECIDED
        if self.low <= lowest and highest <= self.high:
            return HOLDS
        return FAILS if highest < self.low or lowest > self.high else UNDECIDED

    def __str__(self) -> str:
        if self.low == self.high:
            return f"exactly {readable(self.low)}"
        if self.low == -math.inf:
            return f"at most {readable(self.high)}"
        if self.high == math.inf:
            return f"at least {readable(self.low)}"
        return f"from {readable(self.low)} to {readable(self.high)}"


@dataclass(frozen=True)
class Claim:
    """One sentence that is taught, and the effect that decides about it.

    Where the sentence is an erratum, something written wrongly, `correction` says what is right, and the rule is about
    the correction: if it holds, the sentence does not.
    """

    name: str
    sentence: str
    source: str  # the paper, or who says so
    effect: str  # what the number is
    rule: Rule
    correction: str = ""

    @property
    def erratum(self) -> bool:
        return bool(self.correction)


@dataclass(frozen=True)
class Measured:
    """What one seed gave: the effect of every claim, other figures worth telling, and what is drawn."""

    effects: Mapping[str, float]
    figures: Mapping[str, float] = field(default_factory=dict)
    series: Mapping[str, Sequence[float]] = field(default_factory=dict)


def mean_series(measured: Sequence[Measured], name: str) -> list[float]:
    """A curve: the mean over the seeds, place by place."""
    return [mean(column) for column in zip(*(one.series[name] for one in measured), strict=True)]


def silently(what: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class Setting:
    """How a lab is to measure. `tick` is told, now and then, that it goes on, and what it does."""

    seed: int = 0
    full: bool = False
    run: Path | None = None  # the user's own model, for labs that can look at one
    tick: Callable[[str], None] = silently


@dataclass(frozen=True)
class Lab:
    """A question and all that answers it. `drawn` draws what was measured; `paragraphs` explain it in plain words."""

    name: str
    question: str
    usual: str  # the usual answer
    answer: str  # what is right, in one sentence
    paragraphs: tuple[str, str]
    formula: str
    claims: tuple[Claim, ...]
    measure: Callable[[Setting], Measured]
    draw: Callable[[Figure, Sequence[Measured]], None]
    read: tuple[str, ...]  # files to read, below src/qkv
    tries: tuple[str, ...]  # commands to go on with
    seeds: int = 3  # 1: nothing is left to chance
    full_seeds: int = 5
    looks_at: tuple[str, ...] = ()  # families of a user's own model that it can look at
    timed: bool = False  # it takes the time of something, so nothing else may run beside it

    def settings(self, full: bool, run: Path | None) -> list[Setting]:
        """One for each seed that is to be measured."""
        count = self.full_seeds if full and self.seeds > 1 else self.seeds
        return [Setting(FIRST_SEED + number, full, run) for number in range(count)]


@dataclass(frozen=True)
class Finding:
    """A claim with what was measured about it."""

    claim: Claim
    values: tuple[float, ...]  # by seed

    @property
    def effect(self) -> float:
        return mean(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean, at 95%, by Student's t. Of one value, which chance has no part in, the value itself."""
        count = len(self.values)
        if count == 1:
            return self.values[0], self.values[0]
        if not all(math.isfinite(value) for value in self.values):
            return math.nan, math.nan
        half = STUDENT[min(count - 1, len(STUDENT) - 1)] * stdev(self.values) / math.sqrt(count)
        return self.effect - half, self.effect + half

    def __str__(self) -> str:
        """The effect with its interval."""
        return shown(self.effect, *self.interval)

    @property
    def decision(self) -> Verdict:
        """Of the rule: about the sentence or, where that is an erratum, about the correction."""
        return self.claim.rule.decide(self.interval)


@dataclass(frozen=True)
class Result:
    """A lab that was run."""

    lab: Lab
    measured: tuple[Measured, ...]
    full: bool = False

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(
            Finding(claim, tuple(one.effects[claim.name] for one in self.measured)) for claim in self.lab.claims
        )

    @property
    def verdict(self) -> Verdict:
        """Of all claims together: the worst that was decided about one of them; a correction where an erratum was
        shown to be one."""
        decisions = [finding.decision for finding in self.findings]
        if FAILS in decisions:
            return FAILS
        if UNDECIDED in decisions:
            return UNDECIDED
        return CORRECTED if any(claim.erratum for claim in self.lab.claims) else HOLDS

    @property
    def answer(self) -> str:
        """The lab's answer; where its claims were not all decided that way, said so first."""
        said = {FAILS: "Measured otherwise here. Expected: ", UNDECIDED: "Not all of it was decided here. Expected: "}
        return said.get(self.verdict, "") + self.lab.answer

    @property
    def figures(self) -> dict[str, float]:
        """Every other figure: its mean over the seeds."""
        names = self.measured[0].figures
        return {name: mean(one.figures[name] for one in self.measured) for name in names}

    def as_dict(self) -> dict[str, object]:
        """What `qkv lab --json` prints. Effect and interval are of the first claim; all claims follow."""
        first = self.findings[0]
        return {
            "name": self.lab.name,
            "claim": first.claim.sentence,
            "verdict": self.verdict,
            "effect": first.effect,
            "interval": list(first.interval),
            "seeds": len(self.measured),
            "figures": self.figures,
            "full": self.full,
            "claims": [
                {
                    "name": finding.claim.name,
                    "claim": finding.claim.sentence,
                    "correction": finding.claim.correction or None,
                    "effect_is": finding.claim.effect,
                    "rule": str(finding.claim.rule),
                    "effect": finding.effect,
                    "interval": list(finding.interval),
                    "decision": finding.decision,
                }
                for finding in self.findings
            ],
        }
