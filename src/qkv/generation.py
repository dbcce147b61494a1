"""Words one after the other from a model: where a decoder or an encoder-decoder meets decoding.

B texts · L length · N rows (texts, or hypotheses of a beam) · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from qkv.config import DecodeConfig, ModelConfig
from qkv.decode import Choose, Chosen, Grown, Step, beam, greedy, likeliest, ranked, sampler
from qkv.exchange.names import Names
from qkv.model.cache import Cache
from qkv.model.heads import POOLS
from qkv.model.transformer import Decoder, EncoderDecoder
from qkv.prediction import Padded, Prediction
from qkv.schema import UserError
from qkv.streams import stream
from qkv.text.tokenizer import Tokenizer

USUAL_ANSWER = 64  # tokens of a continuation, unless asked otherwise
MEMORY = 2**28  # bytes that texts answered together may remember
LARGEST_MEMORY = 2**31  # bytes that one text may
Writer = Decoder | EncoderDecoder


@dataclass(frozen=True)
class Asked:
    """How words are wanted, beside what a recipe says of it."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    best: int = 1  # answers of a beam search
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        d = self.decode
        if d.beam > 1 and (d.temperature or self.stop):
            what = f"temperature = {d.temperature}" if d.temperature else "stop"
            raise UserError(f"{what} is for one word after the other; with beam = {d.beam}, leave it out")
        if not 1 <= self.best <= d.beam:
            raise UserError(f"best = {self.best}: must be at least 1 and at most decode.beam = {d.beam}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed = {self.seed}: must be at least 0 and below {2**63:,}")
        if not all(self.stop):
            raise UserError("stop: an empty string would stop everything before it began")

    def limit(self, family: str, length: int) -> int:
        """Most tokens of an answer to a text of so many tokens."""
        if self.decode.max_tokens:
            return self.decode.max_tokens
        return USUAL_ANSWER if family == "decoder" else 2 * length + 10


def texts_at_once(config: ModelConfig, asked: Asked, length: int) -> int:
    """How many texts of so many tokens may be answered together, bounded by what they have to remember. One that would
    need too much by itself is refused before anything is reserved."""
    limit = asked.limit(config.family, length)
    full = config.resolve()
    layers, words = full.decoder_layers or full.layers, full.target_vocabulary or full.vocabulary
    each = 8 * layers * full.kv_heads * full.head_width * (length + limit) + 12 * words  # keys, values, and scores
    needed = asked.decode.beam * each
    if needed > LARGEST_MEMORY:
        most = max(1, LARGEST_MEMORY // each)
        asked_for = f"a text of {length:,} tokens, an answer of up to {limit:,} and beam = {asked.decode.beam:,}"
        raise UserError(
            f"{asked_for} need {needed / 2**30:,.1f} GiB, at most {LARGEST_MEMORY / 2**30:.0f} are given: "
            f"accepted here: beam up to {most:,}, or shorter texts, or a smaller max_tokens"
        )
    return max(1, MEMORY // needed)


def answer(model: Writer, batch: Padded, names: Names, tokenizer: Tokenizer, asked: Asked) -> list[Prediction]:
    """A continuation or a translation of each text."""
    limit = asked.limit(_family(model), batch.tokens_BL.shape[1])
    if asked.decode.beam > 1:
        return _searched(model, batch, names, tokenizer, asked, limit)
    given: list[list[int]] = [[] for _ in batch.texts]
    sums = [0.0] * len(batch.texts)
    for chosen in one_by_one(model, batch, names, tokenizer, asked, limit):
        for row, token, log_probability in _listed(chosen):
            given[row].append(token)
            sums[row] += log_probability
    return [
        Prediction(text, output=_before(tokenizer.decode(ids), asked.stop), log_probability=total, cut=one.cut)
        for text, one, ids, total in zip(batch.texts, batch.encoded, given, sums, strict=True)
    ]


def one_by_one(
    model: Writer, batch: Padded, names: Names, tokenizer: Tokenizer, asked: Asked, limit: int
) -> Iterator[Chosen]:
    """Tokens as they are chosen: the likeliest, or by chance where there is a temperature."""
    logits_NV, cache = begin(model, batch, names)
    d = asked.decode
    choose: Choose = likeliest
    if d.temperature:
        draw = _drawn(batch.numbers, asked.seed)
        choose = sampler(draw, temperature=d.temperature, top_k=d.top_k, top_p=d.top_p)
    over = _stopped(len(batch.texts), tokenizer, asked.stop)
    return greedy(
        stepper(model), logits_NV, cache, end=names.end, limit=limit, never=names.never, choose=choose, over=over
    )


def search(model: Writer, batch: Padded, names: Names, asked: Asked, limit: int) -> Iterator[Grown]:
    """The steps of a beam search."""
    logits_NV, cache = begin(model, batch, names)
    d = asked.decode
    return beam(
        stepper(model), logits_NV, cache, width=d.beam, end=names.end, limit=limit, alpha=d.length_penalty,
        best=asked.best, never=names.never,
    )  # fmt: skip


def stepper(model: Writer) -> Step[Cache]:
    """One more token for each row, and scores for the one after it."""

    def step(tokens_N: Tensor, origin_N: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        hidden_N1D, cache = model.step(tokens_N[:, None], cache.rows(origin_N))
        return model.logits(hidden_N1D[:, 0]), cache

    return step


def begin(model: Writer, batch: Padded, names: Names) -> tuple[Tensor, Cache]:
    """Read the prompts or the sources: scores for the first new token (N, V), and the memory to go on from."""
    if isinstance(model, EncoderDecoder):
        if names.start is None:
            raise UserError("this model's config does not say with which token a translation begins")
        cache = model.start(model.encode(batch.tokens_BL, batch.keep_BL), batch.keep_BL)
        hidden_N1D, cache = model.step(torch.full((len(batch.texts), 1), names.start), cache)
        logits_NV = model.logits(hidden_N1D[:, 0])
        if names.first is not None:
            logits_NV = torch.full_like(logits_NV, -torch.inf).index_fill(1, torch.tensor([names.first]), 0.0)
        return logits_NV, cache
    hidden_BLD, cache = model.step(batch.tokens_BL, model.start(len(batch.texts)), batch.keep_BL)
    return model.logits(POOLS["last"](hidden_BLD, batch.keep_BL)), cache


def pieces(tokenizer: Tokenizer, chosen: Iterator[Chosen], stop: tuple[str, ...]) -> Iterator[str]:
    """The text of one row as it grows. Half a character, and what may be the beginning of a stop string, waits."""
    ids, shown = list[int](), 0
    for one in chosen:
        ids.append(int(one.tokens_N[0]))
        text = tokenizer.decode(ids)
        whole = _before(text, stop)
        ready = len(whole)
        if whole == text:
            ready -= max((n for s in stop for n in range(1, len(s)) if text.endswith(s[:n])), default=0)
            ready = min(ready, len(text.rstrip("\ufffd")))
        if ready > shown:
            yield whole[shown:ready]
            shown = ready
    rest = _before(tokenizer.decode(ids), stop)[shown:]
    if rest:
        yield rest


def _searched(
    model: Writer, batch: Padded, names: Names, tokenizer: Tokenizer, asked: Asked, limit: int
) -> list[Prediction]:
    trace = search(model, batch, names, asked, limit)
    d = asked.decode
    found = ranked(trace, texts=len(batch.texts), limit=limit, alpha=d.length_penalty, best=asked.best)
    answers = []
    for text, one, best in zip(batch.texts, batch.encoded, found, strict=True):
        said = [
            {"output": tokenizer.decode(h.tokens), "log_probability": h.log_probability, "score": h.score} for h in best
        ]
        first = best[0]
        answers.append(
            Prediction(
                text,
                output=tokenizer.decode(first.tokens),
                log_probability=first.log_probability,
                alternatives=said if asked.best > 1 else None,
                cut=one.cut,
            )
        )
    return answers


def _family(model: Writer) -> str:
    return "decoder" if isinstance(model, Decoder) else "encoder-decoder"


def _drawn(numbers: list[int], seed: int) -> Callable[[Tensor, int], Tensor]:
    """A number from 0 to 1 for each row and place. It depends on which of all texts the row is, not on its neighbours:
    the same seed gives the same words, however texts are batched."""

    def draw(rows_N: Tensor, place: int) -> Tensor:
        raw = [int(stream(seed, "sample", numbers[row], place).random_raw()) for row in rows_N.tolist()]
        return torch.tensor([number / 2**64 for number in raw], dtype=torch.float64)

    return draw


def _stopped(rows: int, tokenizer: Tokenizer, stop: tuple[str, ...]) -> Callable[[Chosen], Tensor]:
    """Which rows have said a string to stop at."""
    given: list[list[int]] = [[] for _ in range(rows)]

    def over(chosen: Chosen) -> Tensor:
        if not stop:
            return torch.zeros_like(chosen.rows_N, dtype=torch.bool)
        ended = []
        for row, token, _ in _listed(chosen):
            given[row].append(token)
            text = tokenizer.decode(given[row])
            ended.append(any(one in text for one in stop))
        return torch.tensor(ended)

    return over


def _before(text: str, stop: tuple[str, ...]) -> str:
    """A text up to the first of these strings."""
    places = [place for one in stop if (place := text.find(one)) >= 0]
    return text[: min(places)] if places else text


def _listed(chosen: Chosen) -> Iterator[tuple[int, int, float]]:
    columns = (chosen.rows_N, chosen.tokens_N, chosen.log_probabilities_N)
    return zip(*(column.tolist() for column in columns), strict=True)
