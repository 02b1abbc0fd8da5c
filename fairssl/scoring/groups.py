"""How the values of pairs of groups become one number where there are more than two groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from fairssl.scoring.counts import bucket_shares
from fairssl.types import Outcome, Undefined, UserError, Value

Pairs = Literal["adjacent", "all", "max"]
WhenUndefined = Literal["propagate", "omit"]


class PartialMean(float):
    """A mean, or a maximum, over the defined parts only, as `undefined="omit"` asks for; it says how many there were."""

    n_defined: int
    n_parts: int
    what: str

    def __new__(cls, value: float, n_defined: int, n_parts: int, what: str = "mean") -> PartialMean:
        one = super().__new__(cls, value)
        one.n_defined, one.n_parts, one.what = n_defined, n_parts, what
        return one

    def __getnewargs__(self) -> tuple[float, int, int, str]:  # type: ignore[override]  # so that it can be pickled
        return float(self), self.n_defined, self.n_parts, self.what


def average(parts: Sequence[Value], undefined: WhenUndefined = "propagate") -> Value:
    """The mean of the parts; undefined if any is ("propagate"), or over the defined ones, a `PartialMean` ("omit")."""
    return _over_parts(parts, undefined, lambda numbers: math.fsum(numbers) / len(numbers), "mean")


def largest(parts: Sequence[Value], undefined: WhenUndefined = "propagate") -> Value:
    """The largest of the parts; undefined if any is ("propagate"), or over the defined ones, a `PartialMean` ("omit")."""
    return _over_parts(parts, undefined, max, "largest")


def _over_parts(
    parts: Sequence[Value], undefined: WhenUndefined, one: Callable[[list[float]], float], what: str
) -> Value:
    reasons = [part for part in parts if isinstance(part, Undefined)]
    numbers = [part for part in parts if not isinstance(part, Undefined)]
    if reasons and (undefined == "propagate" or not numbers):
        return reasons[0]
    value = one(numbers)
    return PartialMean(value, len(numbers), len(parts), what) if reasons else value


def default_pairs(ordered: bool) -> Pairs:
    """Adjacent pairs for an ordered attribute (age), as in the paper; all pairs for a nominal one (ethnicity)."""
    return "adjacent" if ordered else "all"


def group_pairs(n_groups: int, pairs: Pairs = "adjacent") -> list[tuple[int, int]]:
    """The pairs to average over: (0, 1), (1, 2), ... as in the paper, for ordered groups; or all (i, j) with i < j.

    "max" is no set of pairs but what is made of all of them, which `over_pairs` does: a `UserError` here.
    """
    if pairs == "adjacent":
        return [(i, i + 1) for i in range(n_groups - 1)]
    if pairs == "max":
        raise UserError("a metric that lists pairs itself cannot take pairs 'max'; use scoring.over_pairs in it")
    return [(i, j) for i in range(n_groups) for j in range(i + 1, n_groups)]


def describe_pairs(n_groups: int, pairs: Pairs) -> str:
    """What a caption says of more than two groups; empty for two, where every way gives the same value."""
    if n_groups <= 2:
        return ""
    n_all = n_groups * (n_groups - 1) // 2
    if pairs == "adjacent":
        tasks = f"AUC metrics: over the {n_groups} tasks of one group against the rest"
        return f"{n_groups} groups in order: gaps are means over the {n_groups - 1} adjacent pairs ({tasks})"
    what = "the largest" if pairs == "max" else "means"
    return f"{n_groups} groups: gaps are {what} over all {n_all} pairs of groups"


def over_pairs(
    outcome: Outcome,
    part: Callable[[int, int], Value],
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
) -> Value:
    """Mean of `part(i, j)` over pairs of group codes, i < j; with `pairs="max"` the largest over all of them."""
    chosen = group_pairs(len(outcome.groups), "adjacent" if pairs == "adjacent" else "all")
    parts = [part(i, j) for i, j in chosen]
    return largest(parts, undefined) if pairs == "max" else average(parts, undefined)


def over_tasks(
    outcome: Outcome,
    part: Callable[[Sequence[int], Sequence[int]], Value],
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
) -> Value:
    """Mean of `part(ones, others)` over the G tasks "group k against everyone else", the paper's way for AUC metrics.

    With `pairs="all"` the tasks are all pairs of single groups, with "max" the largest over those. For two groups every
    way gives the same value.
    """
    if pairs != "adjacent" and len(outcome.groups) > 2:
        return over_pairs(outcome, lambda i, j: part((i,), (j,)), pairs, undefined)
    codes = range(len(outcome.groups))
    return average([part((k,), [g for g in codes if g != k]) for k in codes], undefined)


def gap(a: Value, b: Value) -> Value:
    """|a - b|; undefined, with the first reason, if either is."""
    if isinstance(a, Undefined):
        return a
    if isinstance(b, Undefined):
        return b
    return abs(a - b)


def mean_gap(
    outcome: Outcome, values: Sequence[Value], pairs: Pairs = "adjacent", undefined: WhenUndefined = "propagate"
) -> Value:
    """Mean (or largest) absolute gap of one value per group over pairs of groups."""
    return over_pairs(outcome, lambda i, j: gap(values[i], values[j]), pairs, undefined)


def mean_distance(
    outcome: Outcome,
    distance: Callable[[np.ndarray, np.ndarray], float],
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
) -> Value:
    """Mean (or largest) over pairs of groups of a distance between their bucket shares, each (100,), the lower code
    first."""
    shares = bucket_shares(outcome)

    def of_pair(i: int, j: int) -> Value:
        p, q = shares[i], shares[j]
        if isinstance(p, Undefined):
            return p
        return q if isinstance(q, Undefined) else distance(p, q)

    return over_pairs(outcome, of_pair, pairs, undefined)
