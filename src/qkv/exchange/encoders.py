"""Encoders of Hugging Face: BERT, RoFormer, DistilBERT."""

from __future__ import annotations

from dataclasses import replace

from qkv.config.recipe import TEXT_HEADS
from qkv.exchange.architecture import (
    ENCODER,
    TIED_OUTPUT,
    UNTIED,
    Architecture,
    Table,
    Variant,
    names,
    qkv,
    qkv_of_neighbours,
    same,
    same_names,
)  # fmt: skip


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
BERT = Architecture(
    kind="bert",
    body="bert.",
    variants=(
        Variant("BertModel", "none", "tanh", same_names(text__dense="@pooler.dense")),
        Variant("BertModel", "none"),
        Variant("BertForMaskedLM", "tokens"),
        Variant(
            "BertForPreTraining", "pretraining", "tanh",
            same_names(text__dense="@pooler.dense", text__output="cls.seq_relationship"),
        ),
        *(
            Variant(
                "BertForSequenceClassification", head, "tanh",
                same_names(text__dense="@pooler.dense", text__output="classifier"),
            )
            for head in TEXT_HEADS
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
    tied=TIED_OUTPUT,
    aliases={"cls.predictions.decoder.weight": "@embeddings.word_embeddings.weight",
             "cls.predictions.decoder.bias": "cls.predictions.bias"},
)  # fmt: skip

_UNTIED_HEAD = {"words.bias": same("cls.predictions.decoder.bias")}  # tied, their two biases are one
_IDLE_BIAS = {"cls.predictions.bias": "cls.predictions.decoder.bias"}
BERT_UNTIED = replace(BERT, tied=UNTIED, weights=BERT.weights | _UNTIED_HEAD, aliases={}, idle=_IDLE_BIAS)

ROFORMER = Architecture(
    kind="roformer",
    body="roformer.",
    variants=(
        Variant("RoFormerModel", "none"),
        Variant("RoFormerForMaskedLM", "tokens"),
        Variant(  # they have no class for pairs: it loads as this one, which passes over the two layers it has not
            "RoFormerForMaskedLM", "pretraining", "tanh",
            same_names(text__dense="@pooler.dense", text__output="cls.seq_relationship"),
        ),
        *(
            Variant(
                "RoFormerForSequenceClassification", head, "activation",
                same_names(text__dense="classifier.dense", text__output="classifier.out_proj"),
            )
            for head in TEXT_HEADS
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
    tied=TIED_OUTPUT,
    sinusoids={"@encoder.embed_positions.weight": lambda c: (c.context, c.head_width)},
    aliases=BERT.aliases,
)  # fmt: skip

ROFORMER_UNTIED = replace(ROFORMER, tied=UNTIED, weights=ROFORMER.weights | _UNTIED_HEAD, aliases={}, idle=_IDLE_BIAS)

_DISTIL = "@transformer.layer.{i}."
DISTILBERT = Architecture(
    kind="distilbert",
    body="distilbert.",
    variants=(
        Variant("DistilBertModel", "none"),
        Variant("DistilBertForMaskedLM", "tokens"),
        *(
            Variant(
                "DistilBertForSequenceClassification", head, "relu",
                same_names(text__dense="pre_classifier", text__output="classifier"),
            )
            for head in TEXT_HEADS
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
    tied=TIED_OUTPUT | UNTIED,
    aliases={"vocab_projector.weight": "@embeddings.word_embeddings.weight"},
)  # fmt: skip

ENCODERS = (DISTILBERT, BERT, BERT_UNTIED, ROFORMER, ROFORMER_UNTIED)  # the first that fits: the one with least in it
