"""Does the second text follow the first? A pre-trained run on its held-out documents, beside bags of words.

    .venv/bin/python benchmarks/next_sentence.py runs/bert-mini-reviews [--pairs 20000]

All are judged on the very same pairs: the passages of the run's test documents, half of them with a stranger's second
text of the same length, as `qkv eval` draws them. The model reads them as in `qkv eval`, a share of the words hidden;
and once more with no word hidden, as the others read them.

- majority: the more frequent answer of the training pairs.
- cosine: of both texts' words (TF-IDF); what is more alike than a threshold is the next. The threshold is the one that
  is most often right on pairs of the validation documents.
- topic: logistic regression on what bags of words say of a pair (`pair_features.py`: cosines of words, parts of words
  and topics, words that both have, how rare they are, lengths). Fitted on --pairs pairs of training documents; C is
  chosen on the pairs of the validation documents.
- second text alone: logistic regression on its words and on its first and last signs, never looking at the first.
  More than chance would mean that negatives can be told without any reading.

Words are weighed by the training pairs only. Nothing is chosen on the test documents.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pair_features import PairFeatures
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from table import head, row, say

from qkv import api, runtime
from qkv.bundled import path_of
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import Source, open_corpus
from qkv.corpus.files import Row
from qkv.corpus.split import Part
from qkv.data.batch import MaskedBatch
from qkv.data.tokenise import sentences_of
from qkv.predict.predictor import Predictor
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tasks.material import JUDGED, Documents, masked_dataset
from qkv.tasks.objectives import word_scores
from qkv.tokenizer.tokenizer import Tokenizer
from qkv import metrics

CS = (0.01, 0.1, 1.0, 10.0)
Negatives = NDArray[np.int64]  # of each pair: 0 the second text is the next, 1 it is a stranger's


@dataclass(frozen=True)
class Pairs:
    """Texts as the tokenizer gives them back, and the truth."""

    first: list[str]
    second: list[str]
    negatives: Negatives

    @property
    def endings(self) -> list[str]:
        """The second texts, how they begin and end marked: whether a sentence was broken shows there."""
        return [f"{text} begins_{text[:3]} ends_{text[-3:]}" for text in self.second]


def documents_of(recipe: Recipe, rows: Sequence[Row], tokenizer: Tokenizer) -> Documents:
    """Passages as `qkv eval` makes them of test documents."""
    recipe = recipe.replace(train=recipe.train.replace(eval_tokens=0, next_sentence=True).model_dump())
    return masked_dataset(recipe, sentences_of(rows, tokenizer, recipe.data.sentences), tokenizer)


def batches(material: Documents) -> Iterator[MaskedBatch]:
    return (material.words.collate(examples_B, JUDGED) for examples_B in material.judged())


def pairs_of(material: Documents, tokenizer: Tokenizer, most: int = 0) -> Pairs:
    """The pairs among the passages, in the order of the batches; `most` of them, drawn by chance, if that is not 0."""
    words, numbers = material.words, np.concatenate(material.judged())
    numbers = numbers[np.diff(words.examples.b_N2)[numbers, 0] > 0]
    if most:
        numbers = np.random.default_rng(7).permutation(numbers)[:most]
    first, second, negatives = list[str](), list[str](), list[int]()
    for number in numbers.tolist():
        other, is_stranger = words.negatives.second(number, JUDGED)
        if is_stranger is None:
            continue
        for texts, (start, end) in ((first, words.examples.a_N2[number]), (second, words.examples.b_N2[other])):
            texts.append(tokenizer.decode(words.store.tokens[start:end].tolist()))
        negatives.append(int(is_stranger))
    return Pairs(first, second, np.array(negatives, np.int64))


@torch.no_grad()
def answers(predictor: Predictor, material: Documents, *, hidden: bool) -> tuple[Negatives, Negatives]:
    """What the model says of every pair, and the truth. Without `hidden`, every word stands where it was."""
    said, true = [], []
    for batch in batches(material):
        if not len(batch.pairs_M):
            continue
        if not hidden:
            batch.tokens_BL.view(-1)[batch.positions_N] = batch.targets_N
        _, scores_M2 = word_scores(predictor.model, batch)
        assert scores_M2 is not None, "there are pairs"
        said.append(scores_M2.argmax(1).numpy())
        true.append(batch.negatives_M.numpy())
    return np.concatenate(said), np.concatenate(true)


def threshold(cosines: metrics.Floats, negatives: Negatives) -> float:
    """Above which cosine a pair is best held for a true one."""
    order = np.argsort(cosines, kind="stable")
    true = negatives[order]
    hits = np.concatenate([[0], np.cumsum(true)]) + np.concatenate([np.cumsum((1 - true)[::-1])[::-1], [0]])
    edges = np.concatenate([[-np.inf], cosines[order], [np.inf]])
    apart = edges[:-1] < edges[1:]  # equal cosines cannot be told apart
    return float(edges[int(np.where(apart, hits, -1).argmax())])


def fitted(
    make: Callable[[float], Any], learnt: Any, train: Pairs, judged: Any, validation: Pairs
) -> tuple[Any, float]:
    """The best model by the validation pairs, and its C."""
    models = {c: make(c).fit(learnt, train.negatives) for c in CS}
    best = max(CS, key=lambda c: float(models[c].score(judged, validation.negatives)))
    return models[best], best


def scaled(c: float) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000))


def simple_models(train: Pairs, validation: Pairs, test: Pairs) -> Iterator[tuple[str, Negatives]]:
    """Name and answers of each."""
    usual = int(np.bincount(train.negatives, minlength=2).argmax())
    yield "majority", np.full(len(test.negatives), usual)
    say("weighing words")
    features = PairFeatures.learnt_from([*train.first, *train.second])
    least = threshold(features.cosine(validation.first, validation.second), validation.negatives)
    yield f"cosine of words, above {least:.3f}", (features.cosine(test.first, test.second) <= least).astype(np.int64)
    learnt, judged, asked = (features.dense(part.first, part.second) for part in (train, validation, test))
    model, c = fitted(scaled, learnt, train, judged, validation)
    yield f"topic: logistic regression on {learnt.shape[1]} likenesses, C = {c:g}", model.predict(asked)
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    learnt, judged, asked = (
        step(part.endings)
        for step, part in ((words.fit_transform, train), (words.transform, validation), (words.transform, test))
    )
    model, c = fitted(lambda c: LogisticRegression(C=c, max_iter=1000), learnt, train, judged, validation)
    yield f"second text alone, C = {c:g}", model.predict(asked)


def show(name: str, said: Negatives, true: Negatives) -> None:
    hits = int((said == true).sum())
    low, high = metrics.wilson(hits, len(true))
    row(name, f"{len(true):,}", f"{hits / len(true):.4f}", f"{low:.4f} to {high:.4f}")


def rows_of(source: Source, part: Part, most: int = 0) -> list[Row]:
    """The documents of a part; `most` of them, drawn by chance, if that is not 0."""
    found = [one for _, one in source.rows([part]) if one.text.strip()]
    if not found:
        raise UserError(f"{source.where}: has no {part} documents")
    if not most or most >= len(found):
        return found
    chosen = np.sort(np.random.default_rng(7).permutation(len(found))[:most])
    return [found[number] for number in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", metavar="RUN", help="the folder of a run with task = fill and next sentences")
    parser.add_argument("--pairs", type=int, default=20_000, help="pairs of training documents to fit on")
    asked = parser.parse_args()
    runtime.start()
    folder: Path = path_of(asked.run)
    recipe, predictor = Run(folder).recipe, api.load(folder)
    if recipe is None or predictor.config.head != "pretraining":
        raise UserError(f"{folder}: must be a run that learnt next sentences, with its recipe.toml")
    source = open_corpus(recipe.data, say, recipe.task)
    if source.data_hash != Run(folder).data_hash():
        raise UserError(f"{folder}: its data has changed since, so its test documents are others")
    tokenizer = predictor.tokenizer
    say("reading")
    test = documents_of(recipe, rows_of(source, "test"), tokenizer)
    learnt = documents_of(recipe, rows_of(source, "train", asked.pairs), tokenizer)
    train = pairs_of(learnt, tokenizer, asked.pairs)
    validation = pairs_of(documents_of(recipe, rows_of(source, "validation"), tokenizer), tokenizer)
    pairs = pairs_of(test, tokenizer)
    say(f"{len(train.negatives):,} pairs to learn from, {len(validation.negatives):,} to choose by")
    head("who answers", "pairs", "accuracy", "95% interval")
    for name, said in simple_models(train, validation, pairs):
        show(name, said, pairs.negatives)
    for name, hidden in ((f"{folder}, {recipe.train.mask_rate:.0%} of the words hidden", True), (str(folder), False)):
        said, true = answers(predictor, test, hidden=hidden)
        assert np.array_equal(true, pairs.negatives), "the same pairs in the same order"
        show(name, said, true)


if __name__ == "__main__":
    main()
