"""Models whose parts no Hugging Face architecture has: the same folder, with our own tensor names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from qkv.config.recipe import ModelConfig
from qkv.exchange.folder import Folder, ModelFiles
from qkv.model.build import lay_out
from qkv.model.transformer import Model
from qkv.schema import UserError

KIND = "qkv"  # our `model_type`


def write_native(model: Model, config: ModelConfig, carried: Mapping[str, Any]) -> ModelFiles:
    """A model under our own names; config.json holds our config."""
    said = {**carried, "model_type": KIND, "model": config.model_dump()}
    return ModelFiles(KIND, said, {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()})


@torch.no_grad()
def read_native(folder: Folder) -> tuple[Model, ModelConfig]:
    """A model under our own names. Names and shapes are compared with the config before any weight is read."""
    where = folder.path / "config.json"
    table = folder.config.get("model")
    if not isinstance(table, dict):
        raise UserError(f"{where}: model_type = {KIND!r} needs a table `model` with the keys of a recipe's [model]")
    config = ModelConfig.read(table, str(where))
    if config.layers + config.decoder_layers > len(folder.shapes):
        raise UserError(f"{where}: promises {config.layers} layers, but there are {len(folder.shapes)} tensors in all")
    model = lay_out(config)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    for name in sorted(expected.keys() | folder.shapes.keys()):
        found, wanted = folder.shapes.get(name), expected.get(name)
        if found != wanted:
            raise UserError(f"{folder.path}: tensor {name!r} has the shape {found}; its config.json promises {wanted}")
    buffers = {name for name, _ in model.named_buffers()}
    for name in expected:
        owner, _, leaf = name.rpartition(".")
        tensor = folder.tensor(name).clone()
        setattr(model.get_submodule(owner), leaf, tensor if name in buffers else nn.Parameter(tensor.float()))
    return model, config
