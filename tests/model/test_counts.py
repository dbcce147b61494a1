"""Parameter counts: of the papers' models, and equal to those of the same models in Hugging Face's transformers.

A count catches a missing bias, a norm too many, an untied table, before any number is computed. Everything is laid out
on torch's meta device, which has shapes and no memory, so Llama's seven thousand million fit.
"""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is loaded: these tests must not touch the network

import pytest
import torch
import transformers
from torch import nn

from qkv.config import presets
from qkv.config.recipe import ModelConfig
from qkv.model import lay_out
from qkv.model.attention import Attention


def count(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert-base", 109_482_240),  # with the pooler
        ("bert-mini", 11_170_560),
        ("bert-tiny", 4_385_920),
        ("gpt2", 124_439_808),
        ("t5-small", 60_506_624),
        ("vaswani-base", 63_082_496),
        ("llama2-7b", 6_738_415_616),
    ],
)
def test_presets(name: str, expected: int) -> None:
    """The counts that the models are known by."""
    model = lay_out(presets.load(name))
    assert count(model) == expected
    assert all(weight.is_meta for weight in model.parameters()), "laying out must not take memory"


def test_one_attention_of_bert_base() -> None:
    """768 x 768 is 589,824; three of them for q, k and v; a fourth for the output; then four biases of 768."""
    parts = {"width": 768, "heads": 12, "kv_heads": 12, "head_width": 64, "score": "dot", "scale": "sqrt"}
    with torch.device("meta"):
        bare = Attention(**parts, bias=False, dropout=0.0)  # type: ignore[arg-type]
        biased = Attention(**parts, bias=True, dropout=0.0)  # type: ignore[arg-type]
    assert bare.output.weight.numel() == 589_824
    assert bare.project.weight.numel() == 3 * 589_824 == 1_769_472
    assert count(bare) == 2_359_296
    assert count(biased) == 2_362_368


def test_shared_key_value_heads_are_smaller() -> None:
    """With 4 of 12 key and value heads, the projection has (12 + 4 + 4) x 64 rows instead of 36 x 64."""
    config = ModelConfig.read({"vocabulary": 1, "width": 768, "heads": 12, "kv_heads": 4, "bias": False})
    project = lay_out(config).get_parameter("stack.blocks.0.attention.project.weight")
    assert project.shape == (20 * 64, 768)


def test_vaswani_base_by_hand() -> None:
    """37,000 x 512 shared embeddings; 6 x (4 maps + feed-forward + 2 norms); 6 x (8 maps + feed-forward + 3 norms)."""
    square, feed, norm = 512 * 512 + 512, 512 * 2048 + 2048 + 2048 * 512 + 512, 2 * 512
    by_hand = 37_000 * 512 + 6 * (4 * square + feed + 2 * norm) + 6 * (8 * square + feed + 3 * norm)
    assert by_hand == count(lay_out(presets.load("vaswani-base")))


def foreign(model: str, settings: str, **sizes: object) -> nn.Module:
    """A transformers model without memory, from its config class and its own names for sizes."""
    config = getattr(transformers, settings)(**sizes)
    with torch.device("meta"):
        built: nn.Module = getattr(transformers, model)(config)
    return built


@pytest.mark.parametrize("name", ["bert-base", "bert-mini", "bert-tiny"])
def test_bert(name: str) -> None:
    """BertModel, with its pooler."""
    c = presets.load(name)
    sizes = {
        "vocab_size": c.vocabulary, "max_position_embeddings": c.context, "type_vocab_size": c.segments,
        "hidden_size": c.width, "num_attention_heads": c.heads, "num_hidden_layers": c.layers,
        "intermediate_size": c.feedforward,
    }  # fmt: skip
    assert count(lay_out(c)) == count(foreign("BertModel", "BertConfig", **sizes))


def test_bert_with_its_pretraining_head() -> None:
    """BertForPreTraining: tokens (a dense layer, a norm, a bias for each token) and next sentence."""
    model = lay_out(presets.load("bert-base").replace(head="pretraining"))
    assert count(model) == count(foreign("BertForPreTraining", "BertConfig"))


@pytest.mark.parametrize("name", ["gpt2", "gpt-nano"])
def test_gpt2(name: str) -> None:
    """GPT2LMHeadModel, its output layer tied to its embeddings."""
    c = presets.load(name)
    sizes = {
        "vocab_size": c.vocabulary, "n_positions": c.context, "n_embd": c.width, "n_head": c.heads,
        "n_layer": c.layers, "n_inner": c.feedforward,
    }  # fmt: skip
    assert count(lay_out(c)) == count(foreign("GPT2LMHeadModel", "GPT2Config", **sizes))


@pytest.mark.parametrize("name", ["llama2-7b", "small-decoder"])
def test_llama(name: str) -> None:
    """LlamaForCausalLM: rotary positions have no parameters, and no map has a bias."""
    c = presets.load(name)
    sizes = {
        "vocab_size": c.vocabulary, "hidden_size": c.width, "num_attention_heads": c.heads,
        "num_hidden_layers": c.layers, "intermediate_size": c.feedforward, "tie_word_embeddings": c.tied != "none",
    }  # fmt: skip
    assert count(lay_out(c)) == count(foreign("LlamaForCausalLM", "LlamaConfig", **sizes))


def test_t5() -> None:
    """T5ForConditionalGeneration: one table of tokens, one of distances for each stack."""
    c = presets.load("t5-small")
    sizes = {
        "vocab_size": c.vocabulary, "d_model": c.width, "num_heads": c.heads, "d_kv": c.head_width,
        "d_ff": c.feedforward, "num_layers": c.layers, "relative_attention_num_buckets": c.buckets,
        "relative_attention_max_distance": c.reach, "feed_forward_proj": "relu",
    }  # fmt: skip
    assert count(lay_out(c)) == count(foreign("T5ForConditionalGeneration", "T5Config", **sizes))


def two_stacks(c: ModelConfig) -> dict[str, object]:
    """The sizes of a preset as Marian and BART call them."""
    sizes: dict[str, object] = {
        "vocab_size": c.vocabulary, "d_model": c.width, "max_position_embeddings": c.context,
    }  # fmt: skip
    for side in ("encoder", "decoder"):
        sizes |= {f"{side}_layers": c.layers, f"{side}_attention_heads": c.heads, f"{side}_ffn_dim": c.feedforward}
    return sizes


@pytest.mark.parametrize("name", ["marian-base", "vaswani-base", "vaswani-big", "small-translator"])
def test_marian(name: str) -> None:
    """MarianMTModel counts its sinusoids, a frozen table for each side, as parameters, and does not count its bias of
    the output tokens, a buffer. Ours has no table of sinusoids, and the bias, where there is one, is trained."""
    c = presets.load(name)
    model = foreign("MarianMTModel", "MarianConfig", **two_stacks(c), pad_token_id=c.vocabulary - 1)
    frozen = sum(weight.numel() for weight in model.parameters() if not weight.requires_grad)
    assert frozen == 2 * c.context * c.width
    assert model.get_buffer("final_logits_bias").numel() == c.vocabulary
    bias = c.vocabulary if c.output_bias else 0
    assert count(lay_out(c)) == count(model) - frozen + bias


def test_bart() -> None:
    """BartForConditionalGeneration adds two unused rows to each position table it is asked for; ours counts them in
    the context."""
    c = presets.load("bart-base")
    sizes = {**two_stacks(c), "max_position_embeddings": c.context - 2}
    model = foreign("BartForConditionalGeneration", "BartConfig", **sizes)
    assert model.get_parameter("model.encoder.embed_positions.weight").shape == (c.context, c.width)
    assert count(lay_out(c)) == count(model) == 139_420_416
