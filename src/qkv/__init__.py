"""qkv: the whole Transformer on the machine you have. Query: what I look for. Key: what I offer. Value: what I hold."""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = ["TransformerClassifier", "evaluate", "load", "train"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    """Public names are loaded on first use, so that importing the package does not load torch. Their types are in
    __init__.pyi."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("qkv.sklearn" if name == "TransformerClassifier" else "qkv.api"), name)
