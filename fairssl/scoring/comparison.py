"""Two sets of predictions for the same examples: is the difference of a metric more than chance?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fairssl.scoring.counts import Counts, keep_counts, rank_scores
from fairssl.scoring.groups import Pairs, WhenUndefined
from fairssl.scoring.metrics import accepted_settings, columns, value_of
from fairssl.scoring.outcome import check_outcome
from fairssl.types import Outcome, Progress, Undefined, UserError, Value, silent


@dataclass(frozen=True)
class SampleTest:
    """Difference of a metric between two sets of predictions for the same examples, and its p value.

    `p` is the share of `n_replicates` exchanges, and the predictions as they are, whose difference is at least as large;
    `n_undefined` of them had none and are left out.
    """

    difference: Value
    p: Value
    n_undefined: int
    n_replicates: int


def compare_predictions(
    a: Outcome,
    b: Outcome,
    n_replicates: int = 1000,
    seed: int = 0,
    *,
    pairs: Pairs = "adjacent",
    undefined: WhenUndefined = "propagate",
    progress: Progress = silent,
) -> dict[str, SampleTest]:
    """Paired permutation test of every metric between two methods on the same examples; symbol -> `SampleTest`.

    If the two predict alike, their scores of an example may be exchanged: each replicate exchanges those of a random half
    of the examples (Good, Permutation, Parametric and Bootstrap Tests of Hypotheses, Springer 2005). It says whether two
    given models differ, not whether two methods do; that is for `statistics.paired_t_test` over seeds. Exchanging a
    and b changes the sign of the difference and nothing else. The same seed gives the same values. Raises `UserError` if
    targets, groups or their labels are not the same.
    """
    if n_replicates < 1:
        raise UserError(f"a permutation test needs at least 1 replicate, not {n_replicates}; 1000 is usual")
    a, b = (check_outcome(one.score, one.target, one.group, one.groups) for one in (a, b))
    _same_examples(a, b)
    metrics = columns()
    settings = [accepted_settings(m, pairs, undefined) for m in metrics]

    def differences(first: Outcome, second: Outcome) -> list[Value]:
        found: list[Value] = []
        for one, how in zip(metrics, settings, strict=True):
            x, y = value_of(one, first, how), value_of(one, second, how)
            found.append(x if isinstance(x, Undefined) else y if isinstance(y, Undefined) else x - y)
        return found

    observed = differences(a, b)
    table = []
    for done, (first, second) in enumerate(_exchanged(a, b, n_replicates, seed), start=1):
        table.append(differences(first, second))
        progress("exchanges", done, n_replicates)
    by_metric = zip(metrics, observed, zip(*table, strict=True), strict=True)
    return {one.symbol: _test(difference, list(drawn)) for one, difference, drawn in by_metric}


def _same_examples(a: Outcome, b: Outcome) -> None:
    if len(a.score) != len(b.score):
        raise UserError(f"predictions for {len(a.score)} and {len(b.score)} examples cannot be compared pair by pair")
    if a.groups != b.groups:
        raise UserError(f"predictions with groups {', '.join(a.groups)} and {', '.join(b.groups)} cannot be compared")
    other = (a.target != b.target) | (a.group != b.group)
    if other.any():
        first = int(np.argmax(other))
        raise UserError(
            f"the predictions are of different examples: target or group differ in {int(other.sum())} of {len(other)} "
            f"rows, first in row {first + 1}; put both in the same order"
        )


def _exchanged(a: Outcome, b: Outcome, n_replicates: int, seed: int) -> Iterator[tuple[Outcome, Outcome]]:
    """Both sets of predictions with the scores of a random half of the examples exchanged, their tallies made."""
    rng = np.random.default_rng(seed)
    n = len(a.score)
    both = Outcome(np.concatenate([a.score, b.score]), np.tile(a.target, 2), np.tile(a.group, 2), a.groups)
    ranks, cells = rank_scores(both)
    rank_a, rank_b, cell = ranks.rank[:n], ranks.rank[n:], cells[:n]

    def outcome(take_b: np.ndarray) -> Outcome:
        one = replace(a, score=np.where(take_b, b.score, a.score))
        rank = np.where(take_b, rank_b, rank_a)
        keep_counts(one, Counts(replace(ranks, rank=rank), cell, len(a.groups)))
        return one

    for _ in range(n_replicates):
        exchange = rng.integers(0, 2, n).astype(bool)
        yield outcome(exchange), outcome(~exchange)


def _test(difference: Value, drawn: list[Value]) -> SampleTest:
    numbers = np.array([d for d in drawn if not isinstance(d, Undefined)])
    n_undefined = len(drawn) - len(numbers)
    if isinstance(difference, Undefined):
        return SampleTest(difference, difference, n_undefined, len(drawn))
    as_large = int((np.abs(numbers) >= abs(difference) - 1e-12).sum())  # equal ones may differ by rounding
    return SampleTest(difference, (1 + as_large) / (1 + len(numbers)), n_undefined, len(drawn))
