"""What a folder of images and a table of labels hold, before anything is trained: `fairssl data describe`."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairssl.data.columns import Column, Target
from fairssl.data.decoded import decode
from fairssl.data.files import UNREADABLE, ImageFiles, decode_reason, map_ahead, n_threads, telling
from fairssl.data.splits import check_outline, smallest_cell
from fairssl.data.table_dataset import DRAWN, TableDataset
from fairssl.machine import user_path
from fairssl.spec.method import one_name
from fairssl.spec.run import DataSpec
from fairssl.types import Card, Progress, Split, UserError, printable, silent

SHOWN = 20  # values of a column, or unreadable images, that are shown
LIKELY = (
    "gender",
    "sex",
    "male",
    "female",
    "race",
    "ethnicity",
    "skin",
    "skin_tone",
    "age",
    "young",
)  # to be sensitive


def describe(
    dataset: TableDataset,
    root: Path,
    target: str | None = None,
    attribute: str | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Everything about the images and the table as JSON values. Every image that has a row is read and decoded, none kept.

    `target` and `attribute` narrow the counts to one pair, and go into the command proposed, which else names the first
    target and the attribute that is most likely sensitive. It has been checked as `bench` checks it, on the splits that
    `bench` would draw; `command_note` says what had to be changed for that, or why there is no command. Errors: `UserError`.
    """
    with telling(progress):
        found = dataset.found(root)
        card = dataset.card_for(root)
        columns, targets, why = dataset.columns(found)
        unreadable = _unreadable(found.files, found.names, progress)
        same = _same(found.files, progress)
        side = found.files.shorter_side() if len(unreadable) < len(found.names) else None
    pairs = [
        (y, a) for y in card.targets for a in card.attributes if y != a and y == (target or y) and a == (attribute or a)
    ]
    bad = {line.name for line in unreadable}
    tests = _test_splits(dataset, root, pairs, bad)
    command, note = _propose(dataset, root, card, target, attribute, bad, progress)
    return {
        "root": printable(str(root)),
        "tables": list(found.tables),
        "rows": found.n_rows,
        "images": len(found.names),
        "shorter_side": side,
        "notes": [printable(note) for note in found.notes],
        "unreadable": {"n": len(unreadable), "examples": [str(one) for one in unreadable[:SHOWN]]},
        "duplicates": same,
        "columns": [_column(column, found.values[column.name], targets, why, card) for column in columns.values()],
        "pairs": [_pair(y, a, targets[y].codes, columns[a].codes, columns[a].labels, tests.get(y)) for y, a in pairs],
        "command": command,
        "command_note": note,
    }


@dataclass(frozen=True)
class _Unreadable:
    """An image that does not decode, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{printable(self.name)}: {self.reason}"


def _unreadable(files: ImageFiles, names: np.ndarray, progress: Progress) -> list[_Unreadable]:
    """The images that do not decode."""

    def one(name: str) -> _Unreadable | None:
        try:
            decode(files.read(name), 8)
        except UNREADABLE as error:
            return _Unreadable(str(name), decode_reason(error))
        return None

    found = []
    with ThreadPoolExecutor(n_threads()) as pool:
        for i, reason in enumerate(map_ahead(pool, one, names)):
            if reason is not None:
                found.append(reason)
            if i % 1000 == 0 or i + 1 == len(names):
                progress("decoding", i + 1, len(names))
    return found


def _same(files: ImageFiles, progress: Progress) -> dict[str, Any]:
    """Groups of byte-identical images."""
    first = files.same_content(progress)
    heads, counts = np.unique(first, return_counts=True)
    groups = heads[counts > 1]
    examples = [[printable(str(files.names[i])) for i in np.flatnonzero(first == head)[:3]] for head in groups[:3]]
    return {"groups": len(groups), "images": int(counts[counts > 1].sum()), "examples": examples}


def _column(
    column: Column, values: np.ndarray, targets: Mapping[str, Target], why: Mapping[str, str], card: Card
) -> dict[str, Any]:
    counts: dict[str, int] = {}
    if column.groups:
        counts = {printable(group): int((column.codes == i).sum()) for i, group in enumerate(column.groups)}
    else:
        texts, n = np.unique([value for value in values if value is not None], return_counts=True)
        counts = {printable(str(texts[i])): int(n[i]) for i in np.argsort(-n, kind="stable")[:SHOWN]}
    target = targets.get(column.name)
    return {
        "name": column.name,
        "missing": column.n_missing,
        "n_values": len({value for value in values if value is not None}),
        "values": counts,
        "ordered": column.ordered,
        "target": target.positive if target else None,
        "no_target": why[column.name] or None,
        "attribute": not column.refused,
        "no_attribute": column.refused or None,
    }


def _pair(
    y: str, a: str, target: np.ndarray, group: np.ndarray, labels: Sequence[str], test: Split | None
) -> dict[str, Any]:
    """How many images of each target and group there are, and in the test split."""
    return {
        "target": y,
        "attribute": a,
        "cells": _cells(target, group, labels),
        "unknown": int(((target < 0) | (group < 0)).sum()),
        "test_cells": None if test is None else _cells(test.target, test.attributes[a], labels),
    }


def _cells(target: np.ndarray, group: np.ndarray, labels: Sequence[str]) -> dict[str, dict[str, int]]:
    known = (target >= 0) & (group >= 0)
    counts = np.bincount(target[known] * len(labels) + group[known], minlength=2 * len(labels)).tolist()
    return {
        str(value): {printable(label): counts[value * len(labels) + i] for i, label in enumerate(labels)}
        for value in (0, 1)
    }


def _test_splits(
    dataset: TableDataset, root: Path, pairs: Sequence[tuple[str, str]], unreadable: Collection[str]
) -> dict[str, Split]:
    """target -> the test split of its images, of which every attribute is known; nothing where there is none."""
    found = {}
    for y, a in pairs:
        if y not in found:
            with contextlib.suppress(UserError):
                found[y] = dataset.outline(root, y, a, 0, unreadable).test
    return found


TEST_SHARES = (0.2, 0.3, 0.4)  # of drawn test splits that are tried where a tenth is too small


@dataclass(frozen=True)
class _Choice:
    """A target, an attribute and the dataset's parameters: something that `bench` could be asked for."""

    dataset: TableDataset
    target: str
    attribute: str

    def refused(self, root: Path, unreadable: Collection[str], progress: Progress) -> str:
        """Why `bench` would refuse it; empty if it would not."""
        config = self.dataset.config
        data = DataSpec(
            dataset=self.dataset.name,
            version=self.dataset.version,
            params=config.params(),
            fingerprint=None,
            image_size=8,
            target=self.target,
            attribute=self.attribute,
        )
        try:
            check_outline(self.dataset, self.dataset.card_for(root), data, root, unreadable, progress)
        except UserError as error:
            return str(error)
        return ""

    def command(self, root: Path) -> str:
        words = ["fairssl", "bench", "--dataset", self.dataset.name, "--data-dir", str(root)]
        for name, declared in type(self.dataset.config).model_fields.items():
            value = getattr(self.dataset.config, name)
            if value != declared.get_default(call_default_factory=True):
                words += ["--set", f"data.{name}={_written(value)}"]
        return printable(shlex.join([*words, "--target", one_name(self.target), "--attr", one_name(self.attribute)]))


def _propose(
    dataset: TableDataset,
    root: Path,
    card: Card,
    target: str | None,
    attribute: str | None,
    unreadable: Collection[str],
    progress: Progress,
) -> tuple[str | None, str | None]:
    """A bench command for these images that runs, and why it is not the plain one; or None, and why there is none."""
    likely = sorted(
        card.attributes, key=lambda name: LIKELY.index(name.casefold()) if name.casefold() in LIKELY else len(LIKELY)
    )
    chosen = target or next((name for name in card.targets if name not in likely[:1] or len(card.targets) == 1), None)
    beside = attribute or next((name for name in likely if name != chosen), None)
    if chosen is None or beside is None:
        return None, "a target and an attribute beside it are needed"
    others = [
        (y, a)
        for a in ([attribute] if attribute else likely)
        for y in ([target] if target else card.targets)
        if y != a and (y, a) != (chosen, beside)
    ]
    first = _Choice(dataset, chosen, beside)
    why = ""
    for choice, change in _choices(first, others, root, unreadable):
        refused = (
            _untypable(choice.target) or _untypable(choice.attribute) or choice.refused(root, unreadable, progress)
        )
        why = why or refused
        if not refused:
            return choice.command(root), f"{why}. The command below has {change}, and runs" if why else None
    return None, why


def _untypable(name: str) -> str:
    """Why a column's name is in no command; empty if it may be."""
    if name.isprintable():
        return ""
    return f"the name of the column '{printable(name)}' has a character in it that cannot be typed; rename the column"


def _choices(
    first: _Choice, others: Sequence[tuple[str, str]], root: Path, unreadable: Collection[str]
) -> Iterator[tuple[_Choice, str]]:
    """What to try in turn, and what that changes: larger test splits where they are drawn, smaller cells, another target or
    attribute; last, cells without any image."""
    yield first, ""
    dataset, config = first.dataset, first.dataset.config
    drawn = dataset.splits_are_drawn(dataset.found(root))
    own = {} if drawn else {"split": DRAWN}

    def varied(**params: Any) -> tuple[_Choice, str]:
        said = " ".join(f"data.{name}={value}" for name, value in params.items())
        return replace(first, dataset=dataset.varied(**params)), said

    n = None
    with contextlib.suppress(UserError):
        n = smallest_cell(dataset.outline(root, first.target, first.attribute, 0, unreadable))[0]
    lower = [varied(min_cell=n)] if n is not None and n < config.min_cell else []
    if lower and n and not drawn:
        yield lower[0]
    if own:
        yield varied(**own)
    for share in TEST_SHARES:
        if config.test < share < 1 - config.val:
            yield varied(**own, test=share)
    if lower and n and drawn:
        yield lower[0]
    for y, a in others:
        changed = [f"--target {y}"] * (y != first.target) + [f"--attr {a}"] * (a != first.attribute)
        yield replace(first, target=y, attribute=a), " ".join(changed)
    if lower and not n:
        yield lower[0]


def _written(value: Any) -> str:
    """A parameter as `--set` has it; as JSON where its own signs stand in names or values."""
    if isinstance(value, dict):
        texts = [str(text) for name, values in value.items() for text in (name, *values)]
        if any(sign in text for text in texts for sign in ":;+,") or not all(texts):
            return json.dumps(value, ensure_ascii=False)
        return ";".join(
            f"{name}:{'+'.join(map(_number, values))}" if values else name for name, values in value.items()
        )
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if "," in text or text.startswith(("[", "{", '"')) else text


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def table_below(root: Path, table: str) -> str:
    """A table that the user named from anywhere, as `data.table` has it: from the data folder, or from the archive's."""
    home = root if root.is_dir() else root.parent
    if (home / table).is_file() and not Path(table).is_absolute():
        return table
    path = user_path(table)
    if root.is_file() and not path.is_file():
        return table  # perhaps inside the archive
    if not path.is_file():
        raise UserError(f"--table {table!r}: there is no such file, here or in {str(home)!r}")
    try:
        return path.resolve().relative_to(home.resolve()).as_posix()
    except ValueError:
        raise UserError(
            f"--table {table!r} lies outside of {str(home)!r}: put it there, so that the data can move as a whole, or make "
            "a folder that holds it and a link to the images"
        ) from None
