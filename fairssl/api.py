"""The only door for plugin authors. Names are loaded when first used, so that torch-free plugins stay so.

A package offers plugins by an entry point of the group `fairssl.plugins` whose value is its import package, with a
sub-package for each kind: `objectives/`, `heads/`, `methods/`, `encoders/`, `datasets/`, `metrics/`. One file is one plugin,
and the file's name is the plugin's; files that begin with `_` are none. `fairssl new KIND NAME` writes such a package,
`fairssl check KIND NAME` holds a plugin to its contract, `fairssl doctor` imports them all and says what is broken.

**The promise.** `INTERFACE` is the version of this interface: the names below, what a plugin may override and is called
with, and what `fairssl.nn`, `fairssl.scoring` and `fairssl.testing` offer.

- It is raised by 1 whenever something is added that a plugin could come to need, or something is changed or taken away.
- A package says in its `__init__.py` which one it was written for, as `FAIRSSL_INTERFACE = 1` (a number written out: the
  file is read, not run). A fairssl that is older refuses the package in one line, and its other plugins work on; without
  that line nothing is refused, and what is missing shows when a plugin is imported.
- What is taken away or changes its meaning is announced in the changelog at least one release before, in which the old
  way still works. `OLDEST_INTERFACE` is the oldest that is still served; packages written for an older one are refused.
- What stands in other modules, and names that begin with `_`, may change at any time.
- Results are under `version`, not under this number: a change of fairssl's own that alters a run's numbers raises the
  `version` of the part, or of the loop, and stands in the changelog with before and after.

**Versions.** `version` of a part, an encoder or a dataset is in the key of every run that uses it: raise it when a change
alters results, and the runs are made anew. A metric's is written beside its values. A method has none: its parts have.

**Where -1 is allowed.** `group` of a `Split` may be -1 where an image's group is not known; a `target` may not. In the
stream "annotated" every image's group is known; in the stream "all" `Batch.group` is -1 outside the annotated images, also
where the dataset knows better. `Embeddings.target` and `.group`, which `Head.fit` gets, are -1 outside the annotated
images. A metric never meets -1: images without a group are not judged.

**Parameters.** A plugin's `Config` is filled by `--set NAME.parameter=value`: NAME is the name of an objective or a head.
`--set encoder.X` reaches the parameters of the encoder that is used, and `--set data.X` those of the datasets.

**Images.** `ImageFiles` lists the image files of a folder or a zip: names are relative to the deepest folder that holds
them all, with `/` between folders, sorted; of a folder, files down to `depth` (1) folders below it count. `decoded_images`
gives `DecodedImages`, whose `images` are memory-mapped: `images[2:5]` reads those alone and copies nothing, while
`images[rows]` with an array of row numbers copies the rows into memory, as NumPy does. For a split that is not a slice of
what was decoded, decode its names alone: `decoded_images(files, names[rows], ...)` keeps the order that is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from fairssl.registry import INTERFACE, OLDEST_INTERFACE

if TYPE_CHECKING:
    from fairssl.data.archives import archives_in, contents_of, download_fault, subfolders
    from fairssl.data.decoded import DecodedImages, decoded_images
    from fairssl.data.files import ImageFiles, hashed_order, random_parts, short_id
    from fairssl.data.table_dataset import TableConfig, TableDataset
    from fairssl.interfaces import Dataset, DatasetConfig, PluginConfig, metric
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
        counted,
        first_few,
        printable,
        silent,
    )

_FROM = {
    "fairssl.data.decoded": ("DecodedImages", "decoded_images"),
    "fairssl.data.archives": ("archives_in", "contents_of", "download_fault", "subfolders"),
    "fairssl.data.files": ("ImageFiles", "hashed_order", "random_parts", "short_id"),
    "fairssl.data.table_dataset": ("TableConfig", "TableDataset"),
    "fairssl.parts": ("Classifier", "Encoder", "GroupDiscriminator", "Head", "HeadConfig", "Objective", "Part"),
    "fairssl.interfaces": ("Dataset", "DatasetConfig", "PluginConfig", "metric"),
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
        "counted",
        "first_few",
        "printable",
        "silent",
    ],
}
_WHERE = {name: module for module, names in _FROM.items() for name in names}

__all__ = [
    "INTERFACE",
    "OLDEST_INTERFACE",
    "Batch",
    "Card",
    "Classifier",
    "Context",
    "Crops",
    "DataFacts",
    "Dataset",
    "DatasetConfig",
    "DecodedImages",
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
    "TableConfig",
    "TableDataset",
    "Terms",
    "Undefined",
    "UserError",
    "Value",
    "archives_in",
    "contents_of",
    "counted",
    "decoded_images",
    "download_fault",
    "first_few",
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
