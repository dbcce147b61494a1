"""Our own code against libraries: metrics, sentence splitting, integrated gradients.

    .venv/bin/python benchmarks/libraries.py --run runs/reviews    (pip install scikit-learn sentencex pysbd captum)

What is not installed is skipped. Sentences and gradients need real text (--data, QKV_DATA), gradients a trained
classifier. Places where a sentence may end are drawn by kind with a fixed seed. One reader, who knew our rules,
annotated them (GOLD) before any splitter was run.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import re
import timeit
import warnings
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from table import head, row, run_main

from qkv import api, calibration, metrics
from qkv.corpus.sentences import english
from qkv.explain.attribution import token_scores
from qkv.model.masks import positions_of
from qkv.predict.prediction import TextBatch
from qkv.schema import UserError

ROWS, CLASSES, EVERY = 10_000, 10, range(10)
DRAWN, KINDS = 12, ("ellipsis", "glued", "plain", "quote", "short", "small")  # so many places of each kind
# Of each source, places by kind in this order: y a sentence ends, n it does not, ? readers may differ (not counted).
GOLD = {
    "books": "yyynyyyynyyy nnnnnnnnnnnn yyyyyyyyyyyy yyyynynyyyyy nynn?nnnnnyn ??nnnn?n?nn?",
    "reviews": "?nnyyyy?y?nn nnyynynnynn? yyyyyyyyyyyy yyynyyyyyyyy yyyynnnyynyn ynyyyyyyyyyy",
    "articles": "nn?nnn?n?n?y nnnnnnnnnnnn yyyyyyyyyyyy ynyyynynyyyy nynnnnynnynn nnnnnnynnnyn",
}
ANNOTATED = 1290100272  # crc32 of all annotated places
PLACE = re.compile(r"(?P<sign>[.!?…]+)(?P<close>[\"'”’)\]]+|\x20\"(?=\s|$)|)(?P<gap>\s*)(?=\S)")
SHORT = re.compile(r"(?:^|[\s(\"'“])(?:[A-Z][a-z]{,3}|[a-z]|(?:[A-Za-z]{1,2}\.)+[A-Za-z]{1,2}|etc|vs|no|vol|jr|inc)$")
HARD = {"dots": ".", "Mr.": "Mr. ", "spaced dots": ". ", "open quotes": '"A. ', "brackets": "(a. ", "one word": "a"}
LONG, SLOW = 10**6, {"pysbd": 20_000}  # characters of these: its time grows with their square
Place = tuple[str, int, int]  # a passage, and in it the end of the sign and of the closing quotes after it


def missing(*names: str) -> bool:
    for name in (absent := [name for name in names if find_spec(name) is None]):
        print(f"skipped: {name} is not installed")
    return bool(absent)


def milliseconds(call: Callable[[], object], rounds: int = 7) -> float:
    """The median; the first call warms up and is not counted."""
    call()
    return 1000 * sorted(timeit.repeat(call, number=1, repeat=rounds))[rounds // 2]


def compare_metrics(options: argparse.Namespace) -> None:
    """Largest difference over ordinary and odd inputs, or the first values of ours / theirs; time at 10,000 x 10."""
    from sklearn import metrics as theirs
    from sklearn.calibration import CalibratedClassifierCV, calibration_curve
    from sklearn.frozen import FrozenEstimator
    from sklearn.linear_model import LogisticRegression

    def case(rows: int, scale: float, classes: int = CLASSES) -> tuple[Any, Any]:
        draw = np.random.default_rng(rows)
        x = draw.normal(size=(rows, CLASSES)) * scale
        return x, np.where(draw.random(rows) < 0.5, x.argmax(1), draw.integers(0, classes, rows)) % classes

    def bins(x: Any, y: Any) -> list[float]:
        full = [one for one in calibration.reliability(calibration.softmax(x), y) if one.count]
        return [one.accuracy for one in full] + [one.confidence for one in full]

    def temperature(x: Any, y: Any) -> float:
        same = LogisticRegression()  # its scores are x as it is
        same.classes_, same.coef_, same.intercept_ = np.arange(CLASSES), np.eye(CLASSES), np.zeros(CLASSES)
        fitted = CalibratedClassifierCV(FrozenEstimator(same), method="temperature").fit(x, y)
        return float(1 / fitted.calibrated_classifiers_[0].calibrators[0].beta_)

    pairs: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
        "accuracy": (metrics.accuracy, lambda x, y: theirs.accuracy_score(y, x.argmax(1))),
        "cross-entropy": (calibration.cross_entropy,
                          lambda x, y: theirs.log_loss(y, calibration.softmax(x), labels=EVERY)),
        "bins of ECE": (bins, lambda x, y: np.concatenate(
            calibration_curve(x.argmax(1) == y, calibration.softmax(x).max(1), n_bins=15))),
        "temperature": (partial(calibration.fit_temperature, prior_rows=0), temperature),
    }  # fmt: skip
    cases = {"random": case(ROWS, 2), "3 rows": case(3, 1), "8 classes absent": case(200, 1, 2)}
    cases |= {"scores of 1000": case(500, 300), "ties": (case(501, 1)[0].round(), case(501, 1)[1])}
    cases["all alike"] = (np.zeros((20, CLASSES)), np.zeros(20, int))
    warnings.simplefilter("ignore")
    head("metric", *cases, "ours ms", "theirs ms")
    for name, both in pairs.items():
        gaps = [difference(*both, *given) for given in cases.values()]
        row(name, *gaps, *(f"{milliseconds(partial(one, *cases['random'])):.2f}" for one in both))


def difference(ours: Callable[..., Any], theirs: Callable[..., Any], x: Any, y: Any) -> str:
    try:
        a, b = (np.ravel(one(x, y)).astype(float) for one in (ours, theirs))
    except (ValueError, IndexError) as error:
        return f"error: {str(error)[:60]}"
    gap = float(np.abs(a - b).max()) if len(a) == len(b) else np.nan
    return f"{gap:.0e}" if gap < 1e-6 else f"{a[0]:.6g} / {b[0]:.6g}"


def passages(source: str, data: Path) -> Iterator[str]:
    names = {"books": "gutenberg/[a-m]*.gz", "reviews": "imdb/dev.tsv.gz", "articles": "wikitext2/wiki.valid.raw.gz"}
    paths = sorted(data.glob(names[source]))
    if not paths:
        raise UserError(f"{data}: has no {names[source]}")
    for path in paths:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
        if source == "reviews":  # without <br />, which only ours knows
            for line in text.split("\n")[1:]:
                yield from (" ".join(part.split()) for part in re.split(r"(?:<br\s*/?>\s*)+", line.split("\t", 3)[-1]))
        elif source == "articles":  # punctuation stands apart, and stays so
            yield from (line.strip() for line in text.split("\n") if line.strip() and not line.startswith(" ="))
        elif not re.match("blake|milton", path.name):  # prose. Here it stands apart too: put back as it is printed
            text = re.sub(r"(?<=\w)\. \.(?! \.)", ".", text)
            text = re.sub(r" (?=[.,;:!?)]|'\w|n't)", "", text).replace("( ", "(")
            text = re.sub(r"(?:``|(?<=\s)\"|^\") ?", "“", text).replace(" ''", "”")
            yield " ".join(re.sub(r"(?<=[.,!?]) '(?=\s)", "'", re.sub(r"(?<=\s)` ", "'", text)).split())


def kind_of(text: str, found: re.Match[str]) -> str:
    after, before = text[found.end()], text[max(0, found.start() - 12) : found.start()]
    if not found["gap"]:
        return "glued" if after.isalnum() and not found["close"] and before[-1:].isalnum() else ""
    dot, dots = found["sign"] == ".", found["sign"][:2] == ".." or "…" in found["sign"]
    tests = {"ellipsis": dots, "quote": found["close"] or after in "\"'“‘", "small": after.islower() or after.isdigit()}
    tests["short"] = dot and SHORT.search(before.rstrip())
    return next((kind for kind, holds in tests.items() if holds), "plain")


def drawn(source: str, data: Path) -> Iterator[Place]:
    """Places by kind, each in its passage; in a book that begins where a quotation was closed."""
    found: dict[str, list[Place]] = {kind: [] for kind in ("", *KINDS)}
    for text in passages(source, data):
        for one in PLACE.finditer(text):
            found[kind_of(text, one)].append((text, one.end("sign"), one.end("close")))
    for text, sign, close in [place for kind in KINDS for place in random.Random(0).sample(found[kind], DRAWN)]:
        start = max(text.rfind("” ", 0, max(0, sign - 200)) + 2, sign - 2000) if source == "books" else 0
        yield text[start : start + 4000], sign - start, close - start


def is_right(place: Place, wanted: str, pieces: list[str]) -> bool:
    """Whether a piece ends here, or none does, as wanted. Places are counted in characters that are not blank."""
    text, sign, close = place
    at_sign, at_close = (len("".join(text[:end].split())) for end in (sign, close))
    ends = set(np.cumsum([len("".join(piece.split())) for piece in pieces]).tolist())
    apart = text[sign : sign + 1] == " "  # a quote that may open or close
    return ends.isdisjoint((at_sign, at_close)) if wanted == "n" else at_close in ends or (apart and at_sign in ends)


def compare_sentences(options: argparse.Namespace) -> None:
    """Annotated places that are right, by source and kind; MB/s; seconds for text made to be hard."""
    data, splitters = Path(options.data), dict[str, Callable[[str], list[str]]](ours=english)
    made: dict[str, Callable[[Any], Any]] = {"sentencex": lambda it: partial(it.segment, "en")}
    made["pysbd"] = lambda it: it.Segmenter("en").segment
    splitters |= {name: make(import_module(name)) for name, make in made.items() if not missing(name)}
    places = [(source, KINDS[n // DRAWN], place, wanted) for source, said in GOLD.items()
              for n, (place, wanted) in enumerate(zip(drawn(source, data), said.replace(" ", ""), strict=True))
              if wanted != "?"]  # fmt: skip
    if zlib.crc32(repr(places).encode()) != ANNOTATED:
        raise UserError(f"{data}: its texts are not those that were annotated")
    some = [list(passages(name, data))[:600] for name in ("reviews", "articles")]
    head("splitter", *GOLD, *KINDS, "all", "outside quotations", "missed", "false", "MB/s reviews", "MB/s articles")
    for name, split in splitters.items():
        marks = [(*one, is_right(one[2], one[3], split(one[2][0]))) for one in places]
        groups = [[one for one in marks if group in one[:2]] for group in (*GOLD, *KINDS)]
        inside = [s.count("“") > s.count("”") or s.count('"') % 2 for s in (one[2][0][: one[2][2]] for one in marks)]
        groups += [marks, [one for one, quoted in zip(marks, inside, strict=True) if not quoted]]
        wrong = [sum(one[3] == side and not one[4] for one in marks) for side in "yn"]
        times = [milliseconds(partial(lambda split, texts: [*map(split, texts)], split, texts), 1) for texts in some]
        speeds = [f"{sum(map(len, texts)) / 1000 / spent:.2f}" for texts, spent in zip(some, times, strict=True)]
        row(name, *(f"{sum(one[4] for one in group)}/{len(group)}" for group in groups), *wrong, *speeds)
    print()
    head("seconds for", "characters", *HARD)
    for name, split in splitters.items():
        size = SLOW.get(name, LONG)
        times = [timeit.timeit(partial(split, part * (size // len(part))), number=1) for part in HARD.values()]
        row(name, f"{size:,}", *(f"{spent:.2f}" for spent in times))


def compare_gradients(options: argparse.Namespace) -> None:
    """The same way from the same start: scores of tokens, how far their sum is from what they explain, and time."""
    if missing("captum"):
        return
    predictor = api.load(options.run)
    model: Any = predictor.model
    table_VD = model.embedding.table_VD.detach() * model.embedding.factor

    def decision(x_NLD: torch.Tensor) -> torch.Tensor:
        scores_NC: torch.Tensor = model.text(model.stack(x_NLD, positions_of(x_NLD, None), None)[0])
        return scores_NC[:, 0] - scores_NC[:, 1:].mean(1)

    captum, found = import_module("captum.attr").IntegratedGradients(decision), dict[str, list[tuple[float, ...]]]()
    for text in [text for text in passages("reviews", Path(options.data)) if 100 < len(text) < 250][:20]:
        batch = TextBatch.of([0], [text], predictor.tokenizer.encode([text]))
        own_L = torch.tensor([end > begin for begin, end in predictor.tokenizer.spans(text)])
        end_1LD = model.embedding(batch.tokens_BL, batch.segments_BL if predictor.config.segments else None).detach()
        start_1LD = end_1LD - (F.embedding(batch.tokens_BL, table_VD) - table_VD.mean(0)) * own_L[:, None]
        goal = float((decision(end_1LD) - decision(start_1LD)).detach())
        calls: dict[str, Callable[[], Any]] = {"ours": partial(token_scores, predictor, batch, own_L, 0)}
        for how, steps in (("riemann_middle", 32), ("gausslegendre", 32), ("gausslegendre", 50)):
            calls[f"captum, {how}, {steps}"] = partial(captum.attribute, end_1LD, start_1LD, n_steps=steps, method=how)
        for name, call in calls.items():
            scores_L = torch.tensor(call()) if name == "ours" else call()[0].sum(-1)
            gap = (scores_L - torch.tensor(calls["ours"]())).abs().max()
            found.setdefault(name, []).append((float(gap), abs(float(scores_L.sum()) - goal), milliseconds(call, 3)))
    head("by", "largest difference from ours", "completeness error: median", "largest", "ms a text")
    for name, rows in found.items():
        gaps, misses, times = np.array(rows).T
        row(name, f"{gaps.max():.0e}", f"{np.median(misses):.1e}", f"{misses.max():.1e}", f"{np.mean(times):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = {"metrics": compare_metrics, "sentences": compare_sentences, "gradients": compare_gradients}
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}; all if none is given")
    parser.add_argument("--data", default=os.environ.get("QKV_DATA", "../shared/data"))
    parser.add_argument("--run", help="a trained classifier, for gradients")
    options = parser.parse_args()
    wanting = {"sentences": not Path(options.data).is_dir() and "real text (--data, QKV_DATA)"}
    wanting["gradients"] = wanting["sentences"] or (not options.run and "a trained classifier (--run)")
    for name in options.parts or parts:
        print(f"\n## {name}\n")
        if wanting.get(name):
            print(f"skipped: needs {wanting[name]}")
        else:
            parts[name](options)


if __name__ == "__main__":
    run_main(main)
