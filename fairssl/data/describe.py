"""What a folder of images and a table of labels hold, before anything is trained: `fairssl data describe`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fairssl.data.columns import Column, Target
from fairssl.data.decoded import decode
from fairssl.data.files import UNREADABLE, ImageFiles, decode_reason, map_ahead, n_threads, telling
from fairssl.data.table_dataset import TableDataset
from fairssl.machine import user_path
from fairssl.types import Card, Progress, UserError, printable, silent

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
    target and the attribute that is most likely sensitive. Errors: `UserError`.
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
    return {
        "root": printable(str(root)),
        "tables": list(found.tables),
        "rows": found.n_rows,
        "images": len(found.names),
        "shorter_side": side,
        "notes": [printable(note) for note in found.notes],
        "unreadable": {"n": len(unreadable), "examples": unreadable[:SHOWN]},
        "duplicates": same,
        "columns": [_column(column, found.values[column.name], targets, why, card) for column in columns.values()],
        "pairs": [_pair(y, a, targets[y], columns[a]) for y, a in pairs],
        "command": _command(dataset, root, card, target, attribute),
    }


def _unreadable(files: ImageFiles, names: np.ndarray, progress: Progress) -> list[str]:
    """`name: reason` of the images that do not decode."""

    def one(name: str) -> str | None:
        try:
            decode(files.read(name), 8)
        except UNREADABLE as error:
            return f"{printable(str(name))}: {decode_reason(error)}"
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


def _pair(y: str, a: str, target: Target, column: Column) -> dict[str, Any]:
    cells = {
        str(value): {
            printable(label): int(((target.codes == value) & (column.codes == i)).sum())
            for i, label in enumerate(column.labels)
        }
        for value in (0, 1)
    }
    known = (target.codes >= 0) & (column.codes >= 0)
    return {"target": y, "attribute": a, "cells": cells, "unknown": int((~known).sum())}


def _command(dataset: TableDataset, root: Path, card: Card, target: str | None, attribute: str | None) -> str | None:
    """A bench command for these images; None where there is no target, or no attribute beside it."""
    likely = sorted(
        card.attributes, key=lambda name: LIKELY.index(name.casefold()) if name.casefold() in LIKELY else len(LIKELY)
    )
    chosen = target or next((name for name in card.targets if name not in likely[:1] or len(card.targets) == 1), None)
    beside = attribute or next((name for name in likely if name != chosen), None)
    if chosen is None or beside is None:
        return None
    words = ["fairssl", "bench", "--dataset", dataset.name, "--data-dir", str(root)]
    for name, declared in type(dataset.config).model_fields.items():
        value = getattr(dataset.config, name)
        if value != declared.get_default(call_default_factory=True):
            words += ["--set", f"data.{name}={_written(value)}"]
    return printable(shlex.join([*words, "--target", chosen, "--attr", beside]))


def _written(value: Any) -> str:
    """A parameter as `--set` has it."""
    if not isinstance(value, dict):
        return str(value)
    return ";".join(f"{name}:{'+'.join(map(_number, values))}" if values else name for name, values in value.items())


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
