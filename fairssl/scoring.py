"""What metrics are made of: rates by group, AUCs, score buckets, averages over groups, intervals and noise floors.

Everything is read off `Counts`, exact tallies over the 2G cells of group and target. They cost one sort per data set
and O(N) per resample, so that a thousand bootstrap replicates of every metric take seconds. Nothing here is random
without a seed, and what has no value is `Undefined` with the reason.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from fairssl import registry
from fairssl.plugin import Metric
from fairssl.types import Outcome, Progress, Undefined, UserError, Value, silent

Pairs = Literal["adjacent", "all"]
WhenUndefined = Literal["propagate", "omit"]
Null = Literal["metric", "data", "target"]

THRESHOLD = 0.5  # a score strictly above it predicts y = 1
N_BUCKETS = 100
SMOOTHING = 1e-4  # added to each bucket's share before the KL divergence
EDGES = np.arange(N_BUCKETS + 1) / N_BUCKETS
MAX_GROUPS = 100  # more is an identifier or a continuous value, not a sensitive attribute

Members = tuple[Sequence[int], int | None]  # some groups' examples of one target; None: of both


# --------------------------------------------------------------------------- from raw arrays to an outcome


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


# --------------------------------------------------------------------------- counts


@dataclass(frozen=True)
class _Ranks:
    """The sorted distinct scores of a data set, which every resample of it shares.

    `rank` int64 (N,) in 0..n-1; `below_edge` (101,) how many distinct scores lie under each bucket edge, the last
    counting all (the last bucket is closed); `rejected` how many predict y = 0.
    """

    rank: np.ndarray
    n: int
    below_edge: np.ndarray
    rejected: int


class Counts:
    """Tallies of one outcome over its 2G cells; cell 2g + y holds group g's examples of target y.

    `n`, `predicted` (2G,) int lists: examples, and those among them whose score predicts 1; `buckets` int64 (G, 100):
    examples per score bucket; `wins` float64 (2G, 2G): pairs whose row's example has the higher score, ties as a half.
    """

    def __init__(self, ranks: _Ranks, cell: np.ndarray, n_groups: int) -> None:
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

    @cached_property
    def wins(self) -> np.ndarray:
        # Mann-Whitney by average ranks, for all cells at once; exact in float64, since the summands are integers.
        twice = (self._below[:, :-1] + self._below[:, 1:]).astype(np.float64)
        return self._at.astype(np.float64) @ twice.T / 2


def counts(outcome: Outcome) -> Counts:
    """The outcome's tallies, made once and kept with it. An outcome with scores or groups out of range: `UserError`."""
    made = vars(outcome).get("_counts")
    if made is None:
        ranks, cell = _rank(check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups))
        made = _keep(outcome, Counts(ranks, cell, len(outcome.groups)))
    return made


def _keep(outcome: Outcome, made: Counts) -> Counts:
    object.__setattr__(outcome, "_counts", made)  # a frozen dataclass still has a dict; `replace` starts without
    return made


def _rank(outcome: Outcome) -> tuple[_Ranks, np.ndarray]:
    values, rank = np.unique(outcome.score, return_inverse=True)
    below = np.searchsorted(values, EDGES, side="left")
    below[-1] = len(values)
    ranks = _Ranks(rank.reshape(-1), len(values), below, int(np.searchsorted(values, THRESHOLD, side="right")))
    return ranks, outcome.group * 2 + outcome.target


# --------------------------------------------------------------------------- rates by group


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


# --------------------------------------------------------------------------- AUCs and buckets


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


# --------------------------------------------------------------------------- more than two groups


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


# --------------------------------------------------------------------------- all metrics at once


def columns() -> list[Metric]:
    """Every registered metric, in the order of a table's columns."""
    found = sorted((registry.metrics.get(name) for name in registry.metrics.where()), key=lambda m: (m.order, m.symbol))
    names: dict[str, str] = {}
    for one in found:
        if one.symbol in names:
            raise UserError(
                f"metrics {names[one.symbol]!r} and {one.name!r} both have the symbol {one.symbol!r}; rename one"
            )
        names[one.symbol] = one.name
    return found


def evaluate(
    outcome: Outcome, *, pairs: Pairs = "adjacent", undefined: WhenUndefined = "propagate"
) -> dict[str, Value]:
    """Every registered metric of the outcome, symbol -> fraction or `Undefined`, in the order of the columns.

    `pairs` and `undefined` go to the metrics that take them: how more than two groups are averaged, and what becomes of
    the average when a part is undefined.
    """
    return {m.symbol: _value(m, outcome, _accepted(m, pairs, undefined)) for m in columns()}


def readings(
    outcome: Outcome, *, pairs: Pairs = "adjacent", undefined: WhenUndefined = "propagate"
) -> dict[str, dict[str, Value]]:
    """The values under the other readings in use: symbol -> reading -> value, as {"ED": {"max": ..., "sum": ...}}.

    A metric has readings if it takes a keyword `reading`, a `Literal` of their names with the headline one as default.
    """
    from typing import get_args, get_type_hints

    found: dict[str, dict[str, Value]] = {}
    for one in columns():
        parameter = inspect.signature(one).parameters.get("reading")
        if parameter is None:
            continue
        settings = _accepted(one, pairs, undefined)
        names = [n for n in get_args(get_type_hints(one)["reading"]) if n != parameter.default]
        found[one.symbol] = {name: _value(one, outcome, {**settings, "reading": name}) for name in names}
    return found


def _accepted(one: Metric, pairs: Pairs, undefined: WhenUndefined) -> dict[str, Any]:
    parameters = inspect.signature(one).parameters
    return {k: v for k, v in (("pairs", pairs), ("undefined", undefined)) if k in parameters}


def _value(one: Metric, outcome: Outcome, settings: Mapping[str, Any]) -> Value:
    value = one(outcome, **settings)
    if isinstance(value, Undefined):
        return value
    if not math.isfinite(value):
        raise ValueError(f"metric {one.name!r} returned {value}; a value that does not exist is Undefined(reason)")
    return value if isinstance(value, float) else float(value)


# --------------------------------------------------------------------------- resampling


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
        ranks, cell = _rank(check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups))
        for _ in range(n_replicates):
            rows = rng.integers(0, n, n)
            drawn = Outcome(outcome.score[rows], outcome.target[rows], outcome.group[rows], outcome.groups)
            again = _Ranks(ranks.rank[rows], ranks.n, ranks.below_edge, ranks.rejected)
            _keep(drawn, Counts(again, cell[rows], len(outcome.groups)))
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
    ranks, _ = _rank(check_outcome(outcome.score, outcome.target, outcome.group, outcome.groups))
    strata = {"data": [np.arange(len(outcome.score))], "target": [np.flatnonzero(outcome.target == y) for y in (0, 1)]}

    def permuted(where: Sequence[np.ndarray], rng: np.random.Generator) -> Iterator[Outcome]:
        for _ in range(n_replicates):
            group = np.empty_like(outcome.group)
            for rows in where:
                group[rows] = rng.permutation(outcome.group[rows])
            drawn = Outcome(outcome.score, outcome.target, group, outcome.groups)
            _keep(drawn, Counts(ranks, group * 2 + outcome.target, len(outcome.groups)))
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
    settings = [_accepted(m, pairs, undefined) for m in metrics]
    table: dict[str, list[Value]] = {m.symbol: [] for m in metrics}
    for done, drawn in enumerate(draws, start=1):
        for one, chosen in zip(metrics, settings, strict=True):
            table[one.symbol].append(_value(one, drawn, chosen))
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
