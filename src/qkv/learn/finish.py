"""The end of a training: the model in the root is tried on rows it has never seen, by the road that users take, and the
run gets its card."""

from __future__ import annotations

from collections.abc import Iterator

from qkv.data.source import Source
from qkv.learn.card import write_card
from qkv.learn.metrics import Findings
from qkv.learn.score import score
from qkv.learn.session import Session
from qkv.predict import load_predictor
from qkv.text.corpus import Row


def finish(session: Session) -> Findings | None:
    """What was found on the test rows (None where there are none), and the card that states it."""
    run, progress = session.run, session.learner.progress
    if not progress.finished:
        return None
    findings = None
    if sum(session.prepared.counts["test"].values()):
        session.source.must_be_unchanged()
        findings = score(load_predictor(run.path), test_rows(session.source), session.recipe)
    if not run.is_done():
        name, architecture, began_with = run.path.resolve().name, run.architecture(), run.began_with()
        card = write_card(name, session.recipe, session.prepared, progress, architecture, began_with, findings)
        with run.writing("the card"):
            run.write_card(card)
    return findings


def test_rows(source: Source) -> Iterator[tuple[str | None, Row]]:
    """The rows that no training ever saw, each with its label."""
    return ((source.label_of(row), row) for _, row in source.rows(["test"]))
