"""The splits of a dataset, and what one run may read of them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from fairssl import kinds
from fairssl.data.overview import check_memory, inspect
from fairssl.data.places import out_of_memory, read_fault
from fairssl.interfaces import MIN_CELL, Dataset, check_label, combined, groups_of
from fairssl.spec.run import DataSpec
from fairssl.types import Card, Progress, Split, Splits, UserError, counted, printable, silent

PARTS = ("train", "val", "test")
FEW = 100  # images of a test cell, where the standard error of a rate is up to 5 points


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
    from fairssl.data.sampling import annotated_subset  # it brings torch, without which data can be looked at

    return RunData(splits, annotated_subset(splits.train.group, len(splits.groups), share, attribute, seed))


def load_splits(data: DataSpec, root: Path | None, progress: Progress = silent, min_cell: int | None = None) -> Splits:
    """The splits that a spec names: what is asked for is checked against the dataset's card, what comes back as
    `check_splits` does. `root`: where the dataset lies; None for embedded data. `min_cell`: default the dataset's own.

    File names that are no UTF-8 are escaped in ids and notes. Errors: `UserError`.
    """
    source = kinds.datasets.build(data.dataset, data.params)
    try:
        card = source.card_for(root)
        check_data(data, card)
        if card.embedded:
            check_memory(data.dataset, inspect(source, root), data.image_size)
        splits = _load(source, card, data, root, progress)
    except OSError as error:
        if isinstance(error, UserError):
            raise
        raise read_fault(data.dataset, error, root) from error
    except MemoryError as error:
        raise out_of_memory(data.dataset, error, data.image_size) from error
    few = min_cell_note(data, splits)
    check_splits(data, splits, getattr(source.config, "min_cell", MIN_CELL) if min_cell is None else min_cell)
    return replace(
        splits,
        **{part: _with_printable_ids(getattr(splits, part)) for part in PARTS},
        groups=tuple(map(printable, splits.groups)),
        notes=tuple(map(printable, (*splits.notes, *([few] if few else [])))),
        departures=tuple(map(printable, splits.departures)),
        positive=card.positive.get(data.target, data.target),
        ordered=data.attribute in card.ordered,
    )


def check_outline(
    source: Dataset,
    card: Card,
    data: DataSpec,
    root: Path | None,
    unreadable: Collection[str] = (),
    progress: Progress = silent,
) -> Splits | None:
    """Refuse splits that `load_splits` would refuse, as far as that is known without decoding; the splits without pixels,
    or None where the dataset tells nothing before it is loaded."""
    try:
        splits = source.outline(
            root, data.target, combined(card, data.attribute)[0], data.split_seed, unreadable, progress
        )
    except OSError as error:
        if isinstance(error, UserError):
            raise
        raise read_fault(data.dataset, error, root) from error
    if splits is None:
        _check_combination(source, card, data, root)
        return None
    splits = _with_all_groups(splits, card, data)
    check_splits(data, splits, getattr(source.config, "min_cell", MIN_CELL))
    return splits


def _check_combination(source: Dataset, card: Card, data: DataSpec, root: Path | None) -> None:
    """Refuse a combination of attributes of which no image at all has some target x group: then no test split has it."""
    names = combined(card, data.attribute)
    min_cell: int = getattr(source.config, "min_cell", MIN_CELL)
    labels = source.labels(root) if len(names) > 1 and min_cell else None
    if labels is None or not {data.target, *names} <= labels.keys():
        return
    target, sizes = labels[data.target], [len(card.attributes[name]) for name in names]
    codes = np.stack([labels[name] for name in names])
    known = (codes >= 0).all(axis=0)
    groups = np.ravel_multi_index(tuple(codes[:, known]), tuple(sizes))
    for y, (a, group) in itertools.product((0, 1), enumerate(groups_of(card, data.attribute))):
        if not ((target[known] == y) & (groups == a)).any():
            raise UserError(small_cell(data, 0, y, group, min_cell))


def _load(source: Dataset, card: Card, data: DataSpec, root: Path | None, progress: Progress) -> Splits:
    """The splits as the dataset has them; for a combination of attributes those of the first, with the groups of all."""
    first = combined(card, data.attribute)[0]
    splits = source.load(root, data.target, first, data.image_size, data.split_seed, progress)
    return _with_all_groups(splits, card, data)


def _with_all_groups(splits: Splits, card: Card, data: DataSpec) -> Splits:
    """Splits with the groups of the first of the attributes combined -> with those of all."""
    others = combined(card, data.attribute)[1:]
    for name in others:
        n_groups = len(card.attributes[name])
        train, val, test = (crossed(getattr(splits, part), name, n_groups, data) for part in PARTS)
        splits = replace(splits, train=train, val=val, test=test)
    if not others:
        return splits
    first = combined(card, data.attribute)[0]  # the dataset was asked for it alone, and speaks of it

    def told(texts: Sequence[str]) -> tuple[str, ...]:
        return tuple(text.replace(" x group", f" x {first}") for text in texts)

    splits = replace(splits, groups=groups_of(card, data.attribute), departures=told(splits.departures))
    return replace(splits, notes=(*told(splits.notes), _sizes_of_combinations(data, splits)))


def _sizes_of_combinations(data: DataSpec, splits: Splits) -> str:
    """What a combination's cells hold, since a dataset balances at most the groups of one attribute."""
    ranges = []
    for part, what in (("val", "validation"), ("test", "test")):
        counts = _cell_counts(getattr(splits, part), len(splits.groups))
        ranges.append(f"{counts.min():,} to {counts.max():,} {what} images")
    return f"combination: {' and '.join(ranges)} of each {data.target} x {data.attribute}"


def crossed(split: Split, name: str, n_groups: int, data: DataSpec) -> Split:
    """The split with every group crossed with that of another attribute; unknown (-1) where either is."""
    if name not in split.attributes:
        raise UserError(
            f"--attr {data.attribute!r}: {data.dataset} does not say which {name} an image has that it chose by another "
            "attribute; name one attribute"
        )
    other = split.attributes[name]
    known = (split.group >= 0) & (other >= 0)
    return replace(split, group=np.where(known, split.group * n_groups + other, -1))


def _with_printable_ids(split: Split) -> Split:
    return split if all(map(str.isprintable, split.ids)) else replace(split, ids=tuple(map(printable, split.ids)))


def check_data(data: DataSpec, card: Card) -> None:
    """Refuse what the card lacks, and what no dataset can give."""
    check_label("target", data.dataset, card, "target", data.target)
    check_label("attribute", data.dataset, card, "attribute", data.attribute)
    if data.target in combined(card, data.attribute):
        pair = f"target {data.target!r} and attribute {data.attribute!r}"
        raise UserError(f"{data.dataset}: {pair} look at the same label; choose two different ones")
    if data.split_seed < 0:
        raise UserError(f"{data.dataset}: split_seed {data.split_seed} is negative; use 0 or more")


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


def check_splits(data: DataSpec, splits: Splits, min_cell: int = 0) -> None:
    """Refuse what no run can do without: a binary target known for every image, with both classes in training; two known
    groups in every split; `min_cell` test images of every target x group; every id once. Groups may be unknown (-1)."""
    found = {part: getattr(splits, part) for part in PARTS}
    for part, split in found.items():
        if not {len(split.images), len(split.group), len(split.ids)} == {len(split)}:
            raise UserError(
                f"{data.dataset}: the {part} split has {counted(len(split.images), 'image')}, {counted(len(split), 'target')}, "
                f"{counted(len(split.group), 'group')} and {len(split.ids)} ids; it needs one of each per image"
            )
        if not len(split):
            raise UserError(f"{data.dataset}: the {part} split holds no image; add images, or choose another --target")
    _check_targets(data, found)
    for part, split in found.items():
        outside = np.setdiff1d(split.group, np.arange(-1, len(splits.groups)))
        if len(outside):
            raise UserError(
                f"{data.dataset}: attribute {data.attribute!r} has the group {outside[0]} in the {part} split; groups are "
                f"0 to {len(splits.groups) - 1}, and -1 where unknown"
            )
        if len(np.unique(split.group[split.group >= 0])) < 2:
            raise UserError(
                f"{data.dataset}: attribute {data.attribute!r} has fewer than two known groups in the {part} split "
                f"({counted(len(split), 'image')}); nothing to compare: choose another --attr, or add images"
            )
    n, target, group = smallest_cell(splits)
    if n < min_cell:
        raise UserError(small_cell(data, n, target, splits.groups[group], min_cell))
    ids = [name for split in found.values() for name in split.ids]
    if len(set(ids)) < len(ids):
        again = next(one for one, other in itertools.pairwise(sorted(ids)) if one == other)
        raise UserError(f"{data.dataset}: the id {printable(again)!r} is there twice; splits must be disjoint")


def _check_targets(data: DataSpec, found: Mapping[str, Split]) -> None:
    values = np.unique(np.concatenate([split.target for split in found.values()]))
    if len(np.setdiff1d(values, (0, 1))):
        shown = ", ".join(map(str, values[:10])) + (", ..." if len(values) > 10 else "")
        what = f"{len(values)} values ({shown})" if len(values) > 2 else f"the values {shown}"
        raise UserError(
            f"{data.dataset}: target {data.target!r} has {what}; a target is 0 or 1 for every image: choose another "
            "--target, or let the dataset offer one class against the others"
        )
    train = np.unique(found["train"].target)
    if len(train) < 2:
        raise UserError(
            f"{data.dataset}: target {data.target!r} has one value ({train[0]}) in the {len(found['train']):,} training "
            "images; choose another --target, or add images"
        )


def smallest_cell(splits: Splits) -> tuple[int, int, int]:
    """The target x group with the fewest test images: how many, its target, its group. Unknown groups are in no cell."""
    counts = _cell_counts(splits.test, len(splits.groups))
    return min((int(counts[y, a]), y, a) for y, a in np.ndindex(counts.shape))


def _cell_counts(split: Split, n_groups: int) -> np.ndarray:
    """int64 (2, G): images of each target x group."""
    cells = np.ndindex(2, n_groups)
    return np.array([((split.target == y) & (split.group == a)).sum() for y, a in cells]).reshape(2, n_groups)


def min_cell_note(data: DataSpec, splits: Splits) -> str:
    """What is said of a test split whose smallest target x group has fewer than `FEW` images; empty where none has."""
    n, target, group = smallest_cell(splits)
    if n >= FEW:
        return ""
    where = f"{data.target} = {target} and {data.attribute} = {splits.groups[group]}"
    if not n:
        return f"smallest test cell: no image of {where}; no rate of it is defined"
    return f"smallest test cell: {counted(n, 'image')} of {where}; a rate there moves by {50 / n**0.5:.0f} points by chance alone"


def small_cell(data: DataSpec, n: int, target: int, group: str, min_cell: int) -> str:
    """What is said of a test cell that is too small."""
    where = f"of {data.target} = {target} and {data.attribute} = {printable(group)!r}"
    if not n and data.attribute.count("+"):  # one of the attributes may follow from the others: no image has that
        return (
            f"{data.dataset}: no test image is {where}, so no gap over all groups is defined; combine other attributes, or "
            "choose one of them"
        )
    return (
        f"{data.dataset}: the test split has {counted(n, 'image')} {where}, fewer than {min_cell}: one image would move a "
        f"rate by {100 / max(n, 1):.0f} points. Add images, choose another --target or --attr, or lower it with "
        f"--set data.min_cell={n}"
    )
