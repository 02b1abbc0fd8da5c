"""The only door for plugin authors. Names are loaded when first used, so that torch-free plugins stay so."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairssl.data.archives import archives_in, contents_of, download_fault, subfolders
    from fairssl.data.decoded import decoded_images
    from fairssl.data.files import ImageFiles, hashed_order, random_parts, short_id
    from fairssl.data.tables import TableConfig, TableDataset
    from fairssl.interfaces import Dataset, DatasetConfig, PluginConfig, metric
    from fairssl.parts import Encoder, Head, HeadConfig, Objective, Part
    from fairssl.types import (
        Batch,
        Card,
        Context,
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
        printable,
        silent,
    )

_FROM = {
    "fairssl.data.decoded": ("decoded_images",),
    "fairssl.data.archives": ("archives_in", "contents_of", "download_fault", "subfolders"),
    "fairssl.data.files": ("ImageFiles", "hashed_order", "random_parts", "short_id"),
    "fairssl.data.tables": ("TableConfig", "TableDataset"),
    "fairssl.parts": ("Encoder", "Head", "HeadConfig", "Objective", "Part"),
    "fairssl.interfaces": ("Dataset", "DatasetConfig", "PluginConfig", "metric"),
    "fairssl.types": [
        "Batch",
        "Card",
        "Context",
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
        "printable",
        "silent",
    ],
}
_WHERE = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "Batch",
    "Card",
    "Context",
    "DataFacts",
    "Dataset",
    "DatasetConfig",
    "Defaults",
    "Embeddings",
    "Encoder",
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
    "TableConfig",
    "TableDataset",
    "Terms",
    "Undefined",
    "UserError",
    "Value",
    "archives_in",
    "contents_of",
    "decoded_images",
    "download_fault",
    "hashed_order",
    "metric",
    "printable",
    "random_parts",
    "short_id",
    "silent",
    "subfolders",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"fairssl.api has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_WHERE[name]), name)
