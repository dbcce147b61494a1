"""Results that come with the package: what `qkv lab --full --json` printed, one lab a line, beside this file.

They stand beside what is measured afresh. `python -m qkv.labs.published` writes docs/questions.md from them.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from qkv import labs
from qkv.labs.lab import CORRECTED, FAILS, HOLDS, Claim, shown

FILE = "results.jsonl"
COLUMNS = ("question", "usual answer", "command", "figure", "verdict", "corrected answer")
HEAD = """# Every question, measured

What is taught about the Transformer, what is usually answered, and what a lab of qkv measured. `qkv lab NAME` measures
it again on your machine; `qkv lab NAME -o report.html` explains and draws it. A figure is a mean over seeds with its
95% interval. The rule that decides stands in the lab's file; where the interval crosses the rule's border, the verdict
is "undecided at this size". `heads` and `special` were undecided at first and measured again:
[decisions](decisions.md), 53.

Made by `make docs` from what `qkv lab --full --json` printed"""


@cache
def results() -> dict[str, dict[str, Any]]:
    """By lab."""
    lines = files("qkv.labs").joinpath(FILE).read_text(encoding="utf-8").splitlines()
    return {one["name"]: one for one in map(json.loads, lines)}


def figure(claim: dict[str, Any]) -> str:
    """An effect with its interval."""
    low, high = claim["interval"]
    return shown(claim["effect"], low, high)


def sentence(name: str) -> str:
    """What came out when the results were made, to stand beside a fresh one."""
    found = results()[name]
    figures = "; ".join(f"{one['name']} {figure(one)}" for one in found["claims"])
    return f"{_when(found)}: {found['verdict']}: {figures}."


def questions() -> str:
    """docs/questions.md."""
    every = [(labs.load(name), results()[name]) for name in labs.NAMES]
    machines = sorted({found["machine"] for _, found in every})
    lines = [f"{HEAD} ({'; '.join(machines)}).", "", *_table(*COLUMNS)]
    for lab, found in every:
        number = f"{lab.claims[0].effect}: {figure(found['claims'][0])}"
        lines.append(_row(lab.question, lab.usual, f"`qkv lab {lab.name}`", number, found["verdict"], lab.answer))
    for lab, found in every:
        lines += ["", f"## {lab.question}", "", f"{_when(found).capitalize()}.", ""]
        lines += _table("what is measured", "what is said", "command", "figure", "verdict", "corrected answer")
        decided = {one["name"]: one for one in found["claims"]}
        lines += [_judged(f"`qkv lab {lab.name}`", claim, decided[claim.name]) for claim in lab.claims]
    return "\n".join(lines) + "\n"


def _when(found: dict[str, Any]) -> str:
    seeds = "deterministic" if found["seeds"] == 1 else f"{found['seeds']} seeds"
    return f"measured at full size on {found['date']}, {seeds}"


def _judged(command: str, claim: Claim, found: dict[str, Any]) -> str:
    """A row about one claim. What holds needs no other answer."""
    verdict = found["decision"]
    right = claim.correction or ("as is said" if verdict == HOLDS else "")
    if claim.erratum:
        verdict = {HOLDS: CORRECTED, FAILS: "holds after all"}.get(verdict, verdict)
    number = f"{figure(found)}; rule: {claim.rule}"
    return _row(claim.effect, claim.sentence, command, number, verdict, right)


def _table(*names: str) -> list[str]:
    return [_row(*names), "|---" * len(names) + "|"]


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
