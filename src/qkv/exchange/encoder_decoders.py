"""Encoder-decoders of Hugging Face: Marian, Pegasus, BART and T5."""

from __future__ import annotations

from dataclasses import replace

from qkv.exchange.architecture import (
    BOTH,
    POST,
    PRE,
    Architecture,
    Table,
    Variant,
    as_row,
    names,
    qkv,
    rolled,
    same,
)  # fmt: skip

_SIZES = names(
    vocabulary="vocab_size", width="d_model", heads="encoder_attention_heads decoder_attention_heads",
    layers="encoder_layers", decoder_layers="decoder_layers", feedforward="encoder_ffn_dim decoder_ffn_dim",
    embedding_scale="scale_embedding",
)  # fmt: skip
_DEFAULTS = {
    "vocab_size": 50265, "d_model": 1024, "encoder_attention_heads": 16, "decoder_attention_heads": 16,
    "encoder_layers": 12, "decoder_layers": 12, "encoder_ffn_dim": 4096, "decoder_ffn_dim": 4096,
    "scale_embedding": False, "max_position_embeddings": 1024, "activation_function": "gelu",
    "tie_word_embeddings": True, "normalize_before": False,
}  # fmt: skip
_PARTS = {**BOTH, "norm": "layer", "scale": "sqrt", "bias": True, "norm_eps": 1e-5, "output_scale": False,
          "output_bias": True}  # fmt: skip
_ALIASES = {
    "@encoder.embed_tokens.weight": "@shared.weight",
    "@decoder.embed_tokens.weight": "@shared.weight",
    "lm_head.weight": "@shared.weight",
}


def _attention(ours: str, theirs: str) -> Table:
    return {
        ours: qkv(*(f"{theirs}.{name}_proj" for name in "qkv")),
        ours.replace("project", "output"): same(f"{theirs}.out_proj"),
    }


def _stack(side: str) -> Table:
    """One side, by the names that Marian, Pegasus and BART share."""
    ours, theirs = side + ".blocks.{i}.", f"@{side}." + "layers.{i}."
    table = {
        **_attention(ours + "attention.project", theirs + "self_attn"),
        ours + "attention_residual.norm": same(theirs + "self_attn_layer_norm"),
        ours + "feed.inner": same(theirs + "fc1"),
        ours + "feed.output": same(theirs + "fc2"),
        ours + "feed_residual.norm": same(theirs + "final_layer_norm"),
        f"{side}.final_norm": same(f"@{side}.layer_norm"),
        f"{side}.embedding_norm": same(f"@{side}.layernorm_embedding"),
        f"{side}.positions.table": rolled(f"@{side}.embed_positions.weight", 2),
    }
    if side == "decoder":
        table |= _attention(ours + "cross.project", theirs + "encoder_attn")
        table[ours + "cross_residual.norm"] = same(theirs + "encoder_attn_layer_norm")
    return table


_WEIGHTS: Table = {
    "embedding.table_VD": same("@shared.weight"),
    **_stack("encoder"),
    **_stack("decoder"),
    "words.bias": as_row("final_logits_bias"),
    "words.weight": same("lm_head.weight"),
}
_SINUSOIDS = {f"@{side}.embed_positions.weight": lambda c: (c.context, c.width) for side in ("encoder", "decoder")}

_TIED = {"all": {"tie_word_embeddings": True}}
_OWN_TABLES = {
    "embedding.table_VD": same("@encoder.embed_tokens.weight"),
    "target.table_VD": same("@decoder.embed_tokens.weight"),
}


def _untied(architecture: Architecture) -> Architecture:
    """The same with three tables of words. Their files then hold a fourth, `shared`, that nothing reads."""
    return replace(
        architecture,
        tied={"none": {**architecture.tied["all"], "tie_word_embeddings": False}},
        weights=architecture.weights | _OWN_TABLES,
        aliases={},
        idle={"@shared.weight": "@encoder.embed_tokens.weight"},
    )


MARIAN = Architecture(
    kind="marian",
    ids={"pad_token_id": -1, "decoder_start_token_id": -1, "eos_token_id": 0, "forced_eos_token_id": None},
    body="model.",
    variants=(Variant("MarianModel", "none"), Variant("MarianMTModel", "tokens")),
    parts={**_PARTS, **POST, "positions": "sinusoidal", "embedding_norm": False},
    keys={**_SIZES, "context": ("max_position_embeddings",)},
    defaults={**_DEFAULTS, "vocab_size": 58101, "share_encoder_decoder_embeddings": True, "decoder_vocab_size": None},
    demands={"normalize_before": False},
    activation=("activation_function",),
    weights=_WEIGHTS,
    tied={"all": {"tie_word_embeddings": True, "share_encoder_decoder_embeddings": True}},
    sinusoids=_SINUSOIDS,
    recomputed_by=("MarianMTModel",),
    aliases=_ALIASES,
)
MARIAN_UNTIED = _untied(MARIAN)
MARIAN_OF_TWO = replace(  # a vocabulary for each side
    MARIAN,
    keys={**MARIAN.keys, "target_vocabulary": ("decoder_vocab_size",)},
    weights=_WEIGHTS | _OWN_TABLES,
    tied={
        "output": {"tie_word_embeddings": True, "share_encoder_decoder_embeddings": False},
        "none": {"tie_word_embeddings": False, "share_encoder_decoder_embeddings": False},
    },
    aliases={"lm_head.weight": "@decoder.embed_tokens.weight"},
)
PEGASUS = Architecture(
    kind="pegasus",
    ids={"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1, "forced_eos_token_id": None},
    body="model.",
    variants=(Variant("PegasusModel", "none"), Variant("PegasusForConditionalGeneration", "tokens")),
    parts={**_PARTS, **PRE, "positions": "sinusoidal", "embedding_norm": False},
    keys={**_SIZES, "context": ("max_position_embeddings",)},
    defaults=_DEFAULTS,
    demands={},
    activation=("activation_function",),
    weights=_WEIGHTS,
    tied=_TIED,
    sinusoids=_SINUSOIDS,
    aliases=_ALIASES,
)
PEGASUS_UNTIED = _untied(PEGASUS)
BART = Architecture(
    kind="bart",
    ids={
        "bos_token_id": 0,
        "pad_token_id": 1,
        "decoder_start_token_id": 2,
        "eos_token_id": 2,
        "forced_eos_token_id": None,
    },
    body="model.",
    variants=(Variant("BartModel", "none"), Variant("BartForConditionalGeneration", "tokens")),
    parts={**_PARTS, **POST, "positions": "learned", "embedding_norm": True},
    keys={**_SIZES, "context": ("max_position_embeddings",)},
    defaults=_DEFAULTS,
    demands={"normalize_before": False},
    activation=("activation_function",),
    weights=_WEIGHTS,
    tied=_TIED,
    context_offset=2,
    aliases=_ALIASES,
)
BART_UNTIED = _untied(BART)


def _t5_stack(side: str) -> Table:
    ours, theirs = side + ".blocks.{i}.", side + ".block.{i}.layer."
    last = "2." if side == "decoder" else "1."
    table = {
        ours + "attention.project": qkv(*(theirs + f"0.SelfAttention.{name}" for name in "qkv")),
        ours + "attention.output": same(theirs + "0.SelfAttention.o"),
        ours + "attention_residual.norm": same(theirs + "0.layer_norm"),
        ours + "feed.inner": same(theirs + last + "DenseReluDense.wi"),
        ours + "feed.output": same(theirs + last + "DenseReluDense.wo"),
        ours + "feed_residual.norm": same(theirs + last + "layer_norm"),
        f"{side}.positions.table": same(f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"),
        f"{side}.final_norm": same(f"{side}.final_layer_norm"),
    }
    if side == "decoder":
        table[ours + "cross.project"] = qkv(*(theirs + f"1.EncDecAttention.{name}" for name in "qkv"))
        table[ours + "cross.output"] = same(theirs + "1.EncDecAttention.o")
        table[ours + "cross_residual.norm"] = same(theirs + "1.layer_norm")
    return table


T5 = Architecture(
    kind="t5",
    ids={"pad_token_id": 0, "decoder_start_token_id": 0, "eos_token_id": 1},
    body="",
    variants=(Variant("T5Model", "none"), Variant("T5ForConditionalGeneration", "tokens")),
    parts={
        **BOTH, **PRE, "norm": "rms", "scale": "none", "bias": False, "positions": "t5", "embedding_norm": False,
        "embedding_scale": False, "output_bias": False,
    },
    keys=names(
        vocabulary="vocab_size", width="d_model", heads="num_heads", head_width="d_kv", layers="num_layers",
        decoder_layers="num_decoder_layers", feedforward="d_ff", norm_eps="layer_norm_epsilon",
        buckets="relative_attention_num_buckets", reach="relative_attention_max_distance",
        output_scale="scale_decoder_outputs",
    ),
    defaults={
        "vocab_size": 32128, "d_model": 512, "num_heads": 8, "d_kv": 64, "num_layers": 6, "num_decoder_layers": None,
        "d_ff": 2048, "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128, "feed_forward_proj": "relu", "tie_word_embeddings": True,
    },
    demands={},
    activation=("feed_forward_proj",),
    weights={
        "embedding.table_VD": same("shared.weight"),
        **_t5_stack("encoder"),
        **_t5_stack("decoder"),
        "words.weight": same("lm_head.weight"),
    },
    tied=_TIED | {"inputs": {"tie_word_embeddings": False}},
    aliases={
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
        "lm_head.weight": "shared.weight",
    },
)  # fmt: skip

ENCODER_DECODERS = (MARIAN, MARIAN_UNTIED, MARIAN_OF_TWO, PEGASUS, PEGASUS_UNTIED, BART, BART_UNTIED, T5)
