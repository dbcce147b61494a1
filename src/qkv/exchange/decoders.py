"""Decoders of Hugging Face: GPT-2, Llama."""

from __future__ import annotations

from qkv.config.recipe import TEXT_HEADS
from qkv.exchange.architecture import (
    DECODER,
    TIED_OUTPUT,
    UNTIED,
    Architecture,
    Variant,
    names,
    qkv,
    same,
    same_names,
    stacked,
    transposed,
)  # fmt: skip

GPT2 = Architecture(
    kind="gpt2",
    ids={"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
    body="transformer.",
    variants=(
        Variant("GPT2Model", "none"),
        Variant("GPT2LMHeadModel", "tokens"),
        *(
            Variant("GPT2ForSequenceClassification", head, weights=same_names(text__output="score"))
            for head in TEXT_HEADS
        ),
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
    tied=TIED_OUTPUT | UNTIED,
    aliases={"lm_head.weight": "@wte.weight"},
)  # fmt: skip

_LLAMA = "@layers.{i}."
LLAMA = Architecture(
    kind="llama",
    ids={"bos_token_id": None, "eos_token_id": None, "pad_token_id": None},
    body="model.",
    variants=(
        Variant("LlamaModel", "none"),
        Variant("LlamaForCausalLM", "tokens"),
        *(
            Variant("LlamaForSequenceClassification", head, weights=same_names(text__output="score"))
            for head in TEXT_HEADS
        ),
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
    tied=TIED_OUTPUT | UNTIED,
    aliases={"lm_head.weight": "@embed_tokens.weight"},
)  # fmt: skip

DECODERS = (GPT2, LLAMA)
