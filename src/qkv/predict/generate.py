"""Text generation: where a decoder or an encoder-decoder meets `decode`.

B texts · L length · N rows (texts, or hypotheses of a beam) · V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from qkv.config.recipe import DecodeConfig, ModelConfig
from qkv.exchange.special_tokens import SpecialTokens
from qkv.model.cache import Cache
from qkv.model.heads import POOLS
from qkv.model.transformer import Decoder, EncoderDecoder
from qkv.predict.decode import BeamStep, Choose, NextTokens, Step, beam, greedy, most_probable, ranked, sample
from qkv.predict.prediction import Prediction, TextBatch
from qkv.schema import UserError
from qkv.streams import stream
from qkv.tokenizer.tokenizer import Tokenizer

DEFAULT_LENGTH = 64  # tokens of a continuation
CACHE_BYTES = 2**28  # of the texts that are decoded together
LARGEST_CACHE = 2**31  # bytes, of one text
Generator = Decoder | EncoderDecoder


@dataclass(frozen=True)
class GenerationOptions:
    """[decode] of a recipe, and what only a request can say."""

    decode: DecodeConfig = field(default_factory=DecodeConfig)
    best: int = 1  # outputs of a beam search
    seed: int = 0
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        d = self.decode
        if d.beam > 1 and (d.temperature or self.stop):
            what = f"temperature = {d.temperature}" if d.temperature else "stop"
            raise UserError(f"{what}: not used by a beam search; remove it, or set beam = 1 (now {d.beam})")
        if not 1 <= self.best <= d.beam:
            raise UserError(f"best = {self.best}: must be at least 1 and at most the beam width, beam = {d.beam}")
        if not 0 <= self.seed < 2**63:
            raise UserError(f"seed = {self.seed}: must be at least 0 and below {2**63:,}")
        if not all(self.stop):
            raise UserError("stop: must not be an empty string")

    def limit(self, family: str, length: int) -> int:
        """Maximum length of the output for an input of so many tokens."""
        if self.decode.max_tokens:
            return self.decode.max_tokens
        return DEFAULT_LENGTH if family == "decoder" else 2 * length + 10


def texts_at_once(config: ModelConfig, options: GenerationOptions, length: int) -> int:
    """How many texts of so many tokens may be decoded together, bounded by the memory of their caches. One that needs
    too much by itself is refused before anything is allocated."""
    limit = options.limit(config.family, length)
    full = config.resolve()
    layers, vocabulary = full.decoder_layers or full.layers, full.target_vocabulary or full.vocabulary
    each = 8 * layers * full.kv_heads * full.head_width * (length + limit) + 12 * vocabulary  # keys, values, logits
    needed = options.decode.beam * each
    if needed > LARGEST_CACHE:
        most = max(1, LARGEST_CACHE // each)
        asked_for = f"a text of {length:,} tokens, an output of up to {limit:,} and beam = {options.decode.beam:,}"
        raise UserError(
            f"{asked_for} need {needed / 2**30:,.1f} GiB, and the limit is {LARGEST_CACHE / 2**30:.0f} GiB; "
            f"accepted: beam up to {most:,}, or shorter texts, or a smaller max_tokens"
        )
    return max(1, CACHE_BYTES // needed)


def output_limits(model: Generator, batch: TextBatch, options: GenerationOptions) -> list[int]:
    """Maximum length of each output of a batch. It depends on the text alone, not on those beside it."""
    family = "decoder" if isinstance(model, Decoder) else "encoder-decoder"
    return [options.limit(family, len(one.ids)) for one in batch.encoded]


def generate(
    model: Generator, batch: TextBatch, special: SpecialTokens, tokenizer: Tokenizer, options: GenerationOptions
) -> list[Prediction]:
    """A continuation or a translation of each text."""
    if options.decode.beam > 1:
        return _beam_search(model, batch, special, tokenizer, options)
    ids: list[list[int]] = [[] for _ in batch.texts]
    totals = [0.0] * len(batch.texts)
    for chosen in stream_tokens(model, batch, special, tokenizer, options):
        for row, token, log_probability in _rows(chosen):
            ids[row].append(token)
            totals[row] += log_probability
    outputs = [_before(tokenizer.decode(own), options.stop) for own in ids]
    return [
        Prediction(text, output=output, log_probability=total, truncated=one.truncated)
        for text, one, output, total in zip(batch.texts, batch.encoded, outputs, totals, strict=True)
    ]


def stream_tokens(
    model: Generator, batch: TextBatch, special: SpecialTokens, tokenizer: Tokenizer, options: GenerationOptions
) -> Iterator[NextTokens]:
    """Tokens as they are generated: greedy, or sampled where there is a temperature."""
    logits_NV, cache = begin(model, batch, special)
    d, limit = options.decode, output_limits(model, batch, options)
    choose: Choose = most_probable
    if d.temperature:
        draw = _uniform(batch.numbers, options.seed)
        choose = sample(draw, temperature=d.temperature, top_k=d.top_k, top_p=d.top_p)
    stop = _stops_at(options.stop, len(batch.texts), tokenizer)
    return greedy(
        stepper(model), logits_NV, cache, end=special.end, limit=limit, banned=special.banned, choose=choose, stop=stop
    )


def search(
    model: Generator, batch: TextBatch, special: SpecialTokens, options: GenerationOptions
) -> Iterator[BeamStep]:
    """The steps of a beam search."""
    logits_NV, cache = begin(model, batch, special)
    d, limit = options.decode, output_limits(model, batch, options)
    return beam(
        stepper(model), logits_NV, cache, width=d.beam, end=special.end, limit=limit, alpha=d.length_penalty,
        best=options.best, banned=special.banned,
    )  # fmt: skip


def stepper(model: Generator) -> Step[Cache]:
    """The step function of a model: one more token for each row, and the logits of the one after it."""

    def step(tokens_N: Tensor, origin_N: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        hidden_N1D, cache = model.step(tokens_N[:, None], cache.rows(origin_N))
        return model.logits(hidden_N1D[:, 0]), cache

    return step


def begin(model: Generator, batch: TextBatch, special: SpecialTokens) -> tuple[Tensor, Cache]:
    """Read the prompts or the sources: logits of the first output token (N, V), and the cache."""
    if isinstance(model, EncoderDecoder):
        if special.start is None:
            raise UserError("config.json of this model has no decoder_start_token_id, which generation needs")
        cache = model.start(model.encode(batch.tokens_BL, batch.keep_BL), batch.keep_BL)
        hidden_N1D, cache = model.step(torch.full((len(batch.texts), 1), special.start), cache)
        logits_NV = model.logits(hidden_N1D[:, 0])
        if special.forced_first is not None:
            logits_NV = torch.full_like(logits_NV, -torch.inf).index_fill(1, torch.tensor([special.forced_first]), 0.0)
        return logits_NV, cache
    hidden_BLD, cache = model.step(batch.tokens_BL, model.start(len(batch.texts)), batch.keep_BL)
    return model.logits(POOLS["last"](hidden_BLD, batch.keep_BL)), cache


def pieces(tokenizer: Tokenizer, chosen: Iterator[NextTokens], stop: tuple[str, ...]) -> Iterator[str]:
    """The text of one row as it is generated. Incomplete characters and possible stop strings are held back."""
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


def _beam_search(
    model: Generator, batch: TextBatch, special: SpecialTokens, tokenizer: Tokenizer, options: GenerationOptions
) -> list[Prediction]:
    trace, limit = search(model, batch, special, options), output_limits(model, batch, options)
    alpha, count = options.decode.length_penalty, len(batch.texts)
    answers = []
    found = ranked(trace, texts=count, limit=limit, alpha=alpha, best=options.best)
    for text, one, best in zip(batch.texts, batch.encoded, found, strict=True):
        outputs: list[dict[str, Any]] = [
            {"output": tokenizer.decode(h.tokens), "log_probability": h.log_probability, "score": h.score} for h in best
        ]
        answers.append(
            Prediction(
                text,
                output=outputs[0]["output"],
                log_probability=best[0].log_probability,
                alternatives=outputs if options.best > 1 else None,
                truncated=one.truncated,
            )
        )
    return answers


def _uniform(numbers: list[int], seed: int) -> Callable[[Tensor, int], Tensor]:
    """A uniform number in [0, 1) for each row and position. It depends on which of all texts the row is, not on its
    batch: the same seed gives the same output, however texts are batched."""

    def draw(rows_N: Tensor, position: int) -> Tensor:
        raw = [int(stream(seed, "sample", numbers[row], position).random_raw()) for row in rows_N.tolist()]
        return torch.tensor([number / 2**64 for number in raw], dtype=torch.float64)

    return draw


def _stops_at(stop: tuple[str, ...], rows: int, tokenizer: Tokenizer) -> Callable[[NextTokens], Tensor]:
    """Which rows contain a stop string."""
    given: list[list[int]] = [[] for _ in range(rows)]

    def stops(chosen: NextTokens) -> Tensor:
        if not stop:
            return torch.zeros_like(chosen.rows_N, dtype=torch.bool)
        ended = []
        for row, token, _ in _rows(chosen):
            given[row].append(token)
            text = tokenizer.decode(given[row])
            ended.append(any(one in text for one in stop))
        return torch.tensor(ended)

    return stops


def _before(text: str, stop: tuple[str, ...]) -> str:
    """A text up to the first of these strings."""
    places = [place for one in stop if (place := text.find(one)) >= 0]
    return text[: min(places)] if places else text


def _rows(chosen: NextTokens) -> Iterator[tuple[int, int, float]]:
    columns = (chosen.rows_N, chosen.tokens_N, chosen.log_probabilities_N)
    return zip(*(column.tolist() for column in columns), strict=True)
