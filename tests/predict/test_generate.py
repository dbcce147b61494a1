"""Text generation: with a cache as without, alone as in a batch, by the seed, up to a stop string, within memory."""

from __future__ import annotations

import itertools
from typing import Any, TypeVar

import pytest
import torch
from torch import Tensor

from qkv.config.recipe import DecodeConfig, ModelConfig
from qkv.exchange.special_tokens import SpecialTokens
from qkv.model.build import build_model
from qkv.model.transformer import Decoder, EncoderDecoder
from qkv.predict.decode import length_penalty, ranked
from qkv.predict.generate import (
    LARGEST_CACHE,
    GenerationOptions,
    output_limits,
    pieces,
    search,
    stream_tokens,
    texts_at_once,
)
from qkv.predict.prediction import InputOptions, TextBatch
from qkv.predict.predictor import Predictor
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Encoded, Tokenizer
from qkv.tokenizer.train import train_tokenizer

POSITIONS = ("none", "sinusoidal", "learned", "relative", "t5", "alibi", "rotary")
LETTERS = "abcdefghij klmnop\n"
SPECIAL = SpecialTokens(start=0, end=(3,), banned=(0,))
LIMIT = 12  # tokens of an output


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer([LETTERS], kind="characters", vocab_size=64, lowercase=False, around="begin")


def decoder(size: int, positions: str = "rotary", seed: int = 5) -> Decoder:
    config = ModelConfig.read({
        "family": "decoder", "vocabulary": size, "width": 24, "heads": 2, "layers": 2, "positions": positions,
        "norm_place": "pre", "context": 64,
    })  # fmt: skip
    model = build_model(config, seed=seed)
    assert isinstance(model, Decoder)
    return _louder(model)


def translator(size: int, positions: str = "sinusoidal") -> EncoderDecoder:
    config = ModelConfig.read({
        "family": "encoder-decoder", "vocabulary": size, "width": 24, "heads": 2, "layers": 2, "positions": positions,
        "context": 64,
    })  # fmt: skip
    model = build_model(config, seed=5)
    assert isinstance(model, EncoderDecoder)
    return _louder(model)


M = TypeVar("M", bound=torch.nn.Module)


def _louder(model: M) -> M:
    """Logits far enough apart that rounding decides nothing."""
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0 if weight.ndim > 1 else 1.0)
    return model.eval()


def batch_of(texts: list[list[int]]) -> TextBatch:
    encoded = [Encoded(ids, [0] * len(ids), truncated=False) for ids in texts]
    return TextBatch.of(list(range(len(texts))), [""] * len(texts), encoded)


def predictor_of(tokenizer: Tokenizer, **options: Any) -> Predictor:
    config = ModelConfig(family="decoder", vocabulary=tokenizer.size, width=24, heads=2, layers=2, head="tokens")
    return Predictor(
        decoder(tokenizer.size), config, tokenizer, special_tokens=SPECIAL, input_options=InputOptions(**options)
    )


def greedy_tokens(model: Decoder | EncoderDecoder, texts: list[list[int]], tokenizer: Tokenizer) -> list[list[int]]:
    given: list[list[int]] = [[] for _ in texts]
    options = GenerationOptions(DecodeConfig(max_tokens=LIMIT))
    with torch.no_grad():
        for chosen in stream_tokens(model, batch_of(texts), SPECIAL, tokenizer, options):
            for row, token in zip(chosen.rows_N.tolist(), chosen.tokens_N.tolist(), strict=True):
                given[row].append(token)
    return given


def logits_after(model: Decoder | EncoderDecoder, text: list[int], given: list[int]) -> Tensor:
    """Logits of the next token, all computed anew."""
    with torch.no_grad():
        if isinstance(model, Decoder):
            hidden = model(torch.tensor([[*text, *given]]))
        else:
            hidden = model(torch.tensor([text]), torch.tensor([[SPECIAL.start or 0, *given]]))
        return model.logits(hidden[0, -1]).index_fill(0, torch.tensor(SPECIAL.banned), -torch.inf)


def without_cache(model: Decoder | EncoderDecoder, text: list[int]) -> list[int]:
    given: list[int] = []
    while len(given) < LIMIT and given[-1:] != [3]:
        given.append(int(logits_after(model, text, given).argmax()))
    return given


TEXTS = [[2, 5, 6, 7, 8, 9], [2, 11], [2, 14, 8], [2]]  # mixed lengths, so that all but one are padded


@pytest.mark.parametrize("positions", POSITIONS)
def test_with_a_cache_as_without_token_for_token(tokenizer: Tokenizer, positions: str) -> None:
    for model in (decoder(tokenizer.size, positions), translator(tokenizer.size, positions)):
        assert greedy_tokens(model, TEXTS, tokenizer) == [without_cache(model, text) for text in TEXTS]


@pytest.mark.parametrize("width", [1, 3])
def test_a_beam_with_a_cache_as_without(tokenizer: Tokenizer, width: int) -> None:
    """The same search, each hypothesis computed anew by whole passes; of texts of mixed length, in one batch."""
    options = GenerationOptions(DecodeConfig(beam=width, max_tokens=8))
    for model in (decoder(tokenizer.size), translator(tokenizer.size)):
        with torch.no_grad():
            trace = search(model, batch_of(TEXTS), SPECIAL, options)
            found = ranked(trace, texts=len(TEXTS), limit=8, alpha=0.6)
        for text, (best,) in zip(TEXTS, found, strict=True):
            live: list[tuple[float, list[int]]] = [(0.0, [])]
            complete: list[tuple[float, list[int]]] = []
            for length in range(1, 9):
                grown = [
                    (total + gain, [*given, token])
                    for total, given in live
                    for token, gain in enumerate(logits_after(model, text, given).log_softmax(-1).tolist())
                ]
                kept = sorted(grown, reverse=True)[: width - len(complete)]
                ended = [one for one in kept if one[1][-1] == 3 or length == 8]
                complete += [(total / length_penalty(length, 0.6), given) for total, given in ended]
                live = [one for one in kept if one[1][-1] != 3]
            assert list(best.tokens) == max(complete)[1]


def test_the_same_seed_gives_the_same_output_whatever_the_batch(tokenizer: Tokenizer) -> None:
    predictor = predictor_of(tokenizer, literal=True)

    def outputs(texts: list[str], **options: Any) -> list[str | None]:
        return [one.output for one in predictor.predict(texts, max_tokens=20, temperature=1.5, **options)]

    three = outputs(["abc", "d", "abc"], seed=4)
    assert outputs(["abc", "d", "abc"], seed=4) == three
    assert outputs(["abc"], seed=4) == three[:1]
    assert three[0] != three[2], "the same text twice is two draws"
    assert outputs(["abc", "d", "abc"], seed=5) != three
    assert "".join(predictor.stream("abc", max_tokens=20, temperature=1.5, seed=4)) == three[0]


@pytest.mark.parametrize("beam", [1, 3])
def test_the_length_limit_of_a_text_does_not_depend_on_the_batch(tokenizer: Tokenizer, beam: int) -> None:
    special = SpecialTokens(start=0, banned=(0,))  # no end token: every output is as long as it may be
    model, options, texts = translator(tokenizer.size), GenerationOptions(DecodeConfig(beam=beam)), [TEXTS[1], TEXTS[0]]

    @torch.no_grad()
    def lengths(batch: TextBatch) -> list[int]:
        if beam == 1:
            steps = stream_tokens(model, batch, special, tokenizer, options)
            rows = [row for chosen in steps for row in chosen.rows_N.tolist()]
            return [rows.count(row) for row in range(len(batch.texts))]
        trace, limits = search(model, batch, special, options), output_limits(model, batch, options)
        return [len(best.tokens) for (best,) in ranked(trace, texts=len(batch.texts), limit=limits, alpha=0.6)]

    assert lengths(batch_of(texts[:1])) == [2 * 2 + 10]
    assert lengths(batch_of(texts)) == [2 * 2 + 10, 2 * 6 + 10]


def test_streaming_leaves_gradients_on_for_its_caller(tokenizer: Tokenizer) -> None:
    for _ in predictor_of(tokenizer, literal=True).stream("ab", max_tokens=3):
        assert torch.is_grad_enabled()


def test_a_continuation_ends_before_a_stop_string(tokenizer: Tokenizer) -> None:
    predictor = predictor_of(tokenizer, literal=True)
    (whole,) = (one.output or "" for one in predictor.predict(["ab"], max_tokens=30, temperature=1.0))
    assert len(whole) > 6
    stop = whole[3:5]
    wanted = whole[: whole.index(stop)]
    settings: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "stop": ["never generated", stop]}
    assert predictor.predict(["ab", "c"], **settings)[0].output == wanted
    assert "".join(predictor.stream("ab", **settings)) == wanted


def test_what_may_begin_a_stop_string_waits(tokenizer: Tokenizer) -> None:
    ids = tokenizer.ids(["abcabd"])[0]

    def chosen() -> Any:
        from qkv.predict.decode import NextTokens

        return (NextTokens(torch.zeros(1), torch.tensor([token]), torch.zeros(1)) for token in ids)

    assert list(pieces(tokenizer, chosen(), ("abd",))) == ["abc"]
    assert list(pieces(tokenizer, chosen(), ("abz",))) == ["abc", "abd"]
    assert list(pieces(tokenizer, chosen(), ())) == list("abcabd")


@pytest.mark.parametrize(("wanted", "found"), [
    ({"beam": 0}, "beam = 0"),
    ({"beam": 1_000_000}, "beam = 1000000"),
    ({"beam": 2, "temperature": 0.5}, r"temperature = 0\.5: not used by a beam search; remove it, or .* \(now 2\)"),
    ({"beam": 2, "stop": ["x"]}, r"stop: not used by a beam search; remove it, or set beam = 1 \(now 2\)"),
    ({"beam": 2, "best": 3}, "best = 3: must be at least 1 and at most the beam width, beam = 2"),
    ({"temperature": -1.0}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"seed": -1}, "seed = -1: must be at least 0"),
    ({"stop": [""]}, "stop: must not be an empty string"),
    ({"beams": 3}, "beams: unknown option; did you mean beam"),
    ({"max_tokens": -1}, "max_tokens"),
])  # fmt: skip
def test_options_that_are_refused(tokenizer: Tokenizer, wanted: dict[str, Any], found: str) -> None:
    with pytest.raises(UserError, match=found):
        predictor_of(tokenizer).predict(["ab"], **wanted)


def test_memory_is_bounded_before_anything_is_allocated() -> None:
    config = ModelConfig.read({"preset": "none", "family": "encoder-decoder", "vocabulary": 8000, "layers": 6})
    many, few = (texts_at_once(config, GenerationOptions(DecodeConfig(beam=5)), length) for length in (10, 1000))
    assert many > few >= 1
    with pytest.raises(
        UserError,
        match=r"a text of 100,000 tokens, .* and beam = 5 need .* GiB, and the limit is 2 GiB; accepted: beam",
    ):
        texts_at_once(config, GenerationOptions(DecodeConfig(beam=5)), 100_000)
    lengths, beams = (10, 100, 1000), (1, 5, 50)
    for length, beam in itertools.product(lengths, beams):
        options = GenerationOptions(DecodeConfig(beam=beam))
        held = texts_at_once(config, options, length) * beam * (length + options.limit("encoder-decoder", length))
        assert held * 2 * 4 * 6 * 256 <= LARGEST_CACHE
