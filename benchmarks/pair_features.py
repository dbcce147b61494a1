"""What bags of words say about a pair of texts, for simple models to be compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import TfidfVectorizer

Floats = NDArray[np.float64]
TOPICS = 100
NAMES = (
    "cosine of words", "cosine of parts of words", "cosine of topics", "words in both", "their weight", "their rarest",
    "share of the first's words", "share of the second's words", "log length of the first", "of the second",
    "their difference",
)  # fmt: skip


@dataclass(frozen=True)
class PairFeatures:
    """Weights of words (TF-IDF) and topics (their largest singular vectors), learnt from training texts only."""

    words: Any
    parts: Any
    topics: Any

    @staticmethod
    def learnt_from(texts: Sequence[str], seed: int = 7) -> PairFeatures:
        words = TfidfVectorizer(sublinear_tf=True, min_df=2)
        signs = {"analyzer": "char_wb", "ngram_range": (3, 4), "max_features": 50_000}
        parts = TfidfVectorizer(sublinear_tf=True, min_df=2, **signs)
        weights = words.fit_transform(texts)
        topics = TruncatedSVD(min(TOPICS, min(weights.shape) - 1), random_state=seed).fit(weights)
        return PairFeatures(words, parts.fit(texts), topics)

    def cosine(self, first: Sequence[str], second: Sequence[str]) -> Floats:
        """How alike the words of both texts are; 0 where one has no known word."""
        return _dot(self.words.transform(first), self.words.transform(second))

    def dense(self, first: Sequence[str], second: Sequence[str]) -> Floats:
        """The numbers called NAMES, a row for each pair."""
        a, b = self.words.transform(first), self.words.transform(second)
        both = a.sign().multiply(b.sign())
        shared = _sums(both)
        weights = both.multiply(self.words.idf_[None, :]).tocsr()
        rarest = np.asarray(weights.max(1).todense(), np.float64).ravel()
        length_a, length_b = (np.log1p([len(text.split()) for text in texts]) for texts in (first, second))
        columns = (
            _dot(a, b),
            _dot(self.parts.transform(first), self.parts.transform(second)),
            _cosine(self.topics.transform(a), self.topics.transform(b)),
            np.log1p(shared),
            _sums(weights),
            rarest,
            shared / np.maximum(1, _sums(a.sign())),
            shared / np.maximum(1, _sums(b.sign())),
            length_a,
            length_b,
            np.abs(length_a - length_b),
        )
        return np.stack(columns, 1)

    def sparse(self, first: Sequence[str], second: Sequence[str]) -> Any:
        """Which words both have, and which only one has, by weight."""
        from scipy.sparse import hstack

        a, b = self.words.transform(first), self.words.transform(second)
        return hstack([a.minimum(b), abs(a - b)]).tocsr()


def _sums(matrix: Any) -> Floats:
    return np.asarray(matrix.sum(1), np.float64).ravel()


def _dot(a: Any, b: Any) -> Floats:
    """Cosines of rows: scikit-learn has made each of length 1."""
    return _sums(a.multiply(b))


def _cosine(a: Floats, b: Floats) -> Floats:
    sizes = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return np.asarray((a * b).sum(1) / np.where(sizes == 0, 1, sizes), np.float64)
