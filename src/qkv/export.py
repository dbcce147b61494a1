"""Export to other libraries, with a certificate that the model gives the same logits there."""

from __future__ import annotations

import datetime
import hashlib
import importlib
import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from qkv import __version__
from qkv.config.recipe import ModelConfig
from qkv.data.prepare import TARGET
from qkv.exchange.folder import MODULES, POOLING, WEIGHTS, ModelFiles, open_folder, write_folder
from qkv.exchange.hf import read_model, write_model
from qkv.exchange.special_tokens import carried
from qkv.model.transformer import EncoderDecoder, Model
from qkv.predict.predictor import open_model
from qkv.run.folder import PICTURES
from qkv.schema import UserError
from qkv.training.model_card import markdown

TOKENIZER_FILES = (
    "tokenizer.json", TARGET, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "source.spm", "target.spm", "spiece.model", "tokenizer.model",
)  # fmt: skip
POOLING_FILES = (MODULES, f"{POOLING}config.json")  # of sentence-transformers
RUN_FILES = ("recipe.toml", *PICTURES)  # that say how a model was made
# What their outputs are called, in the order in which ours are put in a row.
FIELDS = ("prediction_logits", "logits", "seq_relationship_logits", "last_hidden_state", "pooler_output")
LENGTHS = (7, 13, 16)  # tokens of the texts that are compared


@dataclass(frozen=True)
class Certificate:
    """The largest difference between our logits and those of the exported model, and who computed them."""

    architecture: str
    peer: str
    difference: float
    largest: float  # the largest score, to judge the difference by
    scores: int
    independent: bool = True  # the witness is not qkv itself

    def must_hold(self) -> None:
        """Refuse an export whose logits differ."""
        if not self.difference <= 1e-4 * max(1.0, self.largest):  # also where it is not a number
            sizes = f"{self.difference:.2e}, where the largest logit is {self.largest:.3g}"
            raise UserError(f"{self.architecture}: {self.peer} computes other logits: they differ by {sizes}")


def export_hf(run: Path, target: Path, *, half: bool = False) -> Certificate:
    """Write the model in `run` as a Hugging Face folder. It is loaded and compared before the folder appears. If
    `half`, weights are rounded to float16, and what is compared is the rounded model."""
    opened = open_model(run)
    source, model, config, trained = opened.folder, opened.model, opened.config, opened.run.begun
    if half:
        _round(model)
    written = write_model(model.eval(), config, carried(source.config, config))
    if half:
        tensors = {n: t if n in written.computed else t.half() for n, t in written.tensors.items()}
        written = replace(written, tensors=tensors)
    names = (*TOKENIZER_FILES, *POOLING_FILES, *(RUN_FILES if trained else ()))
    files = {name: content for name in names if (content := source.content(name)) is not None}
    before = (source.content("README.md") or b"").decode() if trained else ""
    certificates = []

    def try_out(folder: Path) -> str:
        certificates.append(certify(model, config, written, folder))
        certificates[0].must_hold()
        digest = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
        return _card(target.name, config, written, certificates[0], digest) + before.replace("\n#", "\n##").replace(
            "# ", "\n## ", 1
        )

    generation = source.generation
    write_folder(
        target, config=written.config, generation=generation, tensors=written.tensors, files=files, last=try_out
    )
    return certificates[0]


@torch.no_grad()
def certify(model: Model, config: ModelConfig, written: ModelFiles, folder: Path) -> Certificate:
    """Scores of the model and of the folder for the same tokens; by `transformers` where it is installed."""
    texts = [_tokens(length, config.vocabulary) for length in _lengths(config)]
    words_only = written.name.endswith(
        "ForMaskedLM"
    )  # of a model that also judges pairs, where they have no such class
    ours = torch.cat([_scores(model, tokens, words_only) for tokens in texts])
    if has_transformers():
        theirs, witness = their_logits(written.name, folder, texts)
    else:
        again = read_model(open_folder(folder))[0].eval()
        theirs, witness = (
            torch.cat([_scores(again, tokens, words_only) for tokens in texts]),
            f"qkv {__version__}, read back",
        )
    difference, largest = (ours - theirs).abs().max().item(), ours.abs().max().item()
    return Certificate(written.name, witness, difference, largest, ours.numel(), independent=has_transformers())


def _lengths(config: ModelConfig) -> list[int]:
    """Lengths of the texts that are compared, within the positions there are (of BART's, two cannot be used)."""
    return [max(1, min(length, config.context - 2)) for length in LENGTHS]


def _tokens(length: int, vocabulary: int) -> Tensor:
    """Tokens (1, length) that anyone can make again: 13 + 7,919 i, modulo the vocabulary."""
    return (13 + 7919 * torch.arange(length))[None] % vocabulary


@torch.no_grad()
def _round(model: Model) -> None:
    """Every weight becomes what float16 can hold of it."""
    for name, weight in model.named_parameters():
        weight.copy_(weight.half())
        if not weight.isfinite().all():
            raise UserError(f"{name}: has weights beyond what float16 can hold (65,504); export it without --half")


def _scores(model: Model, tokens_1L: Tensor, words_only: bool) -> Tensor:
    """All that the model's heads say about a text, in one row; its hidden states where it has no head."""
    hidden_1LD = model(tokens_1L, tokens_1L) if isinstance(model, EncoderDecoder) else model(tokens_1L)
    said = [model.logits(hidden_1LD)] if model.words is not None else []
    if model.text is not None and not words_only:
        said.append(model.text(hidden_1LD))
    has_answer = model.words is not None or (model.text is not None and model.text.output is not None)
    return torch.cat([part.flatten() for part in (said if has_answer else [hidden_1LD, *said])])


def _card(title: str, config: ModelConfig, written: ModelFiles, certificate: Certificate, digest: str) -> str:
    """The README.md of an exported folder."""
    count = sum(tensor.numel() for tensor in written.tensors.values())
    lengths = ", ".join(str(length) for length in _lengths(config))
    alone = "" if certificate.independent else "\nThis compares qkv with itself only: transformers was not installed.\n"
    return f"""# {markdown(title)}

{written.name}, {count:,} numbers in model.safetensors; {config.family}, {config.layers} layers, {config.width} wide.
Written by qkv {__version__} on {datetime.date.today()}. sha256 of model.safetensors: `{digest}`

## Certificate

Largest difference between the scores of qkv and those of {certificate.peer}, loaded from this folder:
**{certificate.difference:.2e}** (largest score {certificate.largest:.3g}), over {certificate.scores:,} scores, float32.
Input: texts of {lengths} tokens with the ids 13 + 7919 i modulo {config.vocabulary}.
{alone}
```python
from transformers import {written.name}

model = {written.name}.from_pretrained("this folder")
```
"""


def has_transformers() -> bool:
    return importlib.util.find_spec("transformers") is not None


def their_logits(name: str, folder: Path, texts: list[Tensor]) -> tuple[Tensor, str]:
    """All outputs of the transformers class for token ids (1, L), in one row, loaded as users do; and its version."""
    transformers = importlib.import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # tensors of ours that it passes over are not worth a report
    model = getattr(transformers, name).from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    scores = []
    for tokens in texts:
        target = {"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {}
        said = model(input_ids=tokens, **target)
        scores += [said[field].flatten() for field in FIELDS if said.get(field) is not None]
    return torch.cat(scores), f"transformers {transformers.__version__}"
