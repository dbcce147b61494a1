"""Next-sentence prediction: a pre-trained run on its test documents, beside bags of words.

    .venv/bin/python benchmarks/next_sentence.py runs/bert-mini-reviews [--pairs 20000]

All are tested on the very same pairs: the passages of the run's test documents, half of them with a negative second
text of the same length, as `qkv eval` draws them. The model reads them as in `qkv eval`, a share of the tokens masked;
and once more without masks, as the others read them.

- majority: the more frequent class of the training pairs.
- cosine: of both texts' words (TF-IDF); above a threshold the second text is the next. The threshold is the one with
  the highest accuracy on pairs of the validation documents.
- topic: logistic regression on features of bags of words (`pair_features.py`: cosines of words, parts of words and
  topics, words that both have, how rare they are, lengths). Fitted on --pairs pairs of training documents; C is chosen
  on the pairs of the validation documents.
- second text alone: logistic regression on its words and on its first and last characters, without the first text. More
  than chance would mean that negatives can be recognised by themselves.

TF-IDF is fitted on the training pairs only. Nothing is chosen on the test documents.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pair_features import PairFeatures
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from table import head, row, run_main, say

from qkv import api, metrics, runtime
from qkv.calibration import Floats
from qkv.config.recipe import Recipe
from qkv.corpus.corpus import Corpus, open_corpus
from qkv.corpus.files import Row
from qkv.corpus.split import Split
from qkv.data.store import temporary_store, write_sentences
from qkv.hub import path_of
from qkv.predict.predictor import Predictor
from qkv.run.folder import Run
from qkv.schema import UserError
from qkv.tasks.fill import FILL, MaskedDataset, masked_dataset, masked_logits
from qkv.tasks.task import EVALUATION
from qkv.tokenizer.tokenizer import Tokenizer

CS = (0.01, 0.1, 1.0, 10.0)
Negatives = NDArray[np.int64]  # of each pair: 0 the second text is the next sentence, 1 it is a negative


@dataclass(frozen=True)
class Pairs:
    """Texts as the tokenizer decodes them, and their labels."""

    first: list[str]
    second: list[str]
    negatives: Negatives

    @property
    def endings(self) -> list[str]:
        """The second texts with marked first and last characters: whether a sentence was broken shows there."""
        return [f"{text} begins_{text[:3]} ends_{text[-3:]}" for text in self.second]


def dataset_of(recipe: Recipe, rows: Sequence[Row], tokenizer: Tokenizer) -> MaskedDataset:
    """Passages as `qkv eval` makes them of test documents."""
    recipe = recipe.replace(train=recipe.train.replace(eval_tokens=0, next_sentence=True).model_dump())
    store = temporary_store(lambda writer: write_sentences(rows, tokenizer, recipe.data.sentences, writer))
    return masked_dataset(recipe, store, tokenizer)


def pairs_of(dataset: MaskedDataset, tokenizer: Tokenizer, most: int = 0) -> Pairs:
    """The pairs among the passages, in the order of the batches; `most` of them, at random, if that is not 0."""
    store, examples, numbers = dataset.store, dataset.examples, np.concatenate(dataset.sampler.in_order())
    numbers = numbers[np.diff(examples.b_N2)[numbers, 0] > 0]
    if most:
        numbers = np.random.default_rng(7).permutation(numbers)[:most]
    first, second, negatives = list[str](), list[str](), list[int]()
    for number in numbers.tolist():
        other, is_negative = dataset.negatives.second(number, EVALUATION)
        if is_negative is None:
            continue
        first.append(tokenizer.decode(store.slice(examples.a_N2[number]).tolist()))
        second.append(tokenizer.decode(store.slice(examples.b_N2[other]).tolist()))
        negatives.append(int(is_negative))
    return Pairs(first, second, np.array(negatives, np.int64))


@torch.no_grad()
def predictions(predictor: Predictor, dataset: MaskedDataset, *, masked: bool) -> tuple[Negatives, Negatives]:
    """The model's prediction for every pair, and the label. Without `masked`, every token is the original one."""
    predicted, labels = [], []
    for examples_B in dataset.sampler.in_order():
        batch = dataset.collate(examples_B, EVALUATION)
        if not len(batch.pairs_M):
            continue
        if not masked:
            batch.tokens_BL.view(-1)[batch.positions_N] = batch.targets_N
        logits_M2 = masked_logits(predictor.model, batch).pairs_M2
        assert logits_M2 is not None, "there are pairs"
        predicted.append(logits_M2.argmax(1).numpy())
        labels.append(batch.negatives_M.numpy())
    return np.concatenate(predicted), np.concatenate(labels)


def threshold(cosines: Floats, negatives: Negatives) -> float:
    """The cosine above which to predict that a pair is no negative: the one with the highest accuracy."""
    order = np.argsort(cosines, kind="stable")
    true = negatives[order]
    hits = np.concatenate([[0], np.cumsum(true)]) + np.concatenate([np.cumsum((1 - true)[::-1])[::-1], [0]])
    edges = np.concatenate([[-np.inf], cosines[order], [np.inf]])
    apart = edges[:-1] < edges[1:]  # no threshold lies between equal cosines
    return float(edges[int(np.where(apart, hits, -1).argmax())])


def fitted(
    make: Callable[[float], Any], train_x: Any, train: Pairs, validation_x: Any, validation: Pairs
) -> tuple[Any, float]:
    """The best model by the validation pairs, and its C."""
    models = {c: make(c).fit(train_x, train.negatives) for c in CS}
    best = max(CS, key=lambda c: float(models[c].score(validation_x, validation.negatives)))
    return models[best], best


def scaled(c: float) -> Any:
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=1000))


def simple_models(train: Pairs, validation: Pairs, test: Pairs) -> Iterator[tuple[str, Negatives]]:
    """Name and predictions of each."""
    usual = int(np.bincount(train.negatives, minlength=2).argmax())
    yield "majority", np.full(len(test.negatives), usual)
    say("fitting TF-IDF")
    features = PairFeatures.learnt_from([*train.first, *train.second])
    least = threshold(features.cosine(validation.first, validation.second), validation.negatives)
    yield f"cosine of words, above {least:.3f}", (features.cosine(test.first, test.second) <= least).astype(np.int64)
    train_x, validation_x, test_x = (features.dense(one.first, one.second) for one in (train, validation, test))
    model, c = fitted(scaled, train_x, train, validation_x, validation)
    yield f"topic: logistic regression on {train_x.shape[1]} features, C = {c:g}", model.predict(test_x)
    vectors = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2)
    train_x, validation_x, test_x = (
        step(one.endings)
        for step, one in ((vectors.fit_transform, train), (vectors.transform, validation), (vectors.transform, test))
    )
    model, c = fitted(lambda c: LogisticRegression(C=c, max_iter=1000), train_x, train, validation_x, validation)
    yield f"second text alone, C = {c:g}", model.predict(test_x)


def show(name: str, predicted: Negatives, labels: Negatives) -> None:
    hits = int((predicted == labels).sum())
    low, high = metrics.wilson(hits, len(labels))
    row(name, f"{len(labels):,}", f"{hits / len(labels):.4f}", f"{low:.4f} to {high:.4f}")


def documents_of(corpus: Corpus, split: Split, most: int = 0) -> list[Row]:
    """The documents of a split; `most` of them, at random, if that is not 0."""
    found = [one for _, one in corpus.rows([split]) if one.text.strip()]
    if not found:
        raise UserError(f"{corpus.where}: has no {split} documents")
    if not most or most >= len(found):
        return found
    chosen = np.sort(np.random.default_rng(7).permutation(len(found))[:most])
    return [found[number] for number in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", metavar="RUN", help="a run with task = fill and next_sentence = true")
    parser.add_argument("--pairs", type=int, default=20_000, help="pairs of training documents to fit on")
    options = parser.parse_args()
    runtime.start()
    folder = path_of(options.run)
    predictor, recipe = api.load(folder), Run(folder).recipe
    if recipe is None or predictor.config.head != "pretraining":
        raise UserError(f"{folder}: must be a run that was trained on next-sentence prediction, with its recipe.toml")
    corpus, tokenizer = open_corpus(recipe.data, FILL.format(recipe), say), predictor.tokenizer
    if corpus.data_hash != Run(folder).data_hash():
        raise UserError(f"{folder}: its data has changed since, and with it the test documents")
    say("reading")
    test = dataset_of(recipe, documents_of(corpus, "test"), tokenizer)
    train = pairs_of(
        dataset_of(recipe, documents_of(corpus, "train", options.pairs), tokenizer), tokenizer, options.pairs
    )
    validation = pairs_of(dataset_of(recipe, documents_of(corpus, "validation"), tokenizer), tokenizer)
    pairs = pairs_of(test, tokenizer)
    say(f"{len(train.negatives):,} training pairs, {len(validation.negatives):,} validation pairs")
    head("model", "pairs", "accuracy", "95% interval")
    for name, predicted in simple_models(train, validation, pairs):
        show(name, predicted, pairs.negatives)
    for name, masked in ((f"{folder}, {recipe.train.mask_rate:.0%} of the tokens masked", True), (str(folder), False)):
        predicted, labels = predictions(predictor, test, masked=masked)
        assert np.array_equal(labels, pairs.negatives), "the same pairs in the same order"
        show(name, predicted, labels)


if __name__ == "__main__":
    run_main(main)
