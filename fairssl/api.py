"""The only door for plugin authors. Names are loaded when first used, so that torch-free plugins stay so."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairssl.data.decoded import decoded_images
    from fairssl.data.files import ImageFiles, download_fault, hashed_order, short_id
    from fairssl.interfaces import Dataset, PluginConfig, metric
    from fairssl.parts import Classifier, Encoder, GroupDiscriminator, Head, HeadConfig, Objective, Part
    from fairssl.types import (
        Batch,
        Card,
        Context,
        Crops,
        DataFacts,
        Defaults,
        Embeddings,
        Method,
        Outcome,
        Progress,
        Split,
        Splits,
        Stream,
        Terms,
        Undefined,
        UserError,
        Value,
        silent,
    )

_FROM = {
    "fairssl.data.decoded": ("decoded_images",),
    "fairssl.data.files": ("ImageFiles", "download_fault", "hashed_order", "short_id"),
    "fairssl.parts": ("Classifier", "Encoder", "GroupDiscriminator", "Head", "HeadConfig", "Objective", "Part"),
    "fairssl.interfaces": ("Dataset", "PluginConfig", "metric"),
    "fairssl.types": [
        "Batch",
        "Card",
        "Context",
        "Crops",
        "DataFacts",
        "Defaults",
        "Embeddings",
        "Method",
        "Outcome",
        "Progress",
        "Split",
        "Splits",
        "Stream",
        "Terms",
        "Undefined",
        "UserError",
        "Value",
        "silent",
    ],
}
_WHERE = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "Batch",
    "Card",
    "Classifier",
    "Context",
    "Crops",
    "DataFacts",
    "Dataset",
    "Defaults",
    "Embeddings",
    "Encoder",
    "GroupDiscriminator",
    "Head",
    "HeadConfig",
    "ImageFiles",
    "Method",
    "Objective",
    "Outcome",
    "Part",
    "PluginConfig",
    "Progress",
    "Split",
    "Splits",
    "Stream",
    "Terms",
    "Undefined",
    "UserError",
    "Value",
    "decoded_images",
    "download_fault",
    "hashed_order",
    "metric",
    "short_id",
    "silent",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"fairssl.api has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_WHERE[name]), name)
