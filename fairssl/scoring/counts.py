"""Exact tallies of scores over the 2G cells of group and target, and the rates and AUCs read off them.

They cost one sort per data set and O(N) per resample, so that a thousand bootstrap replicates of every metric take
seconds. What has no value is `Undefined` with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fairssl.scoring.outcome import check_outcome
from fairssl.types import Outcome, Undefined, UserError, Value

THRESHOLD = 0.5  # a score strictly above it predicts y = 1
N_BUCKETS = 100
SMOOTHING = 1e-4  # added to each bucket's share before the KL divergence
EDGES = np.arange(N_BUCKETS + 1) / N_BUCKETS
Members = tuple[Sequence[int], int | None]  # some groups' examples of one target; None: of both


@dataclass(frozen=True)
class Ranks:
    """The sorted distinct scores of a data set, which every resample of it shares.

    `values` float64 (n,) ascending; `rank` int64 (N,) in 0..n-1; `below_edge` (101,) how many distinct scores lie under
    each bucket edge, the last counting all (the last bucket is closed); `rejected` how many predict y = 0.
    """

    values: np.ndarray
    rank: np.ndarray
    n: int
    below_edge: np.ndarray
    rejected: int


class Counts:
    """Tallies of one outcome over its 2G cells; cell 2g + y holds group g's examples of target y.

    `n`, `predicted` (2G,) int lists: examples, and those among them whose score predicts 1; `buckets` int64 (G, 100):
    examples per score bucket; `wins` float64 (2G, 2G): pairs whose row's example has the higher score, ties as a half.
    """

    def __init__(self, ranks: Ranks, cell: np.ndarray, n_groups: int) -> None:
        self._ranks = ranks
        n_cells = 2 * n_groups
        flat = np.bincount(cell * ranks.n + ranks.rank, minlength=n_cells * ranks.n)
        self._at = flat.reshape(n_cells, ranks.n)
        self._below = np.zeros((n_cells, ranks.n + 1), dtype=np.int64)  # a running sum of integers is ten times as fast
        np.cumsum(self._at, axis=1, out=self._below[:, 1:])
        total = self._below[:, -1]
        self.n: list[int] = total.tolist()
        self.predicted: list[int] = (total - self._below[:, ranks.rejected]).tolist()

    @cached_property
    def buckets(self) -> np.ndarray:
        per_cell = np.diff(self._below[:, self._ranks.below_edge], axis=1)
        return per_cell[0::2] + per_cell[1::2]

    def surplus(self, n_bins: int) -> np.ndarray:
        """Float64 (G, n_bins): sum of score minus target over the examples of each group in each of `n_bins` equal bins of
        [0, 1], closed on the left, the last one on both sides."""
        values = self._ranks.values
        starts = np.concatenate([[0], np.searchsorted(values, np.arange(1, n_bins) / n_bins, side="left")])
        filled = np.diff(starts, append=len(values)) > 0
        surplus = (self._at[0::2] + self._at[1::2]) * values - self._at[1::2]
        found = np.zeros((len(surplus), n_bins))
        found[:, filled] = np.add.reduceat(surplus, starts[filled], axis=1)
        return found

    @cached_property
    def wins(self) -> np.ndarray:
        # Mann-Whitney by average ranks, for all cells at once; exact in float64, since the summands are integers.
        twice = (self._below[:, :-1] + self._below[:, 1:]).astype(np.float64)
        return self._at.astype(np.float64) @ twice.T / 2


def counts(outcome: Outcome) -> Counts:
    """The outcome's tallies, made once and kept with it. An outcome with scores or groups out of range: `UserError`."""
    made = vars(outcome).get("_counts")
    if made is None:
        ranks, cell = rank_scores(check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups))
        made = keep_counts(outcome, Counts(ranks, cell, len(outcome.groups)))
    return made


def keep_counts(outcome: Outcome, made: Counts) -> Counts:
    object.__setattr__(outcome, "_counts", made)  # a frozen dataclass still has a dict; `replace` starts without
    return made


def rank_scores(outcome: Outcome) -> tuple[Ranks, np.ndarray]:
    values, rank = np.unique(outcome.score, return_inverse=True)
    below = np.searchsorted(values, EDGES, side="left")
    below[-1] = len(values)
    rejected = int(np.searchsorted(values, THRESHOLD, side="right"))
    return Ranks(values, rank.reshape(-1), len(values), below, rejected), outcome.group * 2 + outcome.target


def accuracies(outcome: Outcome) -> list[Value]:
    """Share of right decisions in each group, in [0, 1]."""
    c = counts(outcome)
    right = [c.n[2 * g] - c.predicted[2 * g] + c.predicted[2 * g + 1] for g in range(len(outcome.groups))]
    return [_share(outcome, k, ((g,), None)) for g, k in enumerate(right)]


def positive_rates(outcome: Outcome) -> list[Value]:
    """P(score > 0.5 | group) for each group, in [0, 1]."""
    p = counts(outcome).predicted
    return [_share(outcome, p[2 * g] + p[2 * g + 1], ((g,), None)) for g in range(len(outcome.groups))]


def true_positive_rates(outcome: Outcome) -> list[Value]:
    """P(score > 0.5 | y = 1, group) for each group, in [0, 1]."""
    return [_share(outcome, counts(outcome).predicted[2 * g + 1], ((g,), 1)) for g in range(len(outcome.groups))]


def false_positive_rates(outcome: Outcome) -> list[Value]:
    """P(score > 0.5 | y = 0, group) for each group, in [0, 1]."""
    return [_share(outcome, counts(outcome).predicted[2 * g], ((g,), 0)) for g in range(len(outcome.groups))]


def cell_accuracies(outcome: Outcome) -> list[Value]:
    """Share of right decisions in each cell (2G,): group 0's y = 0, group 0's y = 1, group 1's y = 0, ..."""
    c = counts(outcome)
    return [
        _share(outcome, c.predicted[i] if i % 2 else c.n[i] - c.predicted[i], ((i // 2,), i % 2))
        for i in range(len(c.n))
    ]


def calibration_errors(outcome: Outcome, n_bins: int = 10) -> list[Value]:
    """Expected calibration error of each group, in [0, 1]: the mean over its examples, bin by bin of the score, of
    |mean score - share of y = 1|. Naeini, Cooper and Hauskrecht, Obtaining Well Calibrated Probabilities Using Bayesian
    Binning, AAAI 2015, for the probability of y = 1. Bins are [k/B, (k+1)/B), the last one closed: a score of 1 is in it.
    """
    if n_bins < 1:
        raise UserError(f"n_bins {n_bins}: a calibration error needs at least 1 bin")
    surplus = np.abs(counts(outcome).surplus(n_bins)).sum(axis=1).tolist()
    sizes = [negatives + positives for negatives, positives in cell_counts(outcome)]
    return [s / n if n else _nobody(outcome, ((g,), None)) for g, (s, n) in enumerate(zip(surplus, sizes, strict=True))]


def one_class(outcome: Outcome) -> int | None:
    """The class that all predictions are of, 0 or 1; None if both occur. All gaps in decisions are 0 then, for want of
    decisions rather than for fairness."""
    found = counts(outcome)
    predicted, n = sum(found.predicted), sum(found.n)
    return None if 0 < predicted < n else int(predicted > 0)


def cell_counts(outcome: Outcome) -> list[tuple[int, int]]:
    """(examples of y = 0, examples of y = 1) for each group."""
    n = counts(outcome).n
    return list(zip(n[0::2], n[1::2], strict=True))


def _share(outcome: Outcome, count: int, of: Members) -> Value:
    n = sum(counts(outcome).n[i] for i in _cells(of))
    return count / n if n else _nobody(outcome, of)


def _cells(members: Members) -> list[int]:
    groups, target = members
    return [2 * g + y for g in groups for y in ((0, 1) if target is None else (target,))]


def _nobody(outcome: Outcome, members: Members) -> Undefined:
    """Why nothing can be said of these members, the emptier cause first."""
    groups, target = members
    n = counts(outcome).n
    many = len(groups) > 1
    who = f"{'groups' if many else 'group'} {', '.join(outcome.groups[g] for g in groups)}"
    if target is None or not any(n[i] for i in _cells((groups, None))):
        return Undefined(f"{who} {'have' if many else 'has'} 0 samples")
    return Undefined(f"{who} {'have' if many else 'has'} no {'positive' if target else 'negative'}")


def auc(outcome: Outcome, above: Members, below: Members) -> Value:
    """P(s > s') + P(s = s') / 2 for s of `above` and s' of `below` (Mann-Whitney, average ranks); 1/2 is no separation.

    `auc(o, ((0,), 1), ((1,), 0))` is how often group 0's positives score over group 1's negatives.
    """
    c = counts(outcome)
    rows, columns = _cells(above), _cells(below)
    pairs = sum(c.n[i] for i in rows) * sum(c.n[i] for i in columns)
    if not pairs:
        return _nobody(outcome, above if not any(c.n[i] for i in rows) else below)
    return float(c.wins[rows][:, columns].sum()) / pairs


def bucket_shares(outcome: Outcome) -> list[np.ndarray | Undefined]:
    """For each group the share of its scores in each of 100 buckets, float64 (100,), summing to 1.

    Bucket k is [k/100, (k+1)/100), the last one closed; edges are the float64 quotients: 0.29 lies in bucket 29.
    """
    n = counts(outcome).n
    return [
        row / total if (total := n[2 * g] + n[2 * g + 1]) else _nobody(outcome, ((g,), None))
        for g, row in enumerate(counts(outcome).buckets)
    ]


def wasserstein(p: np.ndarray, q: np.ndarray) -> float:
    """First Wasserstein distance of two bucket distributions (100,), in score units: mean absolute gap of the CDFs."""
    return float(np.abs(np.cumsum(p - q)[:-1]).sum()) / N_BUCKETS


def kl_divergence(p: np.ndarray, q: np.ndarray) -> float:
    """KL(p || q) in nats of two bucket distributions (100,), each smoothed: (p + 1e-4) / (1 + 100 x 1e-4)."""
    p, q = ((x + SMOOTHING) / (1 + N_BUCKETS * SMOOTHING) for x in (p, q))
    return max(0.0, float((p * np.log(p / q)).sum()))  # equal distributions may sum to -1e-17
