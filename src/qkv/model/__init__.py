"""The Transformer itself, alone.

Read in this order: attention, positions, masks, layers, transformer, heads, cache, dropout, build.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from qkv.model.attention import Recorder, fused, plain
    from qkv.model.build import build_model, lay_out
    from qkv.model.cache import Cache
    from qkv.model.transformer import Decoder, Encoder, EncoderDecoder, Model

__all__ = [
    "Cache",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Model",
    "Recorder",
    "build_model",
    "fused",
    "lay_out",
    "plain",
]

_ROOM = {
    "Recorder": "attention",
    "fused": "attention",
    "plain": "attention",
    "build_model": "build",
    "lay_out": "build",
    "Cache": "cache",
}


def __getattr__(name: str) -> Any:
    """Public names are loaded on first use, so that importing the package does not load torch."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ROOM.get(name, 'transformer')}"), name)
