"""Bootstrap intervals and noise floors. Nothing here is random without a seed.

Intervals. Replicates are drawn within each cell of target and group, so that they keep the design of the test set: an
interval is for a population with the test set's share of each cell. The percentile interval is wrong for most fairness
metrics: a gap is an absolute value, and a resample adds noise to the noise of the data, so its replicates lie too high,
and at a gap of 0 no percentile interval ever holds the truth. Two kinds are used instead; `benchmarks/perf/coverage.md`
has what they cover, measured beside the percentile interval.

- symmetric: the value plus and minus the larger distance to the two percentile ends, the end towards which the bias
  must be corrected (the lower one for a gap) moved on by twice the bias of the replicates. Near a gap of 0 it reaches
  0; far from it, where there is no bias, it is the percentile interval or a little wider.
- reversed, for a metric that declares it (KL): the percentile interval reflected at the value, and the value itself.
  Its bias is a matter of the size of the data, so the replicates show it. Where they show less of it than permuted
  groups do, it is too large to be corrected and there is no interval.

A metric may also declare that it has none: no kind of interval holds the truth of ECEGap often enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fairssl.interfaces import IntervalKind, Metric
from fairssl.scoring.counts import Counts, keep_counts, rank_scores
from fairssl.scoring.groups import Pairs, WhenUndefined
from fairssl.scoring.metrics import accepted_settings, columns, value_of
from fairssl.scoring.outcome import check_outcome
from fairssl.types import Outcome, Progress, Undefined, UserError, Value, silent

Null = Literal["metric", "data", "target"]
SMALL_CELL = 10  # examples; resampling fewer tells too little of their spread
BIAS_CORRECTION = 2.0  # times the bias of the replicates, see above
LEAST_BIAS = 0.9  # of the permuted groups' mean, that the replicates of a reversed interval must show


@dataclass(frozen=True)
class Interval:
    """Bootstrap interval of one metric over `n_replicates` resamples, of which `n_undefined` had no value.

    `low` and `high` are `Undefined` where there is no interval. `caution` says, where it is not empty, why the interval
    is not to be relied upon: undefined replicates (it is that of the others only), or a cell of few examples on which
    the value depends.
    """

    low: Value
    high: Value
    n_undefined: int
    n_replicates: int
    method: IntervalKind = "symmetric"
    caution: str = ""


@dataclass(frozen=True)
class Floor:
    """What a metric measures where groups do not matter: its mean and 95 % quantile over permuted groups.

    `within` tells how they were permuted: over all rows ("data") or among rows of equal target ("target").
    """

    mean: Value
    high: Value
    n_undefined: int
    n_replicates: int
    within: Literal["data", "target"] = "data"


LEAST_REPLICATES = 100  # of which 2.5 % at either end are two or three: an end of an interval rests on no single one
LEAST_PERMUTATIONS = 20  # with fewer, the 95 % quantile is the largest of them


def check_replicates(what: str, n: int, kind: Literal["bootstrap", "permutations"]) -> None:
    """Refuse a number of replicates that is none, or too small for the quantiles that are taken of them; 0 is none wanted."""
    least, usual, of = {
        "bootstrap": (LEAST_REPLICATES, 1000, "ends of a 95 % interval"),
        "permutations": (LEAST_PERMUTATIONS, 200, "95 % quantile"),
    }[kind]
    if n < 0:
        raise UserError(f"{what} {n} is no number of replicates; {usual} is usual, 0 is none")
    if 0 < n < least:
        raise UserError(f"{what} {n}: too few for the {of}; at least {least}, {usual} is usual, 0 is none")


def bootstrap(
    outcome: Outcome,
    n_replicates: int = 1000,
    seed: int = 0,
    *,
    level: float = 0.95,
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
    progress: Progress = silent,
) -> dict[str, Interval]:
    """Bootstrap interval of every metric; symbol -> `Interval`. Same seed, same intervals.

    Rows are drawn with replacement within each cell of target and group, which keeps its size. The kinds of interval,
    and when there is none, are described at the head of this module.
    """
    how: dict[str, Any] = {"pairs": pairs, "undefined": undefined}
    table = replicates(outcome, n_replicates, seed, **how, progress=progress)
    return intervals(outcome, table, seed, level=level, **how)


def intervals(
    outcome: Outcome,
    table: Mapping[str, Sequence[Value]],
    seed: int = 0,
    *,
    level: float = 0.95,
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
) -> dict[str, Interval]:
    """The intervals that a table of `replicates` gives; symbol -> `Interval`."""
    checked = check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups)
    metrics = [m for m in columns() if m.symbol in table]
    how = {"pairs": pairs, "undefined": undefined}
    chance = _mean_by_chance([m for m in metrics if _kind(m) == "reversed"], checked, seed, how)
    thin = list(_without_small_cells(checked))
    found = {}
    for one in metrics:
        value = value_of(one, checked, accepted_settings(one, pairs, undefined))
        interval = _interval(value, table[one.symbol], level, _kind(one), chance.get(one.symbol))
        found[one.symbol] = replace(interval, caution=_caution(one, interval, thin, how))
    return found


def replicates(
    outcome: Outcome,
    n_replicates: int = 1000,
    seed: int = 0,
    *,
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
    progress: Progress = silent,
) -> dict[str, list[Value]]:
    """Every metric on `n_replicates` resamples, drawn within each cell of target and group; symbol -> its values."""
    if n_replicates < 1:
        raise UserError(f"bootstrap needs at least 1 replicate, not {n_replicates}; 1000 is usual")
    draws = _resampled(check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups), n_replicates, seed)
    how = {"pairs": pairs, "undefined": undefined}
    return _replicate(draws, columns(), n_replicates, how, progress, "bootstrap")


def noise_floor(
    outcome: Outcome,
    n_replicates: int = 200,
    seed: int = 0,
    *,
    within: Null = "metric",
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
    progress: Progress = silent,
) -> dict[str, Floor]:
    """What each gap would measure on data of these sizes if groups did not matter; symbol -> `Floor`.

    `within="data"` permutes the groups over all rows: the group tells nothing of score or target. `within="target"`
    permutes them among rows of equal target, which keeps the size of every cell: the group tells nothing of the score
    once the target is known. The default keeps the design of the test set: the second for metrics that condition on the
    target (`given_target`: ED, EO, IntraAUC, ...), and for all metrics where the target is balanced over the groups
    (`is_balanced`); otherwise the first for the metrics that do not condition on it (DP, GAUC, WD, KL, ...), which the
    second would charge with the groups' base rates. Only metrics whose fair value is the lowest are in it. KL is biased
    most: about 49.5 (1/n_0 + 1/n_1) on 100 buckets.
    """
    if n_replicates < 1:
        raise UserError(f"a noise floor needs at least 1 permutation, not {n_replicates}; 200 is usual")
    checked = check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups)
    gaps = [m for m in columns() if m.better == "lower"]
    how = {"pairs": pairs, "undefined": undefined}
    found: dict[str, Floor] = {}
    for null, chosen in _by_null(gaps, checked, within).items():
        draws = permuted(checked, null, n_replicates, seed)
        table = _replicate(draws, chosen, n_replicates, how, progress, f"permutations within {null}")
        found |= {symbol: _floor(values, null) for symbol, values in table.items()}
    return {m.symbol: found[m.symbol] for m in gaps}


def is_balanced(outcome: Outcome) -> bool:
    """Whether every group has the same share of each target, as a test set made of equal cells has: each cell's size
    differs from (group's size x target's size / N) by less than one example, or by less than a quarter of the standard
    deviation that it has where groups are drawn at random."""
    n = np.bincount(outcome.group * 2 + outcome.target, minlength=2 * len(outcome.groups)).reshape(-1, 2).astype(float)
    of_group, of_target, total = n.sum(1, keepdims=True), n.sum(0, keepdims=True), n.sum()
    expected = of_group * of_target / total
    variance = expected * (1 - of_group / total) * (1 - of_target / total) * total / max(total - 1, 1)  # hypergeometric
    return bool((np.abs(n - expected) < np.maximum(1, np.sqrt(variance) / 4)).all())


def inside_floor(value: Value | None, floor: Floor | Mapping[str, Any] | None) -> bool:
    """Whether a gap is no larger than what chance measures in 95 % of fair sets. False where either has no value.

    `floor` is a `Floor`, or its fields as a record holds them.
    """
    high = floor.high if isinstance(floor, Floor) else None if floor is None else floor.get("high")
    if value is None or high is None or isinstance(value, Undefined) or isinstance(high, Undefined):
        return False
    return bool(value <= high + 1e-12)  # equal shares may differ by rounding


def _resampled(outcome: Outcome, n_replicates: int, seed: int) -> Iterator[Outcome]:
    """Resamples that keep the size of every cell, their tallies made."""
    rng = np.random.default_rng(seed)
    ranks, cell = rank_scores(outcome)
    order = np.argsort(cell, kind="stable")
    cell, rank = cell[order], ranks.rank[order]
    score, target, group = outcome.score[order], outcome.target[order], outcome.group[order]
    ends = np.cumsum(np.bincount(cell, minlength=2 * len(outcome.groups)))
    cells = [(start, end) for start, end in zip((0, *ends[:-1]), ends, strict=True) if end > start]
    for _ in range(n_replicates):
        rows = np.concatenate([rng.integers(start, end, end - start) for start, end in cells])
        drawn = Outcome(score[rows], target, group, outcome.groups)
        keep_counts(drawn, Counts(replace(ranks, rank=rank[rows]), cell, len(outcome.groups)))
        yield drawn


def permuted(outcome: Outcome, within: Null, n_replicates: int, seed: int) -> Iterator[Outcome]:
    """The same predictions with the groups permuted, their tallies made."""
    rng = np.random.default_rng(seed)
    ranks, _ = rank_scores(outcome)
    everything = [np.arange(len(outcome.score))]
    strata = everything if within == "data" else [np.flatnonzero(outcome.target == y) for y in (0, 1)]
    for _ in range(n_replicates):
        group = np.empty_like(outcome.group)
        for rows in strata:
            group[rows] = rng.permutation(outcome.group[rows])
        drawn = Outcome(outcome.score, outcome.target, group, outcome.groups)
        keep_counts(drawn, Counts(ranks, group * 2 + outcome.target, len(outcome.groups)))
        yield drawn


def _by_null(
    metrics: Sequence[Metric], outcome: Outcome, within: Null
) -> dict[Literal["data", "target"], list[Metric]]:
    """The metrics under each way to permute; a way that none of them needs is left out."""
    balanced = is_balanced(outcome)
    found: dict[Literal["data", "target"], list[Metric]] = {}
    for one in metrics:
        default: Literal["data", "target"] = "target" if one.given_target or balanced else "data"
        found.setdefault(default if within == "metric" else within, []).append(one)
    return found


def _mean_by_chance(metrics: Sequence[Metric], outcome: Outcome, seed: int, how: Mapping[str, Any]) -> dict[str, float]:
    """Mean of each metric over 50 permutations of the groups; none where it is always undefined."""
    found = {}
    for null, chosen in _by_null(metrics, outcome, "metric").items():
        table = _replicate(permuted(outcome, null, 50, seed), chosen, 50, how, silent, "")
        for symbol, values in table.items():
            numbers = _numbers(values)
            if len(numbers):
                found[symbol] = float(numbers.mean())
    return found


def _replicate(
    draws: Iterator[Outcome],
    metrics: Sequence[Metric],
    n: int,
    how: Mapping[str, Any],
    progress: Progress,
    what: str,
) -> dict[str, list[Value]]:
    settings = [accepted_settings(m, **how) for m in metrics]
    table: dict[str, list[Value]] = {m.symbol: [] for m in metrics}
    for done, drawn in enumerate(draws, start=1):
        for one, chosen in zip(metrics, settings, strict=True):
            table[one.symbol].append(value_of(one, drawn, chosen))
        progress(what, done, n)
    return table


def _floor(values: Sequence[Value], within: Literal["data", "target"]) -> Floor:
    numbers = _numbers(values)
    n_undefined = len(values) - len(numbers)
    if not len(numbers):
        nothing = _nothing(values)
        return Floor(nothing, nothing, n_undefined, len(values), within)
    # Weibull's plotting position: a fair set exceeds the quantile of n permutations in 5 % of cases, for any n.
    high = float(np.quantile(numbers, 0.95, method="weibull"))
    return Floor(float(numbers.mean()), high, n_undefined, len(values), within)


def _interval(
    value: Value, replicates: Sequence[Value], level: float, kind: IntervalKind, by_chance: float | None
) -> Interval:
    numbers = _numbers(replicates)
    n_undefined = len(replicates) - len(numbers)

    def none(reason: Undefined) -> Interval:
        return Interval(reason, reason, n_undefined, len(replicates), kind)

    if not len(numbers):
        return none(_nothing(replicates))
    if isinstance(value, Undefined):
        return none(value)
    if kind == "none":
        return none(Undefined("no bootstrap interval of this metric holds the truth often enough"))
    if np.ptp(numbers) == 0 and numbers[0] == value:
        return none(Undefined(f"all {len(numbers)} replicates equal the value, which tells nothing of its spread"))
    tail = (1 - level) / 2
    low, high = np.quantile(numbers, (tail, 1 - tail))
    bias = float(numbers.mean()) - value
    if kind == "reversed":
        if by_chance is not None and bias < LEAST_BIAS * by_chance:
            size = f"{by_chance:.2g} where groups do not matter, and resampling shows {bias:.2g} of it"
            return none(Undefined(f"too few examples to correct the bias: {size}"))
        low, high = 2 * value - high, 2 * value - low
        low, high = min(low, value), max(high, value)
    else:
        half = max(high - value, value - low)
        low = value - half - BIAS_CORRECTION * max(bias, 0.0)
        high = value + half - BIAS_CORRECTION * min(bias, 0.0)
    # What no replicate leaves is taken for the metric's range: what was reflected must not leave it either.
    if min(value, numbers.min()) >= 0:
        low = max(low, 0.0)
        if max(value, numbers.max()) <= 1:
            high = min(high, 1.0)
    return Interval(float(low), float(high), n_undefined, len(replicates), kind)


def _without_small_cells(outcome: Outcome) -> Iterator[tuple[str, Outcome]]:
    """For each cell of few examples: what it is, and the outcome without them."""
    cell = outcome.group * 2 + outcome.target
    for code, n in enumerate(np.bincount(cell, minlength=2 * len(outcome.groups)).tolist()):
        if 0 < n < SMALL_CELL:
            what = "positive" if code % 2 else "negative"
            rest = cell != code
            fewer = Outcome(outcome.score[rest], outcome.target[rest], outcome.group[rest], outcome.groups)
            if rest.any():
                yield f"group {outcome.groups[code // 2]} has {n} {what}{'s' if n > 1 else ''}", fewer


def _caution(one: Metric, interval: Interval, thin: Sequence[tuple[str, Outcome]], how: Mapping[str, Any]) -> str:
    """Why not to rely on the interval; empty if nothing is known against it."""
    low, high = interval.low, interval.high
    if isinstance(low, Undefined) or isinstance(high, Undefined):
        return ""
    said = []
    if interval.n_undefined:
        said.append(f"{interval.n_undefined} of {interval.n_replicates} replicates undefined")
    for what, fewer in thin:
        without = value_of(one, fewer, accepted_settings(one, **how))
        if isinstance(without, Undefined) or not low <= without <= high:
            said.append(what)
    return "; ".join(said)


def _kind(one: Metric) -> IntervalKind:
    return getattr(one, "interval", "symmetric")


def _numbers(values: Sequence[Value]) -> np.ndarray:
    return np.array([v for v in values if not isinstance(v, Undefined)])


def _nothing(values: Sequence[Value]) -> Undefined:
    return Undefined(f"undefined in all {len(values)} replicates")
