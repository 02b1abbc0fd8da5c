"""Averages over pairs and tasks where there are more than two groups."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from fairssl.scoring.counts import bucket_shares
from fairssl.types import Outcome, Undefined, Value

Pairs = Literal["adjacent", "all"]
WhenUndefined = Literal["propagate", "omit"]


class PartialMean(float):
    """A mean over the defined parts only, as `undefined="omit"` asks for; it says how many there were."""

    n_defined: int
    n_parts: int

    def __new__(cls, value: float, n_defined: int, n_parts: int) -> PartialMean:
        mean = super().__new__(cls, value)
        mean.n_defined, mean.n_parts = n_defined, n_parts
        return mean

    def __getnewargs__(self) -> tuple[float, int, int]:  # type: ignore[override]  # so that it can be pickled
        return float(self), self.n_defined, self.n_parts


def average(parts: Sequence[Value], undefined: WhenUndefined = "propagate") -> Value:
    """The mean of the parts; undefined if any is ("propagate"), or over the defined ones, a `PartialMean` ("omit")."""
    reasons = [part for part in parts if isinstance(part, Undefined)]
    numbers = [part for part in parts if not isinstance(part, Undefined)]
    if reasons and (undefined == "propagate" or not numbers):
        return reasons[0]
    mean = math.fsum(numbers) / len(numbers)
    return PartialMean(mean, len(numbers), len(parts)) if reasons else mean


def group_pairs(n_groups: int, pairs: Pairs = "adjacent") -> list[tuple[int, int]]:
    """The pairs to average over: (0, 1), (1, 2), ... as in the paper, for ordered groups; or all (i, j) with i < j."""
    if pairs == "adjacent":
        return [(i, i + 1) for i in range(n_groups - 1)]
    return [(i, j) for i in range(n_groups) for j in range(i + 1, n_groups)]


def over_pairs(
    outcome: Outcome,
    part: Callable[[int, int], Value],
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
) -> Value:
    """Mean of `part(i, j)` over pairs of group codes, i < j."""
    return average([part(i, j) for i, j in group_pairs(len(outcome.groups), pairs)], undefined)


def over_tasks(
    outcome: Outcome,
    part: Callable[[Sequence[int], Sequence[int]], Value],
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
) -> Value:
    """Mean of `part(ones, others)` over the G tasks "group k against everyone else", the paper's way for AUC metrics.

    With `pairs="all"` the tasks are all pairs of single groups. For two groups every way gives the same value.
    """
    codes = range(len(outcome.groups))
    if pairs == "all":
        tasks = [((i,), (j,)) for i, j in group_pairs(len(codes), "all")]
        return average([part(ones, others) for ones, others in tasks], undefined)
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
    """Mean absolute gap of one value per group over pairs of groups."""
    return over_pairs(outcome, lambda i, j: gap(values[i], values[j]), pairs, undefined)


def mean_distance(
    outcome: Outcome,
    distance: Callable[[np.ndarray, np.ndarray], float],
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
) -> Value:
    """Mean over pairs of groups of a distance between their bucket shares, each (100,), the lower code first."""
    shares = bucket_shares(outcome)

    def of_pair(i: int, j: int) -> Value:
        p, q = shares[i], shares[j]
        if isinstance(p, Undefined):
            return p
        return q if isinstance(q, Undefined) else distance(p, q)

    return over_pairs(outcome, of_pair, pairs, undefined)
