"""The splits of a dataset, and what one run may read of them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from fairssl import kinds
from fairssl.data.sampling import annotated_subset
from fairssl.spec.run import DataSpec
from fairssl.types import Progress, Splits, UserError, silent


@dataclass(frozen=True)
class RunData:
    """What one run reads: the splits, and which training images are annotated, that is whose group its parts may see.

    `annotated` int64 (n_annotated,): positions in the training split, ascending.
    """

    splits: Splits
    annotated: np.ndarray

    @cached_property
    def visible_group(self) -> np.ndarray:
        """int64 (N,): the group of each training image, -1 outside the annotated subset."""
        visible = np.full(len(self.splits.train), -1, dtype=np.int64)
        visible[self.annotated] = self.splits.train.group[self.annotated]
        return visible

    @cached_property
    def split_hash(self) -> str:
        """16 hex digits over the ids, targets and groups of the three splits, in order: equal splits, equal hash."""
        whole = hashlib.sha256()
        for split in (self.splits.train, self.splits.val, self.splits.test):
            whole.update("\0".join(split.ids).encode("utf-8", "surrogateescape") + b"\n")
            whole.update(split.target.tobytes() + split.group.tobytes())
        return whole.hexdigest()[:16]

    @cached_property
    def annotated_hash(self) -> str:
        """16 hex digits over the ids of the annotated images."""
        ids = "\0".join(self.splits.train.ids[row] for row in self.annotated)
        return hashlib.sha256(ids.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def run_data(splits: Splits, attribute: str, share: float | None, seed: int) -> RunData:
    """The splits with the annotated subset of a seed: `share` of the training images, in (0, 1]; None: none of them."""
    if share is None:
        return RunData(splits, np.zeros(0, dtype=np.int64))
    return RunData(splits, annotated_subset(splits.train.group, len(splits.groups), share, attribute, seed))


def load_splits(data: DataSpec, root: Path | None, progress: Progress = silent) -> Splits:
    """The splits that a spec names, checked. `root`: where the dataset lies; None for embedded data."""
    source = kinds.datasets.build(data.dataset, data.params)
    splits = source.load(root, data.target, data.attribute, data.image_size, data.split_seed, progress)
    check_splits(data, splits)
    return splits


class SplitsCache:
    """The splits of the last (dataset, target, attribute, size): a grid is run in that order."""

    def __init__(self, roots: Mapping[str, Path | None], progress: Progress = silent):
        self.roots, self.progress = roots, progress
        self._key: object = None
        self._splits: Splits | None = None

    def get(self, data: DataSpec) -> Splits:
        """The splits of `data`, loaded unless they are those of the last call."""
        key = data.canonical_json
        if self._splits is None or key != self._key:
            self._splits = None  # free the last one first
            self._splits = load_splits(data, self.roots[data.dataset], self.progress)
            self._key = key
        return self._splits


def check_splits(data: DataSpec, splits: Splits) -> None:
    """What no run can do without: both classes in training, two groups in the training set."""
    targets = np.unique(splits.train.target)
    if len(targets) < 2:
        raise UserError(f"target {data.target!r} has one value ({targets[0]}) in the training split of {data.dataset}")
    groups = np.unique(splits.train.group[splits.train.group >= 0])
    if len(groups) < 2:
        raise UserError(
            f"attribute {data.attribute!r} has one value in the training split of {data.dataset}; nothing to compare"
        )
