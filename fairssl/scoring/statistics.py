"""Statistics over the seeds of a method: spread, paired tests between methods, and which are not told apart.

The values of one method are a mapping from seed to a metric's value on the test set, a fraction, or None (or `Undefined`)
where it does not exist. Tests are paired by seed: equal seeds share data splits and annotated subsets.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from fairssl.types import Undefined, Value

Seeds = Mapping[int, Value | None]
K = TypeVar("K", bound=Hashable)


@dataclass(frozen=True)
class SeedSummary:
    """Mean over seeds, sample standard deviation (n - 1), and the 95 % t interval of the mean."""

    n: int
    mean: Value
    sd: Value
    low: Value
    high: Value


@dataclass(frozen=True)
class PairedTest:
    """Paired comparison of two methods a and b: mean of a - b over `n` common seeds, its t interval, and the p value."""

    n: int
    difference: Value
    low: Value
    high: Value
    p: Value


@dataclass(frozen=True)
class TieGroup:
    """Which rows of a column are not told apart from the best one.

    `tied` holds the best row and all that Holm-corrected paired t tests do not tell apart from it, by the alphabet;
    `p` the corrected p value of each other row against the best, or why there is none (such a row is in `tied`: nothing
    tells it apart). No row is in it where there is nothing to test with; `reason` says why.
    """

    best: str | None
    tied: tuple[str, ...]
    p: Mapping[str, Value]
    reason: str = ""


def summarize(values: Sequence[Value | None], level: float = 0.95) -> SeedSummary:
    """Mean, sample standard deviation and t interval over seeds, in the units of the values.

    A method with an undefined seed has no mean; with one seed there is no spread and no interval.
    """
    n = len(values)
    if not n:
        return _no_summary(0, Undefined("no seed"))
    why = [_reason(v) for v in values if not _defined(v)]
    if why:
        return _no_summary(n, Undefined(f"undefined for {len(why)} of {n} seeds: {why[0]}"))
    numbers = [float(v) for v in values if v is not None and not isinstance(v, Undefined)]
    mean = math.fsum(numbers) / n
    if n == 1:
        one = Undefined("one seed has no spread")
        return SeedSummary(1, mean, one, one, one)
    sd = _sd(numbers, mean)
    half = _t_quantile(level, n - 1) * sd / math.sqrt(n)
    return SeedSummary(n, mean, sd, mean - half, mean + half)


def paired_t_test(a: Seeds, b: Seeds, level: float = 0.95) -> PairedTest:
    """Two-sided paired t test over the seeds that both methods have; p in [0, 1].

    Student, The Probable Error of a Mean, Biometrika 1908. Exchanging the two changes the sign of the difference and
    nothing else. Undefined for fewer than two common seeds, and where all differences are one number other than 0 (no
    spread to compare it with); equal values throughout have p = 1.
    """
    common = [seed for seed in sorted(set(a) & set(b)) if _defined(a[seed]) and _defined(b[seed])]
    n = len(common)
    if n < 2:
        few = Undefined(f"{n} common seed{'' if n == 1 else 's'}; a paired test needs two")
        return PairedTest(n, few, few, few, few)
    pairs = [(float(a[seed]), float(b[seed])) for seed in common]  # type: ignore[arg-type]
    differences = [x - y for x, y in pairs]
    difference = math.fsum(differences) / n
    sd = _sd(differences, difference)
    rounding = 1e-12 * max(abs(x) for pair in pairs for x in pair)
    if sd <= rounding:
        same = Undefined("the difference is the same for every seed, which tells nothing of its spread")
        return PairedTest(n, difference, same, same, 1.0 if abs(difference) <= rounding else same)
    from scipy.special import stdtr

    error = sd / math.sqrt(n)
    half = _t_quantile(level, n - 1) * error
    p = 2 * float(stdtr(n - 1, -abs(difference) / error))
    return PairedTest(n, difference, difference - half, difference + half, p)


def holm(p: Mapping[K, Value]) -> dict[K, Value]:
    """p values corrected for their number, which keeps the chance of any false finding below the level.

    Holm, A Simple Sequentially Rejective Multiple Test Procedure, Scandinavian Journal of Statistics 1979. Undefined ones
    stay undefined and are not counted: those tests were not made.
    """
    made = sorted(((value, place) for place, value in enumerate(p.values()) if not isinstance(value, Undefined)))
    corrected: dict[int, float] = {}
    largest = 0.0
    for rank, (value, place) in enumerate(made):
        largest = max(largest, min(1.0, value * (len(made) - rank)))
        corrected[place] = largest
    return {key: corrected.get(place, value) for place, (key, value) in enumerate(p.items())}


def tie_group(rows: Mapping[str, Seeds], better: Literal["higher", "lower"], alpha: float = 0.05) -> TieGroup:
    """Which rows of one column are not told apart from its best row at level `alpha`.

    The best row is the one of the best mean, the first by the alphabet of equal ones; every other row is compared with it
    by a paired t test, and the p values are corrected for their number (`holm`). Rows with an undefined seed have no mean
    and take no part. Which rows compete is the caller's choice. With one row there is nothing to compare: it is the best.
    """
    means = {name: summarize(list(seeds.values())).mean for name, seeds in rows.items()}
    defined = {name: mean for name, mean in means.items() if not isinstance(mean, Undefined)}
    if not defined:
        return TieGroup(None, (), {}, "no row has a value")
    sign = -1 if better == "higher" else 1
    best = min(sorted(defined), key=lambda name: sign * defined[name])
    tests = {name: paired_t_test(rows[name], rows[best]).p for name in sorted(defined) if name != best}
    if tests and all(isinstance(p, Undefined) for p in tests.values()):
        reasons = {p.reason for p in tests.values() if isinstance(p, Undefined)}
        return TieGroup(best, (), tests, f"no row can be told apart from {best}: {', '.join(sorted(reasons))}")
    corrected = holm(tests)
    tied = [name for name, p in corrected.items() if isinstance(p, Undefined) or p > alpha]
    return TieGroup(best, tuple(sorted([best, *tied])), corrected)


def _t_quantile(level: float, df: int) -> float:
    """How many standard errors a two-sided t interval reaches to each side."""
    from scipy.special import stdtrit

    return float(stdtrit(df, (1 + level) / 2))


def _sd(values: Sequence[float], mean: float) -> float:
    return math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1))


def _defined(value: Value | None) -> bool:
    return value is not None and not isinstance(value, Undefined)


def _reason(value: Value | None) -> str:
    return value.reason if isinstance(value, Undefined) else "not measured"


def _no_summary(n: int, why: Undefined) -> SeedSummary:
    return SeedSummary(n, why, why, why, why)
