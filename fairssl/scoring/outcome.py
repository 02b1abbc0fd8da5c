"""From raw arrays to a checked `Outcome`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from fairssl.types import Outcome, UserError

MAX_GROUPS = 100  # more is an identifier or a continuous value, not a sensitive attribute


def check_outcome(
    score: Any,
    target: Any,
    group: Any,
    groups: Sequence[str],
    *,
    named: tuple[str, str, str] = ("score", "target", "group"),
) -> Outcome:
    """An `Outcome` from arrays (N,), or one line about what is wrong with them.

    `score` is the probability of y = 1, in [0, 1]; `target` is 0 or 1, in any type; `group` is the code 0..G-1 of a
    label in `groups`, of which some may have no example (`group_codes` makes codes out of raw values). `named` are the
    names to use in messages. Raises `UserError` for NaN scores, scores outside [0, 1], other targets, unknown groups,
    labels declared twice, fewer than two groups, no rows, and arrays of different length.
    """
    scores = _floats(score, named[0])
    targets = _floats(target, named[1])
    codes = _floats(group, named[2])
    if not len(scores) == len(targets) == len(codes):
        lengths = ", ".join(f"{name} has {len(v)}" for name, v in zip(named, (scores, targets, codes), strict=True))
        raise UserError(f"scores, targets and groups must have one row per example: {lengths}")
    if len(scores) == 0:
        raise UserError(f"no rows to score: {named[0]} is empty; give at least one prediction")
    _forbid(np.isnan(scores), scores, named[0], "is NaN", "drop these rows or score them again")
    outside = (scores < 0) | (scores > 1)
    _forbid(
        outside, scores, named[0], "is outside [0, 1]", "give the probability of y = 1, not a logit or a percentage"
    )
    _forbid((targets != 0) & (targets != 1), targets, named[1], "is not 0 or 1", "code the target as 0 and 1")
    labels = tuple(groups)
    _check_labels(labels, named[2])
    unknown = ~((codes >= 0) & (codes < len(labels)) & (codes == np.floor(codes)))
    ways = f"drop these rows or give each a code in 0..{len(labels) - 1}"
    _forbid(unknown, codes, named[2], "is no known group", ways)
    return Outcome(scores, targets.astype(np.int64), codes.astype(np.int64), labels)


def group_codes(
    values: Sequence[object], groups: Sequence[object] | None = None, *, named: str = "group"
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes int64 (N,) and the label of each code, for raw group values: strings or numbers, 0 and "0.0" being one.

    The order is `groups` if given, else numeric if all values are numbers, else alphabetical. Raises `UserError` for a
    missing value (empty, NaN, None, NA: unless `groups` declares it), a value outside the declared ones, a group
    declared twice, fewer than two groups or more than `MAX_GROUPS`.
    """
    known: dict[object, str] = {}  # few distinct values, many rows
    cells = [known[v] if v in known else known.setdefault(v, _label(v)) for v in values]
    declared = None if groups is None else tuple(_label(g) for g in groups)
    missing = [i for i, cell in enumerate(cells) if cell.lower() in _MISSING and cell not in (declared or ())]
    if missing:
        raise UserError(
            f"{named} has no group in {len(missing)} of {len(cells)} rows, first in row {missing[0] + 1} "
            f"({cells[missing[0]]!r}); drop these rows, fill them in, or declare the value as a group of its own"
        )
    if declared is None:
        found = set(cells)
        numeric = all(_NUMBER.fullmatch(cell) for cell in found)
        labels = tuple(sorted(found, key=(lambda c: (float(c), c)) if numeric else str))
    else:
        labels = declared
    _check_labels(labels, named)
    for cell in dict.fromkeys(cells):
        if cell not in labels:
            raise UserError(
                f"{named} has the value {cell!r} in {cells.count(cell)} of {len(cells)} rows, outside the declared "
                f"groups {', '.join(labels)}; declare it too or drop these rows"
            )
    code = {label: i for i, label in enumerate(labels)}
    return np.array([code[cell] for cell in cells], dtype=np.int64), labels


_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_MISSING = ("", "nan", "na", "<na>", "n/a", "null", "none")


def _label(value: object) -> str:
    """A group value as text; 0, 0.0, "0" and " 0.0 " are one label, since writers of CSV turn codes into floats."""
    text = str(value).strip()
    if not _NUMBER.fullmatch(text):
        return text
    whole, _, part = text.partition(".")
    if not part.strip("0"):
        return str(int(whole))
    return str(float(text))


def _check_labels(labels: tuple[str, ...], named: str) -> None:
    if len(labels) < 2:
        only = f"one group, {labels[0]!r}" if labels else "no group"
        raise UserError(f"{named} has {only}, but a gap needs two; declare the groups that are absent")
    if len(labels) > MAX_GROUPS:
        raise UserError(
            f"{named} has {len(labels)} different values, more than {MAX_GROUPS}: it looks like an identifier or a "
            "measurement; name another column, or bin it into groups"
        )
    for label in labels:
        if labels.count(label) > 1:
            raise UserError(f"group {label!r} is declared twice; declare each group once")


def _floats(values: Any, name: str) -> np.ndarray:
    try:
        array = np.array(values, dtype=np.float64)  # a copy: an Outcome's arrays are nobody else's
    except (TypeError, ValueError) as error:
        raise UserError(f"{name} holds something that is not a number: {error}") from error
    if array.ndim != 1:
        raise UserError(f"{name} has shape {array.shape}; give one number per example")
    return array


def _forbid(wrong: np.ndarray, values: np.ndarray, name: str, fault: str, ways: str) -> None:
    if wrong.any():
        first = int(np.argmax(wrong))
        shown = "" if np.isnan(values[first]) else f" {values[first]:g}"
        count = f"{int(wrong.sum())} of {len(wrong)} rows"
        raise UserError(f"{name} {fault} in {count}, first{shown} in row {first + 1}; {ways}")
