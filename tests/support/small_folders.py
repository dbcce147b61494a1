"""Tiny Hugging Face folders with a real tokenizer, one for each task, written by our own exporter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, pre_tokenizers, processors

from qkv.config.recipe import ModelConfig
from qkv.exchange.folder import write_folder
from qkv.exchange.hf import write_model
from qkv.model import build_model

WORDS = [
    "the",
    "a",
    "film",
    "plot",
    "was",
    "is",
    "not",
    "good",
    "bad",
    "great",
    "dull",
    "and",
    "it",
    "very",
    "we",
    "saw",
    "tired",
]
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
TOKENS = [*SPECIAL.values(), "</s>", *WORDS]
IDS = {token: number for number, token in enumerate(TOKENS)}
SIZES = {"vocabulary": len(TOKENS), "width": 12, "heads": 3, "layers": 2, "feedforward": 17, "context": 31}
BERT = {"positions": "learned", "segments": 2, "embedding_norm": True, "output_bias": True, "norm_eps": 1e-12}
CONFIGS: dict[str, dict[str, Any]] = {
    "fill": {"family": "encoder", **BERT, "head": "tokens"},
    "classify": {"family": "encoder", **BERT, "head": "classification", "classes": 3, "pooler": "tanh"},
    "regress": {"family": "encoder", **BERT, "head": "regression", "pooler": "tanh"},
    "embed": {"family": "encoder", **BERT, "pooler": "tanh"},
    "complete": {"family": "decoder", "positions": "learned", "norm_place": "pre", "activation": "gelu_tanh"},
    "last-token": {"family": "decoder", "positions": "learned", "norm_place": "pre", "head": "classification"},
    "llama": {"family": "decoder", "positions": "rotary", "norm": "rms", "norm_place": "pre", "bias": False,
              "activation": "swiglu", "tied": "none"},
    "translate": {"family": "encoder-decoder", "embedding_scale": True, "tied": "all", "activation": "relu"},
}  # fmt: skip


def tokenizer(task: str) -> tokenizers.Tokenizer:
    """Whole words; [CLS] ... [SEP] for an encoder, ... </s> for a translator, nothing added for a decoder."""
    made = tokenizers.Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([*SPECIAL.values(), "</s>"])
    single = {"encoder": "[CLS] $A [SEP]", "decoder": "$A", "encoder-decoder": "$A </s>"}[CONFIGS[task]["family"]]
    made.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[(token, IDS[token]) for token in ("[CLS]", "[SEP]", "</s>")]
    )
    return made


def make_folder(path: Path, task: str, seed: int = 1, **changes: Any) -> Path:
    """A folder for a task, with weights large enough that different texts get clearly different answers."""
    config = ModelConfig.read({**SIZES, **CONFIGS[task], **changes})
    model = build_model(config, seed=seed)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.mul_(4.0)
    names = {"pad_token_id": IDS["[PAD]"], "eos_token_id": IDS["</s>"], "bos_token_id": IDS["</s>"]}
    if config.head == "classification":
        labels = ["bad", "good", "neither"][: config.classes]
        names |= {"id2label": dict(enumerate(labels)), "label2id": {label: i for i, label in enumerate(labels)}}  # type: ignore[dict-item]
    if config.family == "encoder-decoder":
        names["decoder_start_token_id"] = IDS["[PAD]"]
    written = write_model(model, config, json.loads(json.dumps(names)))
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 31, **SPECIAL, "eos_token": "</s>"}
    files = {"tokenizer.json": tokenizer(task).to_str().encode(), "tokenizer_config.json": json.dumps(about).encode()}
    write_folder(path, config=written.config, generation={}, tensors=written.tensors, files=files)
    return path
