"""The added layer starts as the mean of all tokens, whatever the padding, and leaves as a Hugging Face model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from qkv.config.recipe import ModelConfig, Recipe
from qkv.data.batch import Padded
from qkv.exchange.hf import is_exportable
from qkv.model.build import build_model
from qkv.model.transformer import Encoder, text_vectors
from qkv.schema import UserError
from qkv.training.pooling_layer import MEAN_OVER_FIRST, start_as_mean, with_pooling_layer

ENCODER = ModelConfig(vocabulary=31, width=20, heads=2, layers=2, feedforward=28, positions="rotary",
                      embedding_norm=True, segments=2)  # fmt: skip


@pytest.mark.parametrize("pooler", ["none", "gelu", "tanh"])
def test_it_starts_as_the_normalised_mean(pooler: str) -> None:
    config = with_pooling_layer(ENCODER, Path("x")).replace(head="classification", pooler=pooler)
    model = build_model(config, seed=3).eval()
    start_as_mean(model, config)
    assert isinstance(model, Encoder)
    padded = Padded.of([[1, 2, 3, 4, 5, 6, 7], [8, 9, 10]], [[0] * 7, [0] * 3])
    with torch.no_grad():
        found = text_vectors(model, padded.tokens_BL, padded.keep_BL, padded.segments_BL)
        below = build_model(config.replace(layers=2, head="none", pooler="none"), seed=3).eval()
        for row, (length, tokens) in enumerate(((7, [1, 2, 3, 4, 5, 6, 7]), (3, [8, 9, 10]))):
            hidden_LD = below(torch.tensor([tokens]), segments_BL=torch.zeros(1, length, dtype=torch.long))[0]
            mean = F.layer_norm(hidden_LD[0] + MEAN_OVER_FIRST * hidden_LD.mean(0), (20,))
            wanted = {"none": mean, "gelu": F.gelu(mean + 5.0), "tanh": torch.tanh(0.5 * mean)}[pooler]
            torch.testing.assert_close(found[row], wanted, atol=1e-5, rtol=1e-4)


def test_every_weight_of_the_layer_can_learn_but_those_behind_a_zero() -> None:
    config = with_pooling_layer(ENCODER, Path("x")).replace(head="classification", pooler="gelu")
    model = build_model(config, seed=3)
    start_as_mean(model, config)
    assert isinstance(model, Encoder)
    text_vectors(model, torch.tensor([[1, 2, 3, 4]]), None, None)[:, :3].sum().backward()
    gradients = {name: weight.grad for name, weight in model.stack.blocks[2].named_parameters()}
    _, keys, values = gradients["attention.project.weight"].split(20)  # type: ignore[union-attr]
    assert keys.abs().sum() > 0
    assert values.abs().sum() > 0
    assert gradients["feed.output.weight"].abs().sum() > 0  # type: ignore[union-attr]


def test_it_can_be_exported() -> None:
    config = with_pooling_layer(ENCODER, Path("x")).replace(head="classification", pooler="gelu")
    assert is_exportable(config)
    assert config.layers == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"norm_place": "pre"}, "model.norm_place = 'post'"),
        ({"family": "decoder", "segments": 0}, "model.family = 'encoder'"),
    ],
)
def test_other_models_are_refused(changed: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        with_pooling_layer(ENCODER.replace(**changed), Path("x"))


def test_the_recipe_says_what_it_needs() -> None:
    with pytest.raises(UserError, match="init"):
        Recipe.read({"train": {"pooling_layer": True}}).check()
    with pytest.raises(UserError, match="fit_head"):
        Recipe.read({"train": {"epochs": 0}}).check()
