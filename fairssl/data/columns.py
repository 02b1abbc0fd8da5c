"""Columns of a table of labels as groups and as targets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fairssl.registry import did_you_mean
from fairssl.types import UserError, printable

MAX_GROUPS = 20  # a column with more values has no groups, unless its numbers are binned
TRUE_OF = {frozenset(pair): pair[1] for pair in (("0", "1"), ("-1", "1"), ("no", "yes"), ("false", "true"), ("n", "y"))}


@dataclass(frozen=True)
class Column:
    """A column's values as groups: `codes` int64 (N,), -1 where missing; `groups` the label of each code, in order.

    `refused`: why it has no groups. `true`: of two values that say yes and no, the code of yes.
    """

    name: str
    codes: np.ndarray
    groups: tuple[str, ...]
    ordered: bool = False
    refused: str = ""
    true: int | None = None

    @property
    def n_missing(self) -> int:
        return int((self.codes < 0).sum())

    @property
    def labels(self) -> tuple[str, ...]:
        """The groups' labels for a table: of yes and no, the column's name with and without `not`."""
        if self.true is None:
            return self.groups
        labels = [f"not {self.name}"] * 2
        labels[self.true] = self.name
        return tuple(labels)


@dataclass(frozen=True)
class Target:
    """A column as a target: `codes` int64 (N,) 0 or 1, -1 where missing; `positive` what 1 means."""

    codes: np.ndarray
    positive: str


def make_column(
    name: str, values: np.ndarray, cuts: Sequence[float] | None = None, order: Sequence[str] | None = None
) -> Column:
    """Texts (N,), None where missing, as groups: by `cuts`, the upper ends of all groups but the last; else a group per
    value, in the given order, or by the first number in each for an empty one; else numbers by size and words by letter."""
    known = sorted({value for value in values if value is not None})
    numbers = _numbers(known)
    if cuts is not None:
        return _binned(name, values, cuts)
    if len(known) < 2:
        return _refused(name, values, f"column {name!r} has one value" if known else f"column {name!r} is empty")
    if len(known) > MAX_GROUPS:
        if numbers is None:
            return _refused(name, values, f"column {name!r} has {len(known):,} values, too many for groups")
        middle = float(np.median([float(v) for v in values if v is not None]))
        hint = f"make groups of its numbers: --set {shlex.quote(f'data.bin={name}:{middle:g}')}"
        return _refused(name, values, f"column {name!r} has {len(known):,} values; {hint}")
    if order:
        missing = [value for value in known if value not in order]
        if missing:
            raise UserError(f"data.ordered={name}:... leaves {missing[0]!r} out; name all of {', '.join(known)}")
        groups = [value for value in order if value in known]
    elif order is not None:
        groups = _by_number(name, known)
    elif numbers is not None:
        groups = [value for _, value in sorted(zip(numbers, known, strict=True))]
    else:
        groups = known
    code = {value: i for i, value in enumerate(groups)}
    codes = np.array([-1 if value is None else code[value] for value in values], dtype=np.int64)
    yes = TRUE_OF.get(frozenset(value.casefold() for value in groups)) if len(groups) == 2 else None
    true = None if yes is None else [value.casefold() for value in groups].index(yes)
    return Column(name, codes, tuple(groups), ordered=order is not None, true=true)


def _refused(name: str, values: np.ndarray, reason: str) -> Column:
    codes = np.array([-1 if value is None else 0 for value in values], dtype=np.int64)
    return Column(name, codes, (), refused=reason)


def _binned(name: str, values: np.ndarray, cuts: Sequence[float]) -> Column:
    numbers = np.full(len(values), np.nan)
    for i, value in enumerate(values):
        if value is None:
            continue
        try:
            numbers[i] = float(value)
        except ValueError:
            raise UserError(f"data.bin={name}:...: the column holds {printable(value)!r}, which is no number") from None
    codes = np.where(np.isnan(numbers), -1, np.searchsorted(cuts, numbers)).astype(np.int64)
    whole = all(float(cut).is_integer() for cut in cuts) and all(n.is_integer() for n in numbers[~np.isnan(numbers)])
    ends = [f"{cut:g}" for cut in cuts]
    between = [
        f"{int(low) + 1}-{high}" if whole else f">{low:g}..{high}" for low, high in zip(cuts, ends[1:], strict=False)
    ]
    return Column(name, codes, (f"<={ends[0]}", *between, f">{ends[-1]}"), ordered=True)


def _numbers(texts: Sequence[str]) -> list[float] | None:
    try:
        return [float(text) for text in texts]
    except ValueError:
        return None


def _by_number(name: str, known: Sequence[str]) -> list[str]:
    """By the first number in each label, and that with words before it after that without: 60-69, more than 70."""
    keys = {}
    for value in known:
        found = re.search(r"\d+(\.\d+)?", value)
        if found is None:
            raise UserError(
                f"data.ordered={name}: {printable(value)!r} has no number to order it by; give the order, as "
                f"data.ordered={name}:{'+'.join(known)}"
            )
        keys[value] = (float(found.group()), found.start() > 0)
    return sorted(known, key=keys.__getitem__)


def make_target(column: Column, chosen: Sequence[str] | None) -> tuple[Target | None, str]:
    """The column as a target, or None and why not. `chosen`: its values that are y = 1; else of yes and no yes, of two bins
    the upper, of two other values the later by letter."""
    if column.refused and not (chosen and column.groups):
        return None, column.refused
    if chosen is None:
        if len(column.groups) != 2:
            some = ", ".join(column.groups[:5]) + (", ..." if len(column.groups) > 5 else "")
            return None, (
                f"column {column.name!r} has {len(column.groups)} values ({some}), and a target needs two: say which of them "
                f"are y = 1, as --set {shlex.quote(f'data.positive={column.name}:{column.groups[-1]}')}"
            )
        yes = [1 if column.true is None else column.true]
        positive = column.name if column.true is not None else column.groups[yes[0]]
    else:
        whole = "+".join(chosen)
        wanted = [whole] if whole in column.groups else list(chosen)
        for value in wanted:
            if value not in column.groups:
                hint = did_you_mean(value, column.groups)
                raise UserError(f"data.positive: column {column.name!r} has no value {value!r}{hint}")
        yes = [column.groups.index(value) for value in wanted]
        if not yes or len(yes) == len(column.groups):
            raise UserError(f"data.positive={column.name}:{whole} leaves one class; name some of its values, not all")
        positive = f"{column.name} {' or '.join(wanted)}"
    codes = np.where(column.codes < 0, -1, np.isin(column.codes, yes)).astype(np.int64)
    return Target(codes, positive), ""
