"""Results that come with the package: what `qkv lab --full --json` printed once, one lab a line, beside this file."""

from __future__ import annotations

import json
import sys
from functools import cache
from importlib.resources import files
from typing import Any

from qkv import labs
from qkv.labs.lab import CORRECTED, readable

FILE = "results.jsonl"


@cache
def results() -> dict[str, dict[str, Any]]:
    """By lab. Empty for those that were not run at full size yet."""
    file = files("qkv.labs").joinpath(FILE)
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    return {one["name"]: one for one in map(json.loads, lines)}


def effect(claim: dict[str, Any]) -> str:
    """An effect with its interval."""
    low, high = claim["interval"]
    spread = "" if low == high else f" ({readable(low)} to {readable(high)})"
    return f"{readable(claim['effect'])}{spread}"


def sentence(name: str) -> str:
    """One line about a lab at full size; nothing where there is none."""
    found = results().get(name)
    if found is None:
        return ""
    effects = "; ".join(f"{one['name']} {effect(one)}" for one in found["claims"])
    return f"At full size on {found['date']}, {found['seeds']} seeds: {found['verdict']} ({effects})."


def questions() -> str:
    """docs/questions.md: every question and claim with its figure and verdict."""
    lines = [
        "# Every question, measured",
        "",
        "Made by `python -m qkv.labs.shipped > docs/questions.md` from what `qkv lab --full --json` printed.",
    ]
    for name in labs.NAMES:
        lab, found = labs.load(name), results().get(name)
        when = (
            "not run at full size yet" if found is None else f"{found['verdict']}; {found['date']}, {found['machine']}"
        )
        lines += ["", f"## {lab.question}", "", f"`qkv lab {name}`: {when}.", ""]
        lines += [f"The usual answer: {lab.usual}", "", f"**{lab.answer}**", ""]
        lines += ["| claim | measured | rule | verdict | corrected |", "|---|---|---|---|---|"]
        decided = {one["name"]: one for one in (found or {"claims": []})["claims"]}
        for claim in lab.claims:
            one = decided.get(claim.name)
            said = "" if one is None else CORRECTED if claim.erratum and one["decision"] == "holds" else one["decision"]
            shown = f"{claim.effect}: {'' if one is None else effect(one)}"
            cells = (claim.sentence, shown, str(claim.rule), said, claim.correction)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(questions())
