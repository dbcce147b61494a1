"""Beam search: sentences and tokens per second of qkv against `transformers` generate and, if it is installed,
CTranslate2, with the same weights.

    .venv/bin/python benchmarks/decoding_speed.py RUN --data multi30k-en-de-test2016 --beam 5 --batch 32 --rounds 5

RUN is a translation model whose parts are Marian's or Pegasus's, so that all three can read it. Sentences are sorted by
length and go in batches of --batch, the very same ones to all, as tokens; what comes back are tokens. All run in
float32 on the same threads. Each searches with a beam of --beam in its own way: its own length penalty (qkv's and
CTranslate2's divide by a power of the length too, each by its own), its own rule of when to stop, outputs of at most
2 x source + 10 tokens. Tokens are those of the outputs, the end included; other hypotheses do not count. BLEU says
whether the outputs are worth the same. CTranslate2 works in a process of its own: in one, it and torch slow each other
down.

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
from beam_width import read_pairs
from interleave import interleaved, ratio
from sacrebleu.metrics.bleu import BLEU
from table import head, row, run_main
from transformers import AutoModelForSeq2SeqLM

from qkv import runtime
from qkv.hub import path_of
from qkv.model.transformer import EncoderDecoder
from qkv.predict.decode import ranked
from qkv.predict.generate import search
from qkv.predict.prediction import TextBatch
from qkv.predict.predictor import Predictor, load_predictor
from qkv.schema import UserError
from qkv.tokenizer.tokenizer import Encoded

Outputs = list[list[int]]
Batch = list[Encoded]
Translate = Callable[[Batch], Outputs]


def limit(batch: Batch) -> int:
    return 2 * max(len(one.ids) for one in batch) + 10


def padded(batch: Batch) -> TextBatch:
    return TextBatch.of(list(range(len(batch))), [""] * len(batch), batch)


def ours(model: Predictor, beam: int) -> Translate:
    inner = model.model
    assert isinstance(inner, EncoderDecoder)

    @torch.no_grad()
    def translate(batch: Batch) -> Outputs:
        longest = limit(batch)
        options = model.generation_options(beam=beam, max_tokens=longest)
        steps = search(inner, padded(batch), model.special_tokens, options)
        found = ranked(steps, texts=len(batch), limit=longest, alpha=options.decode.length_penalty, best=1)
        return [[token for token in best[0].tokens if token not in model.special_tokens.end] for best in found]

    return translate


def generate(run: Path, model: Predictor, beam: int) -> Translate:
    theirs = AutoModelForSeq2SeqLM.from_pretrained(run, attn_implementation="sdpa").eval()
    pad, special = model.tokenizer.pad, model.special_tokens
    left_out = {pad, *special.end, special.start}

    @torch.no_grad()
    def translate(batch: Batch) -> Outputs:
        given = padded(batch)
        found = theirs.generate(
            input_ids=given.tokens_BL, attention_mask=given.keep_BL.long(), num_beams=beam, do_sample=False,
            pad_token_id=pad, max_length=limit(batch) + 1, decoder_start_token_id=special.start,
            eos_token_id=special.end[0],
        )  # fmt: skip
        return [[token for token in one if token not in left_out] for one in found.tolist()]

    return translate


def ctranslate2(run: Path, model: Predictor, beam: int, folder: Path, threads: int) -> Translate:
    from ctranslate2.converters.transformers import BartLoader

    theirs: Any = AutoModelForSeq2SeqLM.from_pretrained(run)
    theirs.config.normalize_before, theirs.config.normalize_embedding = model.config.norm_place == "pre", False
    spec = BartLoader().get_model_spec(theirs)
    special = {model.special_tokens.end[0]: "</s>", 1: "<unk>"}
    tokens = [special.get(n, str(n)) for n in range(model.config.vocabulary)]  # ids are all that is exchanged
    start = tokens[model.special_tokens.start or 0]
    spec.register_source_vocabulary(tokens)
    spec.register_target_vocabulary(tokens)
    spec.config.decoder_start_token = start
    spec.config.eos_token, spec.config.unk_token, spec.config.bos_token = "</s>", "<unk>", start
    spec.config.add_source_eos = spec.config.add_source_bos = False
    spec.validate()
    spec.optimize(quantization="float32")
    folder.mkdir()
    spec.save(str(folder))
    id_of = {token: number for number, token in enumerate(tokens)}
    here, there = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    context.Process(target=serve, args=(there, str(folder), beam, threads), daemon=True).start()

    def translate(batch: Batch) -> Outputs:
        here.send(([[tokens[number] for number in one.ids] for one in batch], limit(batch)))
        return [[id_of[token] for token in one] for one in here.recv()]

    return translate


def serve(requests: Connection, folder: str, beam: int, threads: int) -> None:
    """CTranslate2 in a process of its own: in ours its threads and torch's get into each other's way."""
    import ctranslate2 as ct2

    translator = ct2.Translator(folder, device="cpu", compute_type="float32", intra_threads=threads)
    while True:
        sources, longest = requests.recv()
        found = translator.translate_batch(
            sources, beam_size=beam, max_batch_size=0, max_decoding_length=longest, return_scores=False
        )
        requests.send([one.hypotheses[0] for one in found])


def in_batches(encoded: Batch, size: int) -> Iterator[list[int]]:
    """Numbers of sentences, the shortest first, so many at a time."""
    order = sorted(range(len(encoded)), key=lambda number: len(encoded[number].ids))
    return (order[first : first + size] for first in range(0, len(order), size))


def all_of(translate: Translate, encoded: Batch, size: int) -> Outputs:
    outputs: Outputs = [[] for _ in encoded]
    for numbers in in_batches(encoded, size):
        for number, output in zip(numbers, translate([encoded[n] for n in numbers]), strict=True):
            outputs[number] = output
    return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--data", default="multi30k-en-de-test2016", help="a catalogue name, or aligned files: A -> B")
    parser.add_argument("--sentences", type=int, default=320)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    runtime.start()
    run = path_of(str(options.run))
    model = load_predictor(run)
    if not isinstance(model.model, EncoderDecoder):
        raise UserError(f"{options.run}: its family is {model.config.family!r}; accepted: encoder-decoder")
    pairs = read_pairs(options.data, options.sentences)
    encoded = model.prompts([one.text for one in pairs], model.generation_options(beam=options.beam))
    with tempfile.TemporaryDirectory() as folder:
        things = {"qkv": ours(model, options.beam), "transformers generate": generate(run, model, options.beam)}
        if find_spec("ctranslate2"):
            place = Path(folder) / "ct2"
            threads = torch.get_num_threads()
            things["CTranslate2, float32"] = ctranslate2(run, model, options.beam, place, threads)
        else:
            print("CTranslate2 is not installed here, so it is left out", flush=True)
        compare(things, model, encoded, [one.pair or "" for one in pairs], options)


def compare(
    things: dict[str, Translate], model: Predictor, encoded: Batch, references: list[str], options: argparse.Namespace
) -> None:
    outputs: dict[str, Outputs] = {}

    def turn(name: str) -> Callable[[], None]:
        def run() -> None:
            outputs[name] = all_of(things[name], encoded, options.batch)

        return run

    seconds = interleaved({name: turn(name) for name in things}, options.rounds)
    rounds = f"batches of {options.batch}, beam {options.beam}, {options.rounds} rounds"
    print(f"{len(encoded)} sentences, {rounds}", flush=True)
    head("by", "sentences/s", "tokens/s", "qkv is so many times faster (quartiles)", "BLEU", "same outputs as qkv")
    for name, found in outputs.items():
        middle, tokens = median(seconds[name]), sum(len(one) + 1 for one in found)
        low, ratio_, high = ratio(seconds[name], seconds["qkv"])
        bleu = BLEU().corpus_score([model.target_tokenizer.decode(one) for one in found], [references]).score
        same = sum(a == b for a, b in zip(found, outputs["qkv"], strict=True)) / len(found)
        faster = "" if name == "qkv" else f"{ratio_:.2f} ({low:.2f} to {high:.2f})"
        row(name, f"{len(found) / middle:.1f}", f"{tokens / middle:,.0f}", faster, f"{bleu:.2f}", f"{same:.1%}")


if __name__ == "__main__":
    run_main(main)
