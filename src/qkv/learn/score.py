"""How good a finished model is, on raw text, by the same road that `predict` takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from qkv.config import Recipe
from qkv.data.tokenise import documents_of, grade_of, sentences_of
from qkv.learn import metrics
from qkv.learn.evaluate import judge_next, judge_words
from qkv.learn.material import build_documents
from qkv.learn.sequences import build_running
from qkv.predict import Predictor
from qkv.prediction import Text
from qkv.schema import UserError, listed
from qkv.text.corpus import Row

Say = Callable[[str], None]
Labelled = tuple[str | None, Row]  # a row, and its label as the model names it
USUAL_LENGTH = 128  # tokens of a passage, for a model that does not say on what it was trained


def _silent(sentence: str) -> None:
    pass


def score(
    predictor: Predictor, rows: Iterable[Labelled], recipe: Recipe | None, say: Say = _silent
) -> metrics.Findings:
    """Whatever there is to say about a model of this kind. The recipe is its own, where it has one."""
    head = predictor.config.head
    if head == "grade":
        return {"all": score_grades(predictor, rows, say)}
    if head == "classes":
        return score_rows(predictor, rows, say)
    if predictor.config.family == "encoder-decoder":
        return {"all": score_translations(predictor, (row for _, row in rows), say)}
    if predictor.config.family == "decoder":
        return {"all": score_running(predictor, (row for _, row in rows), recipe)}
    return {"all": score_documents(predictor, (row for _, row in rows), recipe)}


def score_documents(predictor: Predictor, rows: Iterable[Row], recipe: Recipe | None) -> metrics.Figures:
    """How well hidden words of these documents are guessed, and next sentences told from strangers."""
    if recipe is None:
        longest = min(USUAL_LENGTH, predictor.limit() or USUAL_LENGTH)
        table = {"task": "fill", "data": {"length": longest}, "train": {"batch_tokens": 8192}}
        recipe = Recipe.read({**table, "model": {"vocabulary": predictor.config.vocabulary}})
    both = predictor.config.head == "pretraining"
    recipe = recipe.replace(train=recipe.train.replace(eval_tokens=0, next_sentence=both).model_dump())
    store = sentences_of(rows, predictor.tokenizer, recipe.data.sentences)
    material = build_documents(recipe, store, predictor.tokenizer)
    if not len(material):
        raise UserError("no documents with text to evaluate on")
    found = judge_words(predictor.model, material)
    return metrics.Figures(len(material), {"loss": found.loss, **found.figures}, "documents")


def score_running(predictor: Predictor, rows: Iterable[Row], recipe: Recipe | None) -> metrics.Figures:
    """How well every next word of these documents is guessed."""
    whole = [row for row in rows if row.text.strip()]
    if not whole:
        raise UserError("no documents with text to evaluate on")
    if recipe is None or recipe.task != "complete":
        longest = min(USUAL_LENGTH, predictor.limit() or USUAL_LENGTH)
        table = {"task": "complete", "data": {"length": longest}, "train": {"batch_tokens": 8192}}
        recipe = Recipe.read({**table, "model": {"family": "decoder", "vocabulary": predictor.config.vocabulary}})
    recipe = recipe.replace(train=recipe.train.replace(eval_tokens=0).model_dump())
    store = documents_of(whole, predictor.tokenizer)
    text_bytes = sum(len(row.text.encode()) for row in whole)
    found = judge_next(predictor.model, build_running(recipe, store, predictor.tokenizer, text_bytes))
    return metrics.Figures(len(whole), {"loss": found.loss, **found.figures}, "documents")


def score_translations(predictor: Predictor, rows: Iterable[Row], say: Say = _silent) -> metrics.Figures:
    """BLEU and chrF of what the model says, decoded as its recipe has it. Every pair counts, also where a source was
    too long and had to be cut."""
    whole, left_out = list[Row](), 0
    for row in rows:
        if row.text.strip() and (row.pair or "").strip():
            whole.append(row)
        else:
            left_out += 1
    if left_out:
        say(f"note: {left_out:,} pairs with an empty side are left out")
    if not whole:
        raise UserError("no pairs with two sides to evaluate on")
    answers = predictor.predict([row.text for row in whole])
    cut = sum(one.cut for one in answers)
    if cut:
        say(f"note: {cut:,} of {len(answers):,} sources were cut to fit the model")
    references = [" ".join((row.pair or "").split()) for row in whole]
    values, said = metrics.translation_figures([" ".join((one.output or "").split()) for one in answers], references)
    d = predictor.reading.decode
    how = f"beam {d.beam}, length penalty {d.length_penalty}" if d.beam > 1 else "greedy"
    return metrics.Figures(len(whole), values, "pairs", {"decoding": how, **said})


def score_rows(predictor: Predictor, rows: Iterable[Labelled], say: Say = _silent) -> dict[str, metrics.Scores]:
    """Scores of a classifier: under "all", and by group where rows have one. Rows without text or label are left out,
    and `say` is told."""
    names = predictor.names.labels
    number_of = {name: number for number, name in enumerate(names)}
    texts, labels, groups = list[Text](), list[int](), list[str]()
    for label, row in _whole(rows, say):
        if label not in number_of:
            raise UserError(f"{row.place}: label {label!r} is not one this model knows; known: {listed(names)}")
        texts.append(row.text if row.pair is None else (row.text, row.pair))
        labels.append(number_of[label])
        groups.append(row.group or "")
    shares_NC = np.array(
        [list(answer.probabilities.values()) for answer in predictor.predict(texts) if answer.probabilities]
    )
    labels_N, groups_N = np.array(labels), np.array(groups)
    raw_NC = metrics.softmax(np.log(np.maximum(shares_NC, 1e-300)) * predictor.reading.temperature)
    raw_bins = metrics.reliability(raw_NC, labels_N)
    scores = {"all": replace(metrics.score(shares_NC, labels_N, names), raw_bins=raw_bins)}
    for group in sorted(set(groups) - {""}):
        chosen = groups_N == group
        scores[group] = metrics.score(shares_NC[chosen], labels_N[chosen], names)
    return scores


def score_grades(predictor: Predictor, rows: Iterable[Labelled], say: Say = _silent) -> metrics.Figures:
    """As `score_rows`, for a model that gives grades."""
    whole = _whole(rows, say)
    grades = [grade_of(label, row.place) for label, row in whole]
    texts: list[Text] = [row.text if row.pair is None else (row.text, row.pair) for _, row in whole]
    answers = [answer.value for answer in predictor.predict(texts)]
    return metrics.Figures(len(texts), metrics.grade_figures(np.array(answers, np.float64), grades)[1])


def _whole(rows: Iterable[Labelled], say: Say) -> list[tuple[str, Row]]:
    """Rows that have text and label; of the others `say` is told."""
    whole, left_out = list[tuple[str, Row]](), list[str]()
    for label, row in rows:
        if label is None or not (row.text.strip() or (row.pair or "").strip()):
            left_out.append(row.place)
        else:
            whole.append((label, row))
    if left_out:
        say(f"note: {len(left_out):,} rows without text or label are left out, first {left_out[0]}")
    if not whole:
        raise UserError("no rows with text and label to evaluate on")
    return whole
