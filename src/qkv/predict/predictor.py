"""Text in, Prediction out: where tokenizer, model and decoding meet. What is predicted depends on the model's head.

B batch · L length · N rows · V vocabulary
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.config.recipe import TEXT_HEADS, DecodeConfig, ModelConfig, Recipe
from qkv.data.prepare import TARGET
from qkv.data.truncation import spans_of
from qkv.exchange.folder import Folder, open_folder
from qkv.exchange.hf import read_model
from qkv.exchange.special_tokens import SpecialTokens, embedding_pool, label_names, max_positions, special_tokens
from qkv.model.heads import POOLS
from qkv.model.transformer import Decoder, Encoder, EncoderDecoder, Model, hidden_states, text_answers
from qkv.predict.generate import DEFAULT_LENGTH, GenerationOptions, generate, pieces, stream_tokens, texts_at_once
from qkv.predict.prediction import UNBOUNDED, InputOptions, Prediction, Text, TextBatch, TextError, batches
from qkv.run.folder import Run
from qkv.schema import UserError, listed, nearest
from qkv.tokenizer.tokenizer import Encoded, Tokenizer

NEXT_SENTENCE = ("next", "not next")  # the two outputs of next-sentence prediction, in BERT's order
OnProgress = Callable[[int], None]  # is told how many more texts are done
T = TypeVar("T")


def _no_progress(count: int) -> None:
    pass


class Predictor:
    """A model with its tokenizer: `predict(texts)`, `embed(texts)`, `stream(text)`."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        tokenizer: Tokenizer | None,
        *,
        labels: tuple[str, ...] = (),
        special_tokens: SpecialTokens | None = None,
        input_options: InputOptions | None = None,
        target_tokenizer: Tokenizer | None = None,
        max_positions: int | None = None,
        embedding_pool: str = "mean",
    ) -> None:
        self.model, self.config, self.labels = model.eval(), config.resolve(), labels
        self.special_tokens = special_tokens or SpecialTokens()
        self.input_options = input_options or InputOptions()
        self._tokenizer, self._target_tokenizer, self._max_positions = tokenizer, target_tokenizer, max_positions
        self.embedding_pool = embedding_pool

    def __repr__(self) -> str:
        c = self.config
        return f"<{c.family}, {c.layers} layers, {c.width} wide, head {c.head}: .predict(texts), .embed(texts)>"

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise UserError(
                "this model has no tokenizer: its folder has no tokenizer.json, which text needs; "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes one"
            )
        if self._tokenizer.size > self.config.vocabulary:
            sizes = f"{self._tokenizer.size} tokens, the model's vocabulary {self.config.vocabulary}"
            raise UserError(f"tokenizer and model do not match: tokenizer.json has {sizes}")
        return self._tokenizer

    @property
    def target_tokenizer(self) -> Tokenizer:
        """The tokenizer of its output."""
        return self._target_tokenizer or self.tokenizer

    @property
    def generates(self) -> bool:
        """Whether its output is text: a continuation or a translation."""
        return self.config.head == "tokens" and not isinstance(self.model, Encoder)

    def predict(
        self,
        texts: Sequence[Text],
        *,
        top: int = 5,
        best: int = 1,
        seed: int = 0,
        stop: Sequence[str] = (),
        progress: OnProgress = _no_progress,
        **decode: Any,
    ) -> list[Prediction]:
        """A prediction for each text, in order: a label, a number, tokens for each mask, a continuation or a
        translation.

        `top` tokens are returned for each mask. For generated text: `best` is the number of outputs of a beam search,
        `seed` that of sampling, `stop` strings end an output, and the other keywords are the keys of [decode] in a
        recipe, such as `beam=5`. `progress` is called with the number of texts that were just done.
        """
        texts = _checked_texts(texts)
        _check_options(decode)
        if not 1 <= top <= self.config.vocabulary:
            raise UserError(f"top = {top}: must be at least 1 and at most {self.config.vocabulary:,}")
        head, model = self.config.head, self.model
        if not self.generates:
            _refuse_generation(best=None if best == 1 else best, stop=list(stop) or None, **decode)
        if head in TEXT_HEADS:
            return self._classify(texts, progress)
        if head == "none":
            raise UserError(
                "this model has no head to predict with, only embeddings: from Python, qkv.load(folder).embed(texts)"
            )
        pairs = [number for number, text in enumerate(texts) if not isinstance(text, str)]
        if pairs and head != "pretraining":
            raise TextError(pairs[0] + 1, " is a pair; this model takes single texts")
        if isinstance(model, Encoder):
            return self._in_batches(texts, lambda batch: self._pretraining(model, batch, top), progress)
        options = self.generation_options(best, seed, stop, **decode)
        return self._generate(model, [str(text) for text in texts], options, progress)

    def generation_options(
        self, best: int = 1, seed: int = 0, stop: Sequence[str] = (), **decode: Any
    ) -> GenerationOptions:
        """The recipe's [decode], with what is given here in its place."""
        _check_options(decode)
        chosen = {name: value for name, value in decode.items() if value is not None}
        settings = self.input_options.decode.replace(**chosen)
        _refuse_unread(settings, chosen)
        if settings.max_tokens == 0 and self.config.positions == "learned":
            settings = settings.replace(max_tokens=max(1, min(DEFAULT_LENGTH, self.config.context // 2)))
        return GenerationOptions(settings, best, seed, tuple(stop))

    @torch.no_grad()
    def stream(self, text: str, *, seed: int = 0, stop: Sequence[str] = (), **decode: Any) -> Iterator[str]:
        """A continuation or translation of one text, in pieces, as they are generated."""
        model, options = self.model, self.generation_options(1, seed, stop, **decode)
        if not self.generates or isinstance(model, Encoder):
            raise UserError("only a continuation or a translation can be streamed; use predict for this model")
        if options.decode.beam > 1:
            raise UserError(f"beam = {options.decode.beam}: a beam search cannot be streamed; accepted: 1")
        batch = self.prompt(text, options)
        if isinstance(model, Decoder) or text.strip():
            tokens = stream_tokens(model, batch, self.special_tokens, self.target_tokenizer, options)
            yield from pieces(self.target_tokenizer, tokens, options.stop)

    def prompt(self, text: str, options: GenerationOptions) -> TextBatch:
        """One text to generate from. One that needs too much memory is refused."""
        encoded = self.prompts([text], options)
        texts_at_once(self.config, options, len(encoded[0].ids))
        return TextBatch.of([0], [text], encoded)

    def prompts(self, texts: Sequence[str], options: GenerationOptions) -> list[Encoded]:
        """What is read before the first output token. A prompt that is too long keeps its end."""
        decoder = isinstance(self.model, Decoder)
        room = options.limit(self.config.family, 0) if decoder else 0
        encoded = self.tokenizer.encode(
            texts, self.max_length(room), cut="left" if decoder else "right", literal=self.input_options.literal
        )
        for number, one in enumerate(encoded):
            if not one.ids and not self.special_tokens.end:
                raise TextError(number + 1, " is empty; this model needs a prompt of at least one token")
            if not one.ids:
                encoded[number] = Encoded([self.special_tokens.end[0]], [0], truncated=False)  # after another text
        return encoded

    def _generate(
        self, model: Decoder | EncoderDecoder, texts: list[str], options: GenerationOptions, progress: OnProgress
    ) -> list[Prediction]:
        """A continuation or translation of each text; of an empty source an empty one."""
        encoded = self.prompts(texts, options)
        for one in encoded:
            texts_at_once(self.config, options, len(one.ids))  # refuses what needs too much memory
        answers = self._run(
            texts,
            encoded,
            lambda batch: generate(model, batch, self.special_tokens, self.target_tokenizer, options),
            progress,
            lambda length: texts_at_once(self.config, options, length),
        )
        if isinstance(model, Decoder):
            return answers
        empty = Prediction("", output="", log_probability=0.0)
        return [one if text.strip() else replace(empty, text=text) for text, one in zip(texts, answers, strict=True)]

    def embed(self, texts: Sequence[Text], *, pool: str | None = None) -> NDArray[np.float32]:
        """A vector for each text (N, D): the mean of its tokens' last hidden states, the first ([CLS]) or the last.
        Default: the pooling that a folder of sentence-transformers declares, else the mean. Not normalised."""
        texts, by = _checked_texts(texts), pool or self.embedding_pool
        if by not in POOLS:
            whose = "" if pool else " (declared by the model's folder)"
            raise UserError(f"pool = {by!r}{whose}: must be one of {listed(POOLS)}")
        truncated: list[Text] = []

        def pooled(batch: TextBatch) -> list[NDArray[np.float32]]:
            truncated.extend(text for text, one in zip(batch.texts, batch.encoded, strict=True) if one.truncated)
            return list(POOLS[by](self._hidden(batch), batch.keep_BL).numpy())

        vectors = self._in_batches(texts, pooled)
        if truncated:
            found = f"{len(truncated)} of {len(texts)} texts were truncated, first {_start(truncated[0])!r}"
            warnings.warn(found, stacklevel=2)
        return np.stack(vectors) if vectors else np.zeros((0, self.config.width), np.float32)

    def _in_batches(
        self, texts: Sequence[Text], answer: Callable[[TextBatch], list[T]], progress: OnProgress = _no_progress
    ) -> list[T]:
        """Answers in the order of the texts."""
        literal = self.input_options.literal and self.config.head in ("none", *TEXT_HEADS)
        encoded = self.tokenizer.encode(texts, self.max_length(), literal=literal)
        for number, one in enumerate(encoded, 1):
            if not one.ids:
                raise TextError(number, " is empty; this model needs at least one token")
        return self._run(texts, encoded, answer, progress)

    @torch.no_grad()
    def _run(
        self,
        texts: Sequence[Text],
        encoded: list[Encoded],
        answer: Callable[[TextBatch], list[T]],
        progress: OnProgress = _no_progress,
        most: Callable[[int], int] = lambda length: UNBOUNDED,
    ) -> list[T]:
        """Answers in the order given, computed shortest first in batches of bounded size: at most so many texts of a
        length as `most` says."""
        answers: dict[int, T] = {}
        for numbers in batches([len(one.ids) for one in encoded], most):
            answers.update(zip(numbers, answer(TextBatch.of(numbers, texts, encoded)), strict=True))
            progress(len(numbers))
        return [answers[n] for n in range(len(encoded))]

    def max_length(self, room: int = 0) -> int | None:
        """Maximum length of an input in tokens: by the model's positions, and by what it was trained on. With `room`
        left for the output."""
        limits = [self.input_options.length] if self.input_options.length is not None else []
        if self.config.positions == "learned":
            positions = self._max_positions or self.config.context
            if positions - room < 1:
                raise UserError(f"max_tokens = {room}: must be below this model's {positions} positions")
            limits.append(positions - room)
        return min(limits, default=None)

    def _spans(self, texts: Sequence[Text]) -> tuple[list[int], list[Encoded]]:
        """The windows, or head and tail, of all texts: which text each belongs to, and its tokens."""
        limit, template = self.max_length(), self.tokenizer.template(pair=False)
        truncation = self.input_options.truncation
        assert limit is not None, "a truncated text has a maximum length"
        room = max(1, limit - len(template))
        owners, made = list[int](), list[Encoded]()
        for number, ids in enumerate(self.tokenizer.ids([str(text) for text in texts])):
            for spans in spans_of(len(ids), room, truncation):
                piece = template.apply([one for a, b in spans for one in ids[a:b]])
                truncated = truncation == "head+tail" and len(ids) > room
                owners.append(number)
                made.append(Encoded(piece, [0] * len(piece), truncated))
        return owners, made

    def _hidden(self, batch: TextBatch) -> Tensor:
        if isinstance(self.model, EncoderDecoder):
            return self.model.encode(batch.tokens_BL, batch.keep_BL)
        return hidden_states(self.model, batch.tokens_BL, batch.keep_BL, batch.segments_BL)

    def _classify(self, texts: Sequence[Text], progress: OnProgress) -> list[Prediction]:
        """A label with probabilities, or a number. The logits of a text that is read in windows are averaged."""
        for number, text in enumerate(texts, 1):
            if self.input_options.literal and isinstance(text, tuple) != self.input_options.pairs:
                wanted = "a pair of texts" if self.input_options.pairs else "a single text"
                raise TextError(number, f": this model was trained on {wanted} at a time")
        if self.input_options.truncation != "head":
            owners, encoded = self._spans(texts)
        else:
            encoded = self.tokenizer.encode(texts, self.max_length(), literal=self.input_options.literal)
            owners = list(range(len(texts)))
        left = Counter(owners)  # windows of each text that are still to be read

        def logits_of(batch: TextBatch) -> list[Tensor]:
            found, read = self._logits(batch), [owners[number] for number in batch.numbers]
            left.subtract(read)
            progress(sum(left[owner] == 0 for owner in set(read)))
            return found

        logits = self._run([texts[owner] for owner in owners], encoded, logits_of)
        owned: list[list[int]] = [[] for _ in texts]
        for number, owner in enumerate(owners):
            owned[owner].append(number)
        answers = []
        for text, own in zip(texts, owned, strict=True):
            logits_C = torch.stack([logits[n] for n in own]).mean(0)
            truncated = any(encoded[n].truncated for n in own)
            if self.config.head == "regression":
                answers.append(Prediction(text, value=logits_C[0].item(), truncated=truncated))
            else:
                answers.append(_labelled(text, self.labels, logits_C, truncated))
        return answers

    def _logits(self, batch: TextBatch) -> list[Tensor]:
        assert not isinstance(self.model, EncoderDecoder), "an encoder-decoder has no text head"
        return list(text_answers(self.model, batch.tokens_BL, batch.keep_BL, batch.segments_BL))

    def _pretraining(self, model: Encoder, batch: TextBatch, top: int) -> list[Prediction]:
        """Tokens for the masks of single texts; for pairs, whether the second text is the next sentence."""
        pairs = [row for row, text in enumerate(batch.texts) if not isinstance(text, str)]
        singles = [row for row, text in enumerate(batch.texts) if isinstance(text, str)]
        answers: dict[int, Prediction] = {}
        if pairs:
            some = batch.some(pairs)
            for row, logits_2, one in zip(pairs, self._logits(some), some.encoded, strict=True):
                answers[row] = _labelled(batch.texts[row], NEXT_SENTENCE, logits_2, one.truncated)
        if singles:
            answers.update(zip(singles, self._fill(model, batch.some(singles), top), strict=True))
        return [answers[row] for row in range(len(batch.texts))]

    def _fill(self, model: Encoder, batch: TextBatch, top: int) -> list[Prediction]:
        """The most probable tokens for each mask; the output is the text with the first of each filled in."""
        mask = self.tokenizer.mask
        mask_id = self.tokenizer.id_of(mask) if mask else None
        masked_BL = torch.eq(batch.tokens_BL, -1 if mask_id is None else mask_id)
        without = (~masked_BL.any(1)).nonzero()
        if len(without):
            row = int(without[0])
            where = " in the part of it that fits" if batch.encoded[row].truncated else ""
            found = f", {_start(batch.texts[row])!r}, has no {mask or 'mask token'}{where}"
            raise TextError(batch.numbers[row] + 1, f"{found}; write it in place of the missing token")
        best = model.logits(self._hidden(batch)[masked_BL]).softmax(-1).topk(top)
        ranked = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        answers = []
        for text, one, masks in zip(batch.texts, batch.encoded, masked_BL.sum(1).tolist(), strict=True):
            between, output, total, alternatives = str(text).split(str(mask)), "", 0.0, list[dict[str, Any]]()
            for number in range(masks):
                probabilities, ids = next(ranked)
                tokens = [self.tokenizer.token(i) for i in ids]
                output, total = output + between[number] + tokens[0], total + math.log(probabilities[0])
                ranking = zip(tokens, probabilities, strict=True)
                alternatives += [{"mask": number + 1, "token": token, "probability": p} for token, p in ranking]
            output += str(mask).join(between[masks:])
            answers.append(Prediction(text, None, None, None, output, total, alternatives, one.truncated))
        return answers


@dataclass(frozen=True)
class OpenedModel:
    """A model read from a folder, before it is used."""

    path: Path
    folder: Folder
    model: Model
    config: ModelConfig
    tokenizer: Tokenizer | None
    run: Run

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of a run, or of an export of one."""
        return self.run.recipe


def open_model(path: Path) -> OpenedModel:
    """Read a run or a Hugging Face folder. Every file of a run is verified first."""
    run = Run(path)
    if run.begun:
        run.check()
        if not run.has_model():
            raise UserError(f"{path}: this run has no model yet; the first is written at its first validation")
    folder = open_folder(path)
    model, config = read_model(folder)
    tokenizer = Tokenizer.from_file(folder.tokenizer) if folder.tokenizer else None
    return OpenedModel(path, folder, model, config, tokenizer, run)


def load_predictor(path: Path) -> Predictor:
    """A model and its tokenizer from a run or a Hugging Face folder."""
    opened = open_model(path)
    options, recipe = InputOptions(), opened.recipe
    if recipe is not None:
        data = recipe.data
        options = InputOptions(
            data.length, data.truncation, data.pair != "none", True, opened.run.temperature(), recipe.decode
        )
    return Predictor(
        opened.model,
        opened.config,
        opened.tokenizer,
        labels=label_names({**opened.folder.config, **opened.folder.generation}, opened.config),
        special_tokens=special_tokens(opened.folder, opened.config),
        input_options=options,
        target_tokenizer=Tokenizer.from_file(path / TARGET) if (path / TARGET).is_file() else None,
        max_positions=max_positions(opened.folder, opened.config),
        embedding_pool=embedding_pool(opened.folder),
    )


def _labelled(text: Text, labels: Sequence[str], logits_C: Tensor, truncated: bool) -> Prediction:
    probabilities = dict(zip(labels, logits_C.double().softmax(-1).tolist(), strict=True))
    return Prediction(text, max(probabilities, key=probabilities.__getitem__), probabilities, truncated=truncated)


def _start(text: Text) -> str:
    """The beginning of a text, to recognise it by."""
    return (text if isinstance(text, str) else text[0])[:40]


def _check_options(decode: Mapping[str, Any]) -> None:
    for name in decode:
        if name not in DecodeConfig.model_fields:
            raise UserError(f"{name}: unknown option; {nearest(name, DecodeConfig.model_fields)}")


def _refuse_generation(**options: Any) -> None:
    """A model that generates no text has no use for these."""
    for name, value in options.items():
        if value is not None:
            raise UserError(f"{name} = {value}: for models that generate text; this one does not, so leave it out")


def _refuse_unread(settings: DecodeConfig, chosen: Mapping[str, Any]) -> None:
    """An option of a way of decoding that nobody chose, neither here nor in the recipe, would be ignored."""
    for name in chosen.keys() & {"top_k", "top_p"} if "temperature" not in chosen else ():
        if not settings.temperature:
            raise UserError(f"{name} = {chosen[name]}: for sampling, but decoding is greedy; also set temperature")
    if "length_penalty" in chosen and "beam" not in chosen and settings.beam == 1:
        raise UserError(f"length_penalty = {chosen['length_penalty']}: for beam search; also set beam")


def _checked_texts(texts: Sequence[Text]) -> list[Text]:
    """Texts as a list. A single string would be a sequence of characters, which nobody means."""
    if isinstance(texts, str):
        raise UserError(f"texts is one string, {texts[:40]!r}; give a list of texts: [{texts[:40]!r}]")
    found = list(texts)
    for number, text in enumerate(found, 1):
        is_pair = isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
        if not isinstance(text, str) and not is_pair:
            raise UserError(f"text {number} is of type {type(text).__name__}; must be str, or a pair of them")
    return found
