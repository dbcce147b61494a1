"""Results of labs as one page that explains itself: no script, no link to elsewhere, pictures inside.

It reads from top to bottom like a notebook: the question, the usual answer, the explanation with its formula, the
picture, the numbers with the rules that decided, the verdict, what to try, what to read.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape

from qkv.labs import published
from qkv.labs.lab import CORRECTED, FAILS, HOLDS, UNDECIDED, Finding, Result, Verdict, readable
from qkv.plots import STYLE

SIGNS: dict[Verdict, str] = {HOLDS: "✓", CORRECTED: "✓*", FAILS: "✗", UNDECIDED: "?"}
STYLES = """
:root { --ink: #1b1b1b; --soft: #555; --paper: #fff; --line: #ddd; --tint: #f4f7fa; --strong: #0072B2 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #aaa; --paper: #16181b; --line: #3a3f45; --tint: #1f2428; --strong: #56B4E9 }
}
@media print { :root { --ink: #000; --soft: #333; --paper: #fff; --line: #bbb; --tint: #fff; --strong: #000 } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 52rem; padding: 1.5rem 1rem 4rem; color: var(--ink); background: var(--paper);
       font: 1rem/1.55 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; overflow-wrap: break-word }
h1 { font-size: 1.6rem; line-height: 1.25 }
h2 { font-size: 1.3rem; margin: 3rem 0 .4rem; border-top: 2px solid var(--line); padding-top: 1.2rem }
a { color: var(--strong) }
.verdict { display: inline-block; border: 2px solid var(--strong); border-radius: .4rem; padding: .15rem .6rem;
           font-weight: 600 }
.usual { color: var(--soft) }
.formula { background: var(--tint); border-left: 4px solid var(--strong); padding: .6rem 1rem; overflow-x: auto;
           font-family: "DejaVu Serif", Georgia, serif }
.picture { background: #fff; border: 1px solid var(--line); border-radius: .4rem; padding: .4rem; margin: 1rem 0 }
.picture svg { width: 100%; height: auto; display: block }
.table { overflow-x: auto } table { border-collapse: collapse; width: 100%; font-size: .92rem }
th, td { text-align: left; vertical-align: top; padding: .4rem .5rem; border-bottom: 1px solid var(--line) }
td.number { white-space: nowrap; font-variant-numeric: tabular-nums }
small, .soft { color: var(--soft) } code { background: var(--tint); padding: .1rem .3rem; border-radius: .2rem }
section { break-inside: avoid-page }
@media (max-width: 40rem) { table, tbody, tr, td { display: block } thead { display: none }
  tr { border-bottom: 2px solid var(--line); padding: .4rem 0 } td { border: 0; padding: .15rem 0 }
  .picture { overflow-x: auto } .picture svg { min-width: 40rem } }
"""


def page(results: Sequence[Result], title: str, about: str) -> str:
    """The whole page."""
    counts = {verdict: sum(result.verdict == verdict for result in results) for verdict in SIGNS}
    summary = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    contents = "".join(
        f'<li><a href="#{escape(one.lab.name)}">{escape(one.lab.name)}</a>: {escape(one.lab.question)} '
        f"<small>{SIGNS[one.verdict]} {escape(one.verdict)}</small></li>"
        for one in results
    )
    sections = "".join(_section(one) for one in results)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLES}</style></head>'
        f"<body><h1>{escape(title)}</h1><p>{escape(about)}</p><p>{len(results)} labs: {escape(summary)}.</p>"
        f"<ul>{contents}</ul>{sections}</body></html>\n"
    )


def _section(result: Result) -> str:
    lab = result.lab
    explained = "".join(f"<p>{_inline(paragraph)}</p>" for paragraph in lab.paragraphs)
    tries = "".join(f"<li><code>{escape(command)}</code></li>" for command in lab.tries)
    read = ", ".join(f"<code>src/qkv/{escape(file)}</code>" for file in lab.read)
    return (
        f'<section id="{escape(lab.name)}"><h2>{escape(lab.question)}</h2>'
        f'<p class="usual">The usual answer: {_inline(lab.usual)}</p>'
        f'<p><span class="verdict">{SIGNS[result.verdict]} {escape(result.verdict)}</span> {_inline(result.answer)}</p>'
        f'{explained}<p class="formula">{escape(lab.formula)}</p><div class="picture">{svg(result)}</div>'
        f"{_numbers(result)}<p>Try: </p><ul>{tries}</ul><p>Read: {read}; this lab is "
        f"<code>src/qkv/labs/experiments/{escape(lab.name.replace('-', '_'))}.py</code>.</p></section>"
    )


def _numbers(result: Result) -> str:
    seeds = len(result.measured)
    how = "deterministic" if seeds == 1 else f"mean over {seeds} seeds, 95% interval"
    rows = "".join(_row(finding) for finding in result.findings)
    figures = "; ".join(f"{name}: {readable(value)}" for name, value in result.figures.items())
    return (
        '<div class="table"><table><thead><tr><th>claim</th><th>measured</th><th>rule</th><th>decision</th></tr>'
        f"</thead><tbody>{rows}</tbody></table></div><p class='soft'>{escape(how)}. {escape(figures)}.</p>"
        f"<p class='soft'>Beside it: {escape(published.sentence(result.lab.name))}</p>"
    )


def _row(finding: Finding) -> str:
    claim = finding.claim
    sentence = _inline(claim.sentence)
    if claim.erratum:
        sentence = f"<em>Erratum:</em> “{sentence}” <strong>{_inline(claim.correction)}</strong>"
    return (
        f"<tr><td>{sentence} <small>{escape(claim.source)}</small></td>"
        f"<td>{escape(claim.effect)}: <span class='number'>{finding}</span></td>"
        f"<td>{escape(str(claim.rule))}</td><td>{said(finding)}</td></tr>"
    )


def said(finding: Finding) -> str:
    """What was decided about the sentence itself; of an erratum, that it was one."""
    sign = SIGNS[finding.decision]
    if not finding.claim.erratum:
        return f"{sign} {finding.decision}"
    words = {HOLDS: "corrected", FAILS: "the sentence holds after all", UNDECIDED: UNDECIDED}
    return f"{sign} {words[finding.decision]}"


def picture(result: Result, kind: str) -> bytes:
    """The picture of a lab as PNG or SVG."""
    import matplotlib.style
    from matplotlib.figure import Figure

    with matplotlib.style.context(["default", STYLE, {"text.parse_math": True}]):  # powers of ten on axes
        figure = Figure(figsize=(9.0, 4.2), layout="constrained")
        result.lab.draw(figure, result.measured)
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, metadata={"Date": None} if kind == "svg" else {})
    return drawn.getvalue()


def svg(result: Result) -> str:
    """The picture to stand inside a page: no prologue, no metadata, and names that no other picture has."""
    text = picture(result, "svg").decode()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    prefix = result.lab.name
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'(xlink:href|href)="#', rf'\1="#{prefix}-', text)
    return re.sub(r"url\(#", f"url(#{prefix}-", text)


def _inline(text: str) -> str:
    """Plain text with `code` in it."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))
