"""The foreign architectures, one table each: which of our parts they are made of, what they call them, and their names
for each weight. With `rules.py`, all foreign spellings live here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qkv.config import ModelConfig
from qkv.exchange.rules import Rule, qkv, qkv_of_neighbours, same, stacked, transposed

Table = dict[str, Rule]
ACTIVATIONS = {  # theirs -> ours; the first of several is the one we write
    "relu": "relu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "silu": "silu",
    "swish": "silu", "sigmoid": "sigmoid", "tanh": "tanh", "linear": "identity",
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """A foreign class: the architecture with one kind of head. `pooler` is what our text head must have for it."""

    name: str
    head: str
    pooler: str = "none"
    weights: Table = field(default_factory=dict)


@dataclass(frozen=True)
class Architecture:
    """One foreign architecture."""

    kind: str  # their `model_type`
    body: str  # prefix of the body's weights in a class with a head
    variants: tuple[Variant, ...]
    parts: Mapping[str, Any]  # our keys with the only value this architecture can have
    keys: Mapping[str, tuple[str, ...]]  # our keys -> theirs, copied as they are; several must agree
    defaults: Mapping[str, Any]  # what their keys mean where config.json is silent
    demands: Mapping[str, Any]  # their keys that must have this value, since we have no part for another
    activation: tuple[str, ...]  # where they name the activation
    weights: Table
    tied: Mapping[str, Mapping[str, Any]]  # our `tied` -> their keys that say so
    ids: Mapping[str, int | None] = field(default_factory=dict)  # special tokens where nobody names any; -1: the last
    sinusoids: Mapping[str, Callable[[ModelConfig], tuple[int, int]]] = field(default_factory=dict)  # tables, by size
    recomputed_by: tuple[str, ...] = ()  # classes that do not store these tables
    context_offset: int = 0  # rows of a position table that no input reaches
    aliases: Mapping[str, str] = field(default_factory=dict)  # second names of a weight
    idle: Mapping[str, str] = field(default_factory=dict)  # weights that nothing reads -> the one we write there


def names(**keys: str) -> dict[str, tuple[str, ...]]:
    """Our key = their key, or several of theirs with blanks between."""
    return {ours: tuple(theirs.split()) for ours, theirs in keys.items()}


def _same(**names: str) -> Table:
    """Our names, with __ for a dot, -> theirs."""
    return {ours.replace("__", "."): same(theirs) for ours, theirs in names.items()}


_TIED_OUTPUT = {"output": {"tie_word_embeddings": True}}
_UNTIED = {"none": {"tie_word_embeddings": False}}
POST = {"norm": "layer", "norm_place": "post", "final_norm": False}
PRE = {"norm_place": "pre", "final_norm": True}
PLAIN = {"score": "dot", "residual": True}  # what everybody has
ENCODER = {**PLAIN, **POST, "family": "encoder", "scale": "sqrt", "bias": True, "embedding_norm": True,
            "embedding_scale": False, "output_scale": False, "output_bias": True, "pool": "first"}  # fmt: skip
DECODER = {**PLAIN, **PRE, "family": "decoder", "scale": "sqrt", "embedding_norm": False, "embedding_scale": False,
            "segments": 0, "output_scale": False, "output_bias": False, "pool": "last"}  # fmt: skip
BOTH = {**PLAIN, "family": "encoder-decoder", "segments": 0}


def _bert_weights(prediction: str) -> Table:
    layer = "@encoder.layer.{i}."
    return {
        "embedding.table_VD": same("@embeddings.word_embeddings.weight"),
        "embedding.segments": same("@embeddings.token_type_embeddings.weight"),
        "stack.embedding_norm": same("@embeddings.LayerNorm"),
        "stack.blocks.{i}.attention.output": same(layer + "attention.output.dense"),
        "stack.blocks.{i}.attention_residual.norm": same(layer + "attention.output.LayerNorm"),
        "stack.blocks.{i}.feed.inner": same(layer + "intermediate.dense"),
        "stack.blocks.{i}.feed.output": same(layer + "output.dense"),
        "stack.blocks.{i}.feed_residual.norm": same(layer + "output.LayerNorm"),
        "words.transform.dense": same(prediction + "transform.dense"),
        "words.transform.norm": same(prediction + "transform.LayerNorm"),
        "words.bias": same(prediction + "bias"),
        "words.weight": same(prediction + "decoder.weight"),
    }


_BERT_QKV = tuple("@encoder.layer.{i}.attention.self." + name for name in ("query", "key", "value"))
_BERT_KEYS = names(
    vocabulary="vocab_size", context="max_position_embeddings", segments="type_vocab_size", width="hidden_size",
    heads="num_attention_heads", layers="num_hidden_layers", feedforward="intermediate_size", norm_eps="layer_norm_eps",
)  # fmt: skip
_BERT_DEFAULTS = {
    "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, "hidden_size": 768,
    "num_attention_heads": 12, "num_hidden_layers": 12, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
    "hidden_act": "gelu", "tie_word_embeddings": True, "is_decoder": False, "add_cross_attention": False,
}  # fmt: skip
_CLASSES = ("classes", "grade")

BERT = Architecture(
    kind="bert",
    body="bert.",
    variants=(
        Variant("BertModel", "none", "tanh", _same(text__dense="@pooler.dense")),
        Variant("BertModel", "none"),
        Variant("BertForMaskedLM", "words"),
        Variant(
            "BertForPreTraining", "pretraining", "tanh",
            _same(text__dense="@pooler.dense", text__output="cls.seq_relationship"),
        ),
        *(
            Variant(
                "BertForSequenceClassification", head, "tanh",
                _same(text__dense="@pooler.dense", text__output="classifier"),
            )
            for head in _CLASSES
        ),
    ),
    parts={**ENCODER, "positions": "learned"},
    keys=_BERT_KEYS,
    defaults={**_BERT_DEFAULTS, "position_embedding_type": "absolute"},
    demands={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
    activation=("hidden_act",),
    weights={
        **_bert_weights("cls.predictions."),
        "stack.positions.table": same("@embeddings.position_embeddings.weight"),
        "stack.blocks.{i}.attention.project": qkv(*_BERT_QKV),
    },
    tied=_TIED_OUTPUT,
    aliases={"cls.predictions.decoder.weight": "@embeddings.word_embeddings.weight",
             "cls.predictions.decoder.bias": "cls.predictions.bias"},
)  # fmt: skip

_UNTIED_WORDS = {"words.bias": same("cls.predictions.decoder.bias")}  # tied, their two biases are one
_IDLE_BIAS = {"cls.predictions.bias": "cls.predictions.decoder.bias"}
BERT_UNTIED = replace(BERT, tied=_UNTIED, weights=BERT.weights | _UNTIED_WORDS, aliases={}, idle=_IDLE_BIAS)

ROFORMER = Architecture(
    kind="roformer",
    body="roformer.",
    variants=(
        Variant("RoFormerModel", "none"),
        Variant("RoFormerForMaskedLM", "words"),
        Variant(  # they have no class for pairs: it loads as this one, which passes over the two layers it has not
            "RoFormerForMaskedLM", "pretraining", "tanh",
            _same(text__dense="@pooler.dense", text__output="cls.seq_relationship"),
        ),
        *(
            Variant(
                "RoFormerForSequenceClassification", head, "activation",
                _same(text__dense="classifier.dense", text__output="classifier.out_proj"),
            )
            for head in _CLASSES
        ),
    ),
    parts={**ENCODER, "positions": "rotary", "rotary_base": 10_000.0},
    keys={**_BERT_KEYS, "width": ("hidden_size", "embedding_size")},
    defaults={**_BERT_DEFAULTS, "vocab_size": 50000, "max_position_embeddings": 1536, "rotary_value": False},
    demands={"is_decoder": False, "add_cross_attention": False, "rotary_value": False},
    activation=("hidden_act",),
    weights={
        **_bert_weights("cls.predictions."),
        "stack.blocks.{i}.attention.project": qkv_of_neighbours(*_BERT_QKV),
    },
    tied=_TIED_OUTPUT,
    sinusoids={"@encoder.embed_positions.weight": lambda c: (c.context, c.head_width)},
    aliases=BERT.aliases,
)  # fmt: skip

ROFORMER_UNTIED = replace(ROFORMER, tied=_UNTIED, weights=ROFORMER.weights | _UNTIED_WORDS, aliases={}, idle=_IDLE_BIAS)

_DISTIL = "@transformer.layer.{i}."
DISTILBERT = Architecture(
    kind="distilbert",
    body="distilbert.",
    variants=(
        Variant("DistilBertModel", "none"),
        Variant("DistilBertForMaskedLM", "words"),
        *(
            Variant(
                "DistilBertForSequenceClassification", head, "relu",
                _same(text__dense="pre_classifier", text__output="classifier"),
            )
            for head in _CLASSES
        ),
    ),
    parts={**ENCODER, "positions": "learned", "segments": 0, "norm_eps": 1e-12},
    keys=names(
        vocabulary="vocab_size", context="max_position_embeddings", width="dim", heads="n_heads", layers="n_layers",
        feedforward="hidden_dim",
    ),
    defaults={
        "vocab_size": 30522, "max_position_embeddings": 512, "dim": 768, "n_heads": 12, "n_layers": 6,
        "hidden_dim": 3072, "activation": "gelu", "tie_word_embeddings": True, "sinusoidal_pos_embds": False,
    },
    demands={"sinusoidal_pos_embds": False},
    activation=("activation",),
    weights={
        "embedding.table_VD": same("@embeddings.word_embeddings.weight"),
        "stack.positions.table": same("@embeddings.position_embeddings.weight"),
        "stack.embedding_norm": same("@embeddings.LayerNorm"),
        "stack.blocks.{i}.attention.project": qkv(*(_DISTIL + f"attention.{n}_lin" for n in "qkv")),
        "stack.blocks.{i}.attention.output": same(_DISTIL + "attention.out_lin"),
        "stack.blocks.{i}.attention_residual.norm": same(_DISTIL + "sa_layer_norm"),
        "stack.blocks.{i}.feed.inner": same(_DISTIL + "ffn.lin1"),
        "stack.blocks.{i}.feed.output": same(_DISTIL + "ffn.lin2"),
        "stack.blocks.{i}.feed_residual.norm": same(_DISTIL + "output_layer_norm"),
        "words.transform.dense": same("vocab_transform"),
        "words.transform.norm": same("vocab_layer_norm"),
        "words.bias": same("vocab_projector.bias"),
        "words.weight": same("vocab_projector.weight"),
    },
    tied=_TIED_OUTPUT | _UNTIED,
    aliases={"vocab_projector.weight": "@embeddings.word_embeddings.weight"},
)  # fmt: skip

GPT2 = Architecture(
    kind="gpt2",
    ids={"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
    body="transformer.",
    variants=(
        Variant("GPT2Model", "none"),
        Variant("GPT2LMHeadModel", "words"),
        *(Variant("GPT2ForSequenceClassification", head, weights=_same(text__output="score")) for head in _CLASSES),
    ),
    parts={**DECODER, "positions": "learned", "norm": "layer", "bias": True},
    keys=names(
        vocabulary="vocab_size", context="n_positions", width="n_embd", heads="n_head", layers="n_layer",
        feedforward="n_inner", norm_eps="layer_norm_epsilon",
    ),
    defaults={
        "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_inner": None,
        "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new", "tie_word_embeddings": True,
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
        "is_causal": True,
    },
    demands={
        "scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False,
        "is_causal": True,
    },
    activation=("activation_function",),
    weights={
        "embedding.table_VD": same("@wte.weight"),
        "stack.positions.table": same("@wpe.weight"),
        "stack.blocks.{i}.attention.project.weight": transposed("@h.{i}.attn.c_attn.weight"),
        "stack.blocks.{i}.attention.project.bias": same("@h.{i}.attn.c_attn.bias"),
        "stack.blocks.{i}.attention.output.weight": transposed("@h.{i}.attn.c_proj.weight"),
        "stack.blocks.{i}.attention.output.bias": same("@h.{i}.attn.c_proj.bias"),
        "stack.blocks.{i}.attention_residual.norm": same("@h.{i}.ln_1"),
        "stack.blocks.{i}.feed.inner.weight": transposed("@h.{i}.mlp.c_fc.weight"),
        "stack.blocks.{i}.feed.inner.bias": same("@h.{i}.mlp.c_fc.bias"),
        "stack.blocks.{i}.feed.output.weight": transposed("@h.{i}.mlp.c_proj.weight"),
        "stack.blocks.{i}.feed.output.bias": same("@h.{i}.mlp.c_proj.bias"),
        "stack.blocks.{i}.feed_residual.norm": same("@h.{i}.ln_2"),
        "stack.final_norm": same("@ln_f"),
        "words.weight": same("lm_head.weight"),
    },
    tied=_TIED_OUTPUT | _UNTIED,
    aliases={"lm_head.weight": "@wte.weight"},
)  # fmt: skip

_LLAMA = "@layers.{i}."
LLAMA = Architecture(
    kind="llama",
    ids={"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
    body="model.",
    variants=(
        Variant("LlamaModel", "none"),
        Variant("LlamaForCausalLM", "words"),
        *(Variant("LlamaForSequenceClassification", head, weights=_same(text__output="score")) for head in _CLASSES),
    ),
    parts={**DECODER, "positions": "rotary", "norm": "rms", "bias": False, "activation": "swiglu"},
    keys=names(
        vocabulary="vocab_size", context="max_position_embeddings", width="hidden_size", heads="num_attention_heads",
        layers="num_hidden_layers", feedforward="intermediate_size", norm_eps="rms_norm_eps",
        kv_heads="num_key_value_heads", head_width="head_dim", rotary_base="rope_parameters.rope_theta",
    ),
    defaults={
        "vocab_size": 32000, "max_position_embeddings": 2048, "hidden_size": 4096, "num_attention_heads": 32,
        "num_hidden_layers": 32, "intermediate_size": 11008, "rms_norm_eps": 1e-6, "num_key_value_heads": None,
        "head_dim": None, "rope_parameters.rope_theta": 10_000.0, "rope_parameters.rope_type": "default",
        "rope_scaling": None, "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False,
        "mlp_bias": False, "is_causal": True,
    },
    demands={
        "rope_parameters.rope_type": "default", "rope_scaling": None, "attention_bias": False, "mlp_bias": False,
        "hidden_act": "silu", "is_causal": True,
    },
    activation=(),
    weights={
        "embedding.table_VD": same("@embed_tokens.weight"),
        "stack.blocks.{i}.attention.project": qkv(*(_LLAMA + f"self_attn.{n}_proj" for n in "qkv")),
        "stack.blocks.{i}.attention.output": same(_LLAMA + "self_attn.o_proj"),
        "stack.blocks.{i}.attention_residual.norm": same(_LLAMA + "input_layernorm"),
        "stack.blocks.{i}.feed.inner": stacked(_LLAMA + "mlp.gate_proj", _LLAMA + "mlp.up_proj"),
        "stack.blocks.{i}.feed.output": same(_LLAMA + "mlp.down_proj"),
        "stack.blocks.{i}.feed_residual.norm": same(_LLAMA + "post_attention_layernorm"),
        "stack.final_norm": same("@norm"),
        "words.weight": same("lm_head.weight"),
    },
    tied=_TIED_OUTPUT | _UNTIED,
    aliases={"lm_head.weight": "@embed_tokens.weight"},
)  # fmt: skip

ENCODERS = (DISTILBERT, BERT, BERT_UNTIED, ROFORMER, ROFORMER_UNTIED)  # the first that fits: the one with least in it
DECODERS = (GPT2, LLAMA)
