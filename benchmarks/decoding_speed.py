"""Beam search: sentences and words per second of qkv against `transformers` generate and, if it is installed,
CTranslate2, with the same weights.

    .venv/bin/python benchmarks/decoding_speed.py RUN --data multi30k-en-de-test2016 --beam 5 --batch 32 --rounds 5

RUN is a translator whose parts are Marian's or Pegasus's, so that all three can read it. Sentences are sorted by length
and go in batches of --batch, the very same ones to all, as tokens; what comes back are tokens. All run in float32 on
the same threads. Each searches with a beam of --beam in its own way: its own length penalty (qkv's and CTranslate2's
divide by a power of the length too, each by its own), its own rule of when to stop, answers of at most 2 x source + 10
tokens. A word is a token of an answer, the end counted; what was searched and not answered counts as nothing. BLEU says
whether the answers are worth the same. CTranslate2 works in a process of its own: in one, it
and torch slow each other down.

CTranslate2 4.8 is not among our dependencies: pip install ctranslate2==4.8.4.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from interleave import interleaved, ratio
from sacrebleu.metrics.bleu import BLEU
from table import head, row, say
from transformers import AutoModelForSeq2SeqLM

from qkv import runtime
from qkv.bundled import path_of
from qkv.config.recipe import DataConfig
from qkv.corpus.corpus import open_corpus
from qkv.model.transformer import EncoderDecoder
from qkv.predict.decode import ranked
from qkv.predict.generate import search
from qkv.predict.prediction import Padded
from qkv.predict.predictor import Predictor, load_predictor
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Encoded

Answers = list[list[int]]
Batch = list[Encoded]
Translate = Callable[[Batch], Answers]


def limit(batch: Batch) -> int:
    return 2 * max(len(one.ids) for one in batch) + 10


def ours(model: Predictor, beam: int) -> Translate:
    asked, inner = model.generation_options(beam=beam), model.model
    assert isinstance(inner, EncoderDecoder)

    @torch.no_grad()
    def translate(batch: Batch) -> Answers:
        padded = Padded.of(list(range(len(batch))), [""] * len(batch), batch)
        steps = search(inner, padded, model.names, asked, limit(batch))
        found = ranked(steps, texts=len(batch), limit=limit(batch), alpha=asked.decode.length_penalty, best=1)
        return [[token for token in best[0].tokens if token not in model.special_tokens.end] for best in found]

    return translate


def generate(run: Path, model: Predictor, beam: int) -> Translate:
    theirs = AutoModelForSeq2SeqLM.from_pretrained(run, attn_implementation="sdpa").eval()
    pad, special = model.tokenizer.pad, {model.tokenizer.pad, *model.special_tokens.end, model.special_tokens.start}

    @torch.no_grad()
    def translate(batch: Batch) -> Answers:
        padded = Padded.of(list(range(len(batch))), [""] * len(batch), batch)
        keep = torch.ones_like(padded.tokens_BL) if padded.keep_BL is None else padded.keep_BL.long()
        found = theirs.generate(
            input_ids=padded.tokens_BL, attention_mask=keep, num_beams=beam, do_sample=False, pad_token_id=pad,
            max_length=limit(batch) + 1, decoder_start_token_id=model.special_tokens.start, eos_token_id=model.special_tokens.end[0],
        )  # fmt: skip
        return [[token for token in one if token not in special] for one in found.tolist()]

    return translate


def ctranslate2(run: Path, model: Predictor, beam: int, folder: Path, threads: int) -> Translate:
    from ctranslate2.converters.transformers import BartLoader

    theirs: Any = AutoModelForSeq2SeqLM.from_pretrained(run)
    theirs.config.normalize_before, theirs.config.normalize_embedding = model.config.norm_place == "pre", False
    spec = BartLoader().get_model_spec(theirs)
    words = [str(number) for number in range(model.config.vocabulary)]  # ids are all that is exchanged
    names = {model.special_tokens.end[0]: "</s>", 1: "<unk>"}
    words = [names.get(number, word) for number, word in enumerate(words)]
    spec.register_source_vocabulary(words)
    spec.register_target_vocabulary(words)
    spec.config.decoder_start_token = words[model.special_tokens.start or 0]
    spec.config.eos_token, spec.config.unk_token, spec.config.bos_token = "</s>", "<unk>", words[model.special_tokens.start or 0]
    spec.config.add_source_eos = spec.config.add_source_bos = False
    spec.validate()
    spec.optimize(quantization="float32")
    folder.mkdir()
    spec.save(str(folder))
    number_of = {word: number for number, word in enumerate(words)}
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    context.Process(target=serve, args=(there, str(folder), beam, threads), daemon=True).start()

    def translate(batch: Batch) -> Answers:
        here.send(([[words[token] for token in one.ids] for one in batch], limit(batch)))
        return [[number_of[word] for word in one] for one in here.recv()]

    return translate


def serve(asked: Connection, folder: str, beam: int, threads: int) -> None:
    """CTranslate2 in a process of its own: in ours its threads and torch's get into each other's way."""
    import ctranslate2 as ct2

    translator = ct2.Translator(folder, device="cpu", compute_type="float32", intra_threads=threads)
    while True:
        sources, longest = asked.recv()
        found = translator.translate_batch(
            sources, beam_size=beam, max_batch_size=0, max_decoding_length=longest, return_scores=False
        )
        asked.send([one.hypotheses[0] for one in found])


def in_batches(encoded: Batch, size: int) -> Iterator[list[int]]:
    """Numbers of sentences, the shortest first, so many at a time."""
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number].ids))
    return (order[first : first + size] for first in range(0, len(order), size))


def all_of(translate: Translate, encoded: Batch, size: int) -> Answers:
    answers: Answers = [[] for _ in encoded]
    for numbers in in_batches(encoded, size):
        for number, answer in zip(numbers, translate([encoded[n] for n in numbers]), strict=True):
            answers[number] = answer
    return answers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--data", default="multi30k-en-de-test2016", help="a catalogue name, or aligned files: A -> B")
    parser.add_argument("--sentences", type=int, default=320)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    runtime.start()
    model = load_predictor(path_of(str(asked.run)))
    if not isinstance(model.model, EncoderDecoder):
        raise UserError(f"{asked.run}: is no translator")
    source = open_corpus(DataConfig(corpus=asked.data), say, "translate")
    rows = [r for _, r in source.rows() if r.text and r.pair][: asked.sentences]
    encoded = model.prompts([r.text for r in rows], model.generation_options(beam=asked.beam))
    with tempfile.TemporaryDirectory() as folder:
        things = {"qkv": ours(model, asked.beam), "transformers generate": generate(asked.run, model, asked.beam)}
        if find_spec("ctranslate2"):
            place = Path(folder) / "ct2"
            threads = torch.get_num_threads()
            things["CTranslate2, float32"] = ctranslate2(asked.run, model, asked.beam, place, threads)
        else:
            print("CTranslate2 is not installed here, so it is left out", flush=True)
        compare(things, model, encoded, [r.pair or "" for r in rows], asked)


def compare(
    things: dict[str, Translate], model: Predictor, encoded: Batch, references: list[str], asked: argparse.Namespace
) -> None:
    answers: dict[str, Answers] = {}

    def turn(name: str) -> Callable[[], None]:
        def run() -> None:
            answers[name] = all_of(things[name], encoded, asked.batch)

        return run

    seconds = interleaved({name: turn(name) for name in things}, asked.rounds)
    print(f"{len(encoded)} sentences, batches of {asked.batch}, beam {asked.beam}, {asked.rounds} rounds", flush=True)
    head("who", "sentences/s", "words/s", "qkv is so many times faster (quartiles)", "BLEU", "same answers as qkv")
    for name, found in answers.items():
        middle, words = median(seconds[name]), sum(len(one) + 1 for one in found)
        low, ratio_, high = ratio(seconds[name], seconds["qkv"])
        bleu = BLEU().corpus_score([model.target.decode(one) for one in found], [references]).score
        same = sum(a == b for a, b in zip(found, answers["qkv"], strict=True)) / len(found)
        faster = "" if name == "qkv" else f"{ratio_:.2f} ({low:.2f} to {high:.2f})"
        row(name, f"{len(found) / middle:.1f}", f"{words / middle:,.0f}", faster, f"{bleu:.2f}", f"{same:.1%}")


if __name__ == "__main__":
    main()
