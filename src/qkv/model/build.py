"""From a config to a model: the only file of this room that reads a config. Parts are chosen by name in tables.

A model is first laid out without memory, counted, and only then allocated and given its initial weights. The
base model has 63,082,496 weights with a vocabulary of 37,000 shared tokens (measured by `qkv lab count`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from qkv.config.recipe import ModelConfig
from qkv.model.attention import Attention
from qkv.model.heads import TextHead, TokenHead, Transform
from qkv.model.layers import GATED, NORMS, Block, FeedForward, Residual
from qkv.model.positions import T5, Alibi, Learned, NoPositions, Positions, Relative, Rotary, Sinusoidal
from qkv.model.transformer import Decoder, Embedding, Encoder, EncoderDecoder, Model, Stack
from qkv.runtime import memory_bytes
from qkv.schema import UserError
from qkv.streams import number_of, seed_for

POSITIONS: dict[str, Callable[[ModelConfig, int, bool], Positions]] = {
    "none": lambda c, layers, causal: NoPositions(),
    "sinusoidal": lambda c, layers, causal: Sinusoidal(),
    "learned": lambda c, layers, causal: Learned(c.context, c.width),
    "relative": lambda c, layers, causal: Relative(layers, c.reach, c.head_width),
    "t5": lambda c, layers, causal: T5(c.heads, c.buckets, c.reach, causal),
    "alibi": lambda c, layers, causal: Alibi(c.heads),
    "rotary": lambda c, layers, causal: Rotary(c.rotary_base, c.head_width),
}


def build_model(config: ModelConfig, *, seed: int = 0, dropout: float = 0.0, attention_dropout: float = 0.0) -> Model:
    """A model with initial weights that depend on the seed and on each weight's name only."""
    model = lay_out(config, dropout=dropout, attention_dropout=attention_dropout)
    needed = sum(weight.nbytes for weight in model.parameters())
    if needed > memory_bytes():
        sizes = f"{needed / 2**30:,.1f} GiB; this machine has {memory_bytes() / 2**30:,.1f} GiB of memory"
        raise UserError(f"the weights of this model take {sizes}")
    model.to_empty(device="cpu")
    initialise(model, config, seed)
    return model


def lay_out(
    config: ModelConfig, *, dropout: float = 0.0, attention_dropout: float = 0.0, device: str = "meta"
) -> Model:
    """The model before it has weights. On the meta device it takes no memory: to count, or to load weights into."""
    if config.vocabulary == 0:
        raise UserError(
            "model.vocabulary is 0, to be taken from a tokenizer, and there is none here; "
            "set it, for example model.vocabulary=8000"
        )
    full = config.resolve()
    with torch.device(device):
        embedding = Embedding(
            vocabulary=full.vocabulary, width=full.width, segments=full.segments, scaled=full.embedding_scale
        )
        stack = partial(_build_stack, full, dropout=dropout, attention_dropout=attention_dropout)
        words, text = _build_tokens(full), _build_text(full, dropout)
        if full.family == "encoder":
            return Encoder(embedding, stack(layers=full.layers), words, text)
        if full.family == "decoder":
            return Decoder(embedding, stack(layers=full.layers, causal=True), words, text)
        target = Embedding(vocabulary=full.target_vocabulary, width=full.width, segments=0, scaled=full.embedding_scale)
        decoder = stack(layers=full.decoder_layers, causal=True, cross=True)
        return EncoderDecoder(
            embedding, None if full.tied in ("all", "inputs") else target, stack(layers=full.layers), decoder, words
        )


def _build_stack(
    c: ModelConfig, *, layers: int, dropout: float, attention_dropout: float, causal: bool = False, cross: bool = False
) -> Stack:
    attention = partial(
        Attention,
        width=c.width,
        heads=c.heads,
        kv_heads=c.kv_heads,
        head_width=c.head_width,
        score=c.score,
        scale=c.scale,
        bias=c.bias,
        dropout=attention_dropout,
    )

    def residual() -> Residual:
        return Residual(norm=_build_norm(c), place=c.norm_place, residual=c.residual, dropout=dropout)

    def block(layer: int) -> Block:
        feed = FeedForward(width=c.width, feedforward=c.feedforward, activation=c.activation, bias=c.bias)
        return Block(
            layer=layer, attention=attention(), cross=attention() if cross else None, feed=feed, residual=residual
        )

    return Stack(
        blocks=[block(layer) for layer in range(layers)],
        positions=POSITIONS[c.positions](c, layers, causal),
        causal=causal,
        embedding_norm=_build_norm(c) if c.embedding_norm else nn.Identity(),
        final_norm=_build_norm(c) if c.final_norm else nn.Identity(),
        dropout=dropout,
    )


def _build_norm(c: ModelConfig) -> nn.Module:
    return NORMS[c.norm](c.width, c.norm_eps, c.bias)


def _build_tokens(c: ModelConfig) -> TokenHead | None:
    if c.head not in ("tokens", "pretraining"):
        return None
    transform: nn.Module = nn.Identity()
    if c.family == "encoder":
        transform = Transform(
            width=c.width, activation="silu" if c.activation == "swiglu" else c.activation, norm=_build_norm(c)
        )
    vocabulary = c.target_vocabulary or c.vocabulary
    tied = c.tied in ("output", "all")
    return TokenHead(
        width=c.width, vocabulary=vocabulary, tied=tied, bias=c.output_bias, scaled=c.output_scale, transform=transform
    )


def _build_text(c: ModelConfig, dropout: float) -> TextHead | None:
    outputs = {"pretraining": 2, "classification": c.classes, "regression": 1}.get(c.head, 0)
    if not outputs and c.pooler == "none":
        return None
    bias = c.family == "encoder"  # GPT-2's and Llama's classifiers have none
    return TextHead(width=c.width, pool=c.pool, pooler=c.pooler, outputs=outputs, bias=bias, dropout=dropout)


@torch.no_grad()
def initialise(model: Model, config: ModelConfig, seed: int) -> None:
    """Give every weight its initial value. Each has a stream of its own, keyed by its name, so that adding a head or a
    layer leaves the others as they were.

    Biases 0; norms 1; maps inside layers with Xavier's variance 2 / (in + out) (Glorot and Bengio, 2010); tables and
    heads 0.02 (BERT, GPT-2), or width^-0.5 for embeddings that are scaled up.
    """
    c = config.resolve()
    for name, weight in model.named_parameters():
        generator = torch.Generator().manual_seed(seed_for(seed, "weights", index=number_of(name)))
        if weight.ndim == 1:
            weight.fill_(0.0 if name.endswith("bias") else 1.0)
        elif name.endswith("score.vector_HK"):
            weight.normal_(0.0, c.head_width**-0.5, generator=generator)
        elif ".blocks." in name:
            for rows in weight.split_with_sizes(_maps(name, weight, c)):
                rows.normal_(0.0, (2 / sum(rows.shape)) ** 0.5, generator=generator)
        else:
            scaled = name.endswith("table_VD") and c.embedding_scale
            weight.normal_(0.0, c.width**-0.5 if scaled else 0.02, generator=generator)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()


def _maps(name: str, weight: Tensor, c: ModelConfig) -> list[int]:
    """The rows of each map in a weight: queries, keys and values lie one below the other, and so do gate and value."""
    if name.endswith("project.weight"):
        return [c.heads * c.head_width, *2 * [c.kv_heads * c.head_width]]
    if name.endswith("feed.inner.weight") and c.activation in GATED:
        return 2 * [c.feedforward]
    return [len(weight)]
