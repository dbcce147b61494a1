"""Text in, Prediction out: where text, model and decoding meet.

B batch · L length · N rows · V vocabulary
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qkv.config import DecodeConfig, ModelConfig
from qkv.data.examples import stretches
from qkv.data.prepare import TARGET
from qkv.disk import MANIFEST
from qkv.exchange.folder import open_folder
from qkv.exchange.hf import read_model
from qkv.exchange.names import Names, names_of
from qkv.generation import USUAL_ANSWER, Asked, answer, one_by_one, pieces, texts_at_once
from qkv.model.heads import POOLS
from qkv.model.transformer import Decoder, Encoder, EncoderDecoder, Model, hidden_states, text_answers
from qkv.prediction import MANY, Padded, Prediction, Reading, Text, batches
from qkv.run import WEIGHTS, Run
from qkv.schema import UserError, listed, nearest
from qkv.text.tokenizer import Encoded, Tokenizer

FOLLOWS = ("next", "not next")  # what the two outputs of a model that judges pairs say, in BERT's order
T = TypeVar("T")


class Predictor:
    """A model with its tokenizer, ready to answer: `predict`, `embed`."""

    def __init__(
        self,
        model: Model,
        config: ModelConfig,
        tokenizer: Tokenizer | None,
        names: Names,
        reading: Reading | None = None,
        target: Tokenizer | None = None,
    ) -> None:
        self.model, self.config, self.names = model.eval(), config.resolve(), names
        self.reading = reading or Reading()
        self._tokenizer, self._target = tokenizer, target

    def __repr__(self) -> str:
        c = self.config
        return f"<{c.family}, {c.layers} layers, {c.width} wide, head {c.head}: .predict(texts), .embed(texts)>"

    @property
    def tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise UserError(
                "this model has no tokenizer: its folder holds no tokenizer.json, which text needs; "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers writes one"
            )
        if self._tokenizer.size > self.config.vocabulary:
            sizes = f"{self._tokenizer.size} tokens, the model's vocabulary {self.config.vocabulary}"
            raise UserError(f"tokenizer and model do not belong together: tokenizer.json has {sizes}")
        return self._tokenizer

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of what it writes."""
        return self._target or self.tokenizer

    def predict(
        self,
        texts: Sequence[Text],
        *,
        top: int = 5,
        best: int = 1,
        seed: int = 0,
        stop: Sequence[str] = (),
        seen: Callable[[int], None] = lambda count: None,
        **decode: Any,
    ) -> list[Prediction]:
        """An answer for each text, in order: a label, a grade, words for the mask, a continuation or a translation.

        `top` words are given for each mask. Of a continuation or translation: `best` answers of a beam search; drawn by
        `seed` where there is a temperature; up to a string to `stop` at; and whatever else [decode] of a recipe has, as
        `beam=5`. `seen` is told how many texts were answered, as they are.
        """
        texts = _listed_texts(texts)
        asked = self.asked(best, seed, stop, **decode)
        if not 1 <= top <= self.config.vocabulary:
            raise UserError(f"top = {top}: must be at least 1 and at most {self.config.vocabulary:,}")
        head, model = self.config.head, self.model
        if head in ("classes", "grade"):
            return self._judge(texts, seen)
        if head == "none":
            raise UserError(
                "this model has no head to predict with, only vectors: from Python, qkv.load(folder).embed(texts)"
            )
        pairs = [number for number, text in enumerate(texts) if not isinstance(text, str)]
        if pairs and head != "pretraining":
            raise UserError(f"text {pairs[0] + 1} is a pair; this model takes one text at a time")
        if isinstance(model, Encoder):
            return self._in_batches(texts, lambda batch: self._fill_or_judge(model, batch, top), seen=seen)
        return self._written(model, [str(text) for text in texts], asked, seen)

    def asked(self, best: int = 1, seed: int = 0, stop: Sequence[str] = (), **decode: Any) -> Asked:
        """How words are wanted: what the recipe says, and what is said here."""
        unknown = [name for name in decode if name not in DecodeConfig.model_fields]
        if unknown:
            raise UserError(f"{unknown[0]}: {nearest(unknown[0], DecodeConfig.model_fields)}")
        chosen = {name: value for name, value in decode.items() if value is not None}
        settings = self.reading.decode.replace(**chosen)
        if settings.max_tokens == 0 and self.config.positions == "learned":
            settings = settings.replace(max_tokens=max(1, min(USUAL_ANSWER, self.config.context // 2)))
        return Asked(settings, best, seed, tuple(stop))

    def stream(self, text: str, *, seed: int = 0, stop: Sequence[str] = (), **decode: Any) -> Iterator[str]:
        """A continuation or translation of one text in pieces, as they are made."""
        model, asked = self.model, self.asked(1, seed, stop, **decode)
        if not isinstance(model, Decoder | EncoderDecoder) or self.config.head != "words":
            raise UserError("only a continuation or a translation comes in pieces; for this model: predict")
        if asked.decode.beam > 1:
            raise UserError(f"beam = {asked.decode.beam}: what a beam search will say is known at its end; accepted: 1")
        batch = Padded.of([0], [text], self.prompts([text], asked))
        limit = asked.limit(self.config.family, batch.tokens_BL.shape[1])
        with torch.no_grad():
            chosen = one_by_one(model, batch, self.names, self.target, asked, limit)
            yield from pieces(self.target, chosen, asked.stop)

    def prompts(self, texts: Sequence[str], asked: Asked) -> list[Encoded]:
        """What is read before the first word is given. Of a text that is too long to go on from, the end is kept."""
        decoder = isinstance(self.model, Decoder)
        room = asked.limit(self.config.family, 0) if decoder else 0
        encoded = self.tokenizer.encode(
            texts, self.limit(room), cut="left" if decoder else "right", literal=self.reading.trained
        )
        for number, one in enumerate(encoded):
            if not one.ids and not self.names.end:
                raise UserError(f"text {number + 1} is empty: this model needs at least one token to go on from")
            if not one.ids:
                encoded[number] = Encoded([self.names.end[0]], [0], cut=False)  # after the end of another text
        return encoded

    def _written(
        self, model: Decoder | EncoderDecoder, texts: list[str], asked: Asked, seen: Callable[[int], None]
    ) -> list[Prediction]:
        """A continuation or translation of each text; of an empty source an empty one."""
        encoded = self.prompts(texts, asked)
        for one in encoded:
            texts_at_once(self.config, asked, len(one.ids))  # refuses what is too much
        answers = self._answers(
            texts,
            encoded,
            lambda batch: answer(model, batch, self.names, self.target, asked),
            seen,
            lambda length: texts_at_once(self.config, asked, length),
        )
        if isinstance(model, Decoder):
            return answers
        empty = Prediction("", output="", log_probability=0.0)
        return [one if text.strip() else replace(empty, text=text) for text, one in zip(texts, answers, strict=True)]

    def embed(self, texts: Sequence[Text], *, pool: str = "mean") -> NDArray[np.float32]:
        """A vector for each text (N, D): the mean of its tokens' last hidden states, the first ([CLS]) or the last."""
        texts = _listed_texts(texts)
        if pool not in POOLS:
            raise UserError(f"pool = {pool!r}: must be one of {listed(POOLS)}")
        cut: list[Text] = []

        def pooled(batch: Padded) -> list[NDArray[np.float32]]:
            cut.extend(text for text, one in zip(batch.texts, batch.encoded, strict=True) if one.cut)
            return list(POOLS[pool](self._hidden(batch), batch.keep_BL).numpy())

        vectors = self._in_batches(texts, pooled)
        if cut:
            warnings.warn(f"{len(cut)} of {len(texts)} texts were cut to fit, first {_start(cut[0])!r}", stacklevel=2)
        return np.stack(vectors) if vectors else np.zeros((0, self.config.width), np.float32)

    def _in_batches(
        self,
        texts: Sequence[Text],
        answer: Callable[[Padded], list[T]],
        seen: Callable[[int], None] = lambda count: None,
    ) -> list[T]:
        """Answers in the order of the texts."""
        literal = self.reading.trained and self.config.head in ("none", "classes", "grade")
        encoded = self.tokenizer.encode(texts, self.limit(), literal=literal)
        for number, one in enumerate(encoded, 1):
            if not one.ids:
                raise UserError(f"text {number} is empty: this model needs at least one token to go on from")
        return self._answers(texts, encoded, answer, seen)

    @torch.no_grad()
    def _answers(
        self,
        texts: Sequence[Text],
        encoded: list[Encoded],
        answer: Callable[[Padded], list[T]],
        seen: Callable[[int], None],
        most: Callable[[int], int] = lambda length: MANY,
    ) -> list[T]:
        """Answers in the order given, computed shortest first in batches of bounded size: at most so many texts of a
        length as `most` says."""
        answers: dict[int, T] = {}
        for numbers in batches([len(one.ids) for one in encoded], most):
            batch = Padded.of(numbers, texts, encoded)
            answers.update(zip(numbers, answer(batch), strict=True))
            seen(len(numbers))
        return [answers[n] for n in range(len(encoded))]

    def limit(self, room: int = 0) -> int | None:
        """Most tokens a text may have: by the model's positions, and by what it was trained on."""
        limits = [self.reading.length] if self.reading.length is not None else []
        if self.config.positions == "learned":
            positions = self.names.longest or self.config.context
            if positions - room < 1:
                most = f"this model has {positions} positions, so at most {positions - 1}"
                raise UserError(f"max_tokens = {room} leaves no room: {most}")
            limits.append(positions - room)
        return min(limits, default=None)

    def _pieces(self, texts: Sequence[Text]) -> tuple[list[int], list[Encoded]]:
        """The windows, or the two ends, of all texts: which text each belongs to, and its tokens."""
        limit, frame, long = self.limit(), self.tokenizer.frame(pair=False), self.reading.long
        assert limit is not None, "what is read in pieces has a length"
        room = max(1, limit - len(frame.before) - len(frame.after))
        owners, made = list[int](), list[Encoded]()
        for number, ids in enumerate(self.tokenizer.ids([str(text) for text in texts])):
            for spans in stretches(len(ids), room, long):
                piece = [*frame.before, *(one for a, b in spans for one in ids[a:b]), *frame.after]
                owners.append(number)
                made.append(Encoded(piece, [0] * len(piece), cut=long == "ends" and len(ids) > room))
        return owners, made

    def _hidden(self, batch: Padded) -> Tensor:
        if isinstance(self.model, EncoderDecoder):
            return self.model.encode(batch.tokens_BL, batch.keep_BL)
        return hidden_states(self.model, batch.tokens_BL, batch.keep_BL, batch.segments_BL)

    def _judge(self, texts: Sequence[Text], seen: Callable[[int], None]) -> list[Prediction]:
        """A label with probabilities, or a grade: by the mean of the scores, where a text was read in windows."""
        for number, text in enumerate(texts, 1):
            if self.reading.trained and isinstance(text, tuple) != self.reading.pairs:
                wanted = "a pair of texts" if self.reading.pairs else "one text"
                raise UserError(f"text {number}: this model was trained to judge {wanted} at a time")
        if self.reading.long != "cut":
            owners, encoded = self._pieces(texts)
        else:
            encoded = self.tokenizer.encode(texts, self.limit(), literal=self.reading.trained)
            owners = list(range(len(texts)))
        scores = self._answers([texts[owner] for owner in owners], encoded, self._scores, seen)
        owned: list[list[int]] = [[] for _ in texts]
        for number, owner in enumerate(owners):
            owned[owner].append(number)
        answers = []
        for text, own in zip(texts, owned, strict=True):
            scores_C = torch.stack([scores[n] for n in own]).mean(0)
            cut = any(encoded[n].cut for n in own)
            if self.config.head == "grade":
                answers.append(Prediction(text, value=scores_C[0].item(), cut=cut))
                continue
            shares = dict(zip(self.names.labels, scores_C.double().softmax(-1).tolist(), strict=True))
            answers.append(Prediction(text, max(shares, key=shares.__getitem__), shares, cut=cut))
        return answers

    def _scores(self, batch: Padded) -> list[Tensor]:
        assert not isinstance(self.model, EncoderDecoder), "judged by its head before"
        return list(text_answers(self.model, batch.tokens_BL, batch.keep_BL, batch.segments_BL))

    def _fill_or_judge(self, model: Encoder, batch: Padded, top: int) -> list[Prediction]:
        """Words for the masks of single texts; of pairs, whether the second text is the next."""
        pairs = [row for row, text in enumerate(batch.texts) if not isinstance(text, str)]
        singles = [row for row, text in enumerate(batch.texts) if isinstance(text, str)]
        answers: dict[int, Prediction] = {}
        if pairs:
            answers.update(zip(pairs, self._next(batch.some(pairs)), strict=True))
        if singles:
            answers.update(zip(singles, self._fill(model, batch.some(singles), top), strict=True))
        return [answers[row] for row in range(len(batch.texts))]

    def _next(self, batch: Padded) -> list[Prediction]:
        """Whether the second text of a pair is the next after the first."""
        answers = []
        for text, one, scores in zip(batch.texts, batch.encoded, self._scores(batch), strict=True):
            shares = dict(zip(FOLLOWS, scores.double().softmax(-1).tolist(), strict=True))
            answers.append(Prediction(text, max(shares, key=shares.__getitem__), shares, cut=one.cut))
        return answers

    def _fill(self, model: Encoder, batch: Padded, top: int) -> list[Prediction]:
        """Words for each mask, ranked; the output is the text with the likeliest ones put in."""
        mask = self.tokenizer.mask
        mask_id = self.tokenizer.id_of(mask) if mask else None
        places_BL = torch.eq(batch.tokens_BL, -1 if mask_id is None else mask_id)
        without = (~places_BL.any(1)).nonzero()
        if len(without):
            row = int(without[0])
            where = " in the part of it that fits" if batch.encoded[row].cut else ""
            found = f"text {batch.numbers[row] + 1}, {_start(batch.texts[row])!r}, has no {mask or 'mask token'}{where}"
            raise UserError(f"{found}; write it where a word is missing")
        shares_NV = model.logits(self._hidden(batch)[places_BL]).softmax(-1)
        best = shares_NV.topk(top)
        ranked = iter(zip(best.values.tolist(), best.indices.tolist(), strict=True))
        answers = []
        for text, one, masks in zip(batch.texts, batch.encoded, places_BL.sum(1).tolist(), strict=True):
            assert isinstance(text, str), "pairs are refused before"
            pieces, output, sure, alternatives = text.split(str(mask)), "", 0.0, list[dict[str, Any]]()
            for number in range(masks):
                shares, ids = next(ranked)
                words = [self.tokenizer.word(i) for i in ids]
                output, sure = output + pieces[number] + words[0], sure + math.log(shares[0])
                ranking = zip(words, shares, strict=True)
                alternatives += [{"mask": number + 1, "word": word, "probability": share} for word, share in ranking]
            output += str(mask).join(pieces[masks:])
            answers.append(
                Prediction(text, output=output, log_probability=sure, alternatives=alternatives, cut=one.cut)
            )
        return answers


def load_predictor(path: Path) -> Predictor:
    """A model and its tokenizer from a run or a Hugging Face folder. Every file of a run is checked first."""
    run = Run(path)
    if run.begun:
        run.check()
        if not (path / WEIGHTS).exists():
            raise UserError(f"{path}: this run has no model yet; the first is written at its first evaluation")
    folder = open_folder(path)
    model, config = read_model(folder)
    tokenizer = Tokenizer.from_file(folder.tokenizer) if folder.tokenizer else None
    reading, recipe = Reading(), run.recipe  # of a run, or beside a model that was exported from one
    if recipe is not None:
        data, temperature = recipe.data, run.facts().get("temperature", 1.0)
        if not isinstance(temperature, float) or not 0.01 <= temperature <= 100:
            raise UserError(f"{path / MANIFEST}: temperature {str(temperature)[:40]} must be between 0.01 and 100")
        reading = Reading(data.length, data.long, data.pair != "none", True, temperature, recipe.decode)
    target = Tokenizer.from_file(path / TARGET) if (path / TARGET).is_file() else None
    return Predictor(model, config, tokenizer, names_of(folder, config), reading, target)


def _start(text: Text) -> str:
    """The beginning of a text, to be recognised by."""
    return (text if isinstance(text, str) else text[0])[:40]


def _listed_texts(texts: Sequence[Text]) -> list[Text]:
    """Texts as a list. One string is a sequence of letters to Python, and surely not meant as such."""
    if isinstance(texts, str):
        raise UserError(f"texts is one string, {texts[:40]!r}; give a list of texts: [{texts[:40]!r}]")
    found = list(texts)
    for number, text in enumerate(found, 1):
        is_pair = isinstance(text, tuple) and len(text) == 2 and all(isinstance(part, str) for part in text)
        if not isinstance(text, str) and not is_pair:
            raise UserError(f"text {number} is of type {type(text).__name__}; must be str, or a pair of them")
    return found
