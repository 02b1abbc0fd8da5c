"""Bootstrap intervals and noise floors. Nothing here is random without a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from fairssl.interfaces import Metric
from fairssl.scoring.counts import Counts, Ranks, keep_counts, rank_scores
from fairssl.scoring.groups import Pairs, WhenUndefined
from fairssl.scoring.metrics import accepted_settings, columns, value_of
from fairssl.scoring.outcome import check_outcome
from fairssl.types import Outcome, Progress, Undefined, UserError, Value, silent

Null = Literal["metric", "data", "target"]


@dataclass(frozen=True)
class Interval:
    """Percentile interval of one metric over `n_replicates` resamples, of which `n_undefined` had no value.

    With undefined replicates the interval is that of the others only, and not to be relied upon.
    """

    low: Value
    high: Value
    n_undefined: int
    n_replicates: int


@dataclass(frozen=True)
class Floor:
    """What a metric measures where groups do not matter: its mean and 95 % quantile over permuted groups."""

    mean: Value
    high: Value
    n_undefined: int
    n_replicates: int


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
    """Percentile bootstrap interval of every metric, by drawing N rows with replacement; symbol -> `Interval`.

    Rows are drawn from all rows alike, not within groups, so a small group may lack members in a replicate; such
    replicates are counted. A resample adds noise to the noise of the data, which moves the interval of a biased metric
    upwards: KL's may lie wholly above its value, and a gap near 0 has none below. Same seed, same intervals.
    """
    if n_replicates < 1:
        raise UserError(f"bootstrap needs at least 1 replicate, not {n_replicates}; 1000 is usual")
    rng = np.random.default_rng(seed)
    n = len(outcome.score)

    def draws() -> Iterator[Outcome]:
        ranks, cell = rank_scores(check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups))
        for _ in range(n_replicates):
            rows = rng.integers(0, n, n)
            drawn = Outcome(outcome.score[rows], outcome.target[rows], outcome.group[rows], outcome.groups)
            again = Ranks(ranks.rank[rows], ranks.n, ranks.below_edge, ranks.rejected)
            keep_counts(drawn, Counts(again, cell[rows], len(outcome.groups)))
            yield drawn

    tail = (1 - level) / 2
    table = _replicate(draws(), columns(), n_replicates, pairs, undefined, progress, "bootstrap")
    return {
        symbol: Interval(*_summary(values, lambda v: np.quantile(v, (tail, 1 - tail))))
        for symbol, values in table.items()
    }


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
    once the target is known. Default: the second for metrics that condition on the target (`given_target`: ED, EO,
    IntraAUC, ...), the first for the others, which the second would charge with the groups' base rates. Only metrics
    whose fair value is the lowest are in it. KL is biased most: about 49.5 (1/n_0 + 1/n_1) on 100 buckets.
    """
    if n_replicates < 1:
        raise UserError(f"a noise floor needs at least 1 permutation, not {n_replicates}; 200 is usual")
    ranks, _ = rank_scores(check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups))
    strata = {"data": [np.arange(len(outcome.score))], "target": [np.flatnonzero(outcome.target == y) for y in (0, 1)]}

    def permuted(where: Sequence[np.ndarray], rng: np.random.Generator) -> Iterator[Outcome]:
        for _ in range(n_replicates):
            group = np.empty_like(outcome.group)
            for rows in where:
                group[rows] = rng.permutation(outcome.group[rows])
            drawn = Outcome(outcome.score, outcome.target, group, outcome.groups)
            keep_counts(drawn, Counts(ranks, group * 2 + outcome.target, len(outcome.groups)))
            yield drawn

    gaps = [m for m in columns() if m.better == "lower"]
    found: dict[str, list[Value]] = {}
    for name, where in strata.items():
        chosen = [m for m in gaps if name == (within if within != "metric" else "target" if m.given_target else "data")]
        if chosen:
            draws = permuted(where, np.random.default_rng(seed))
            found |= _replicate(draws, chosen, n_replicates, pairs, undefined, progress, f"permutations within {name}")
    return {
        m.symbol: Floor(*_summary(found[m.symbol], lambda v: (float(np.mean(v)), np.quantile(v, 0.95)))) for m in gaps
    }


def _replicate(
    draws: Iterator[Outcome],
    metrics: Sequence[Metric],
    n: int,
    pairs: Pairs,
    undefined: WhenUndefined,
    progress: Progress,
    what: str,
) -> dict[str, list[Value]]:
    settings = [accepted_settings(m, pairs, undefined) for m in metrics]
    table: dict[str, list[Value]] = {m.symbol: [] for m in metrics}
    for done, drawn in enumerate(draws, start=1):
        for one, chosen in zip(metrics, settings, strict=True):
            table[one.symbol].append(value_of(one, drawn, chosen))
        progress(what, done, n)
    return table


def _summary(values: Sequence[Value], two: Callable[[np.ndarray], Sequence[float]]) -> tuple[Value, Value, int, int]:
    numbers = np.array([v for v in values if not isinstance(v, Undefined)])
    n_undefined = len(values) - len(numbers)
    if not len(numbers):
        nothing = Undefined(f"undefined in all {len(values)} replicates")
        return nothing, nothing, n_undefined, len(values)
    low, high = two(numbers)
    return float(low), float(high), n_undefined, len(values)
