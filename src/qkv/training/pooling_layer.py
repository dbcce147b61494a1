"""A layer on top of a pre-trained encoder that starts as mean pooling.

Attention with equal scores is a mean: where all keys are zero, every token has the same weight. So an encoder with one
more layer, read at its first token, starts as the mean of its tokens, which for most pre-trained encoders says more
about a text than [CLS] does (Reimers and Gurevych, 2019). Unlike a mean outside of the model it is part of a Hugging
Face architecture, and training can turn it into any other attention.

D width
"""

from __future__ import annotations

from pathlib import Path

import torch

from qkv.config.recipe import ModelConfig
from qkv.model.attention import Attention
from qkv.model.layers import FeedForward
from qkv.model.transformer import Encoder, Model
from qkv.schema import UserError

MEAN_OVER_FIRST = 100.0  # how much the mean outweighs the first token, which the residual connection adds to it
# Slope and offset of the pooler's input that keep most of a normalised vector. A smaller slope would make tanh more
# linear, but the layer would then change ten times as fast in training, relative to its size.
LINEAR_PART = {"tanh": (0.5, 0.0), "relu": (1.0, 5.0), "gelu": (1.0, 5.0)}


def with_pooling_layer(config: ModelConfig, path: Path) -> ModelConfig:
    """A pre-trained encoder's config with one more layer."""
    wanted = {"family": "encoder", "norm": "layer", "norm_place": "post", "residual": True, "score": "dot"}
    for key, accepted in wanted.items():
        found = getattr(config, key)
        if found != accepted:
            raise UserError(f"train.pooling_layer needs model.{key} = {accepted!r}; {path} has {found!r}")
    full = config.resolve()
    if full.kv_heads * full.head_width != full.width or full.heads != full.kv_heads:
        raise UserError(
            f"train.pooling_layer needs heads x head_width = width and no shared key heads; not so in {path}"
        )
    return config.replace(layers=config.layers + 1)


@torch.no_grad()
def start_as_mean(model: Model, config: ModelConfig) -> None:
    """Set the last layer so that its first token is the normalised mean of all tokens, and the pooler so that it hardly
    changes that. Queries and the first half of the feed-forward part stay random: from there the layer can learn."""
    assert isinstance(model, Encoder), "with_pooling_layer has checked it"
    block, width = model.stack.blocks[-1], config.width
    attention, feed = block.attention, block.feed
    assert isinstance(attention, Attention)
    assert isinstance(feed, FeedForward)
    _, keys_DD, values_DD = attention.project.weight.split(width)
    keys_DD.zero_()
    values_DD.copy_(MEAN_OVER_FIRST * torch.eye(width))
    attention.output.weight.copy_(torch.eye(width))
    feed.output.weight.zero_()
    if model.text is not None and model.text.dense is not None:
        slope, offset = LINEAR_PART[config.pooler]
        model.text.dense.weight.copy_(slope * torch.eye(width))
        model.text.dense.bias.fill_(offset)
