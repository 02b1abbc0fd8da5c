"""Checks of metrics."""

from __future__ import annotations

import inspect
import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from fairssl import kinds
from fairssl.interfaces import IntervalKind
from fairssl.scoring.groups import Pairs
from fairssl.scoring.metrics import accepted_settings
from fairssl.scoring.outcome import check_outcome
from fairssl.testing.contract import Skipped, Steps, check_docstrings
from fairssl.types import Outcome, Undefined, Value


def metric_checks(name: str, metric: Any) -> Steps:
    rng = np.random.Generator(np.random.PCG64(11))
    n = 240

    def outcome(score: Any, target: Any, group: Any, n_groups: int = 2) -> Outcome:
        return check_outcome(score, target, group, [str(g) for g in range(n_groups)])

    target, group = np.arange(n) % 2, np.arange(n) // 2 % 2
    noisy = np.clip(0.35 + 0.3 * target + 0.1 * group + 0.2 * rng.standard_normal(n), 0, 1)

    def value(given: Outcome, what: str, **settings: Any) -> Value:
        found = metric(given, **settings)
        if isinstance(found, Undefined):
            assert found.reason.strip(), f"{what}: Undefined without a reason"
            return found
        assert isinstance(found, float | int | np.floating), f"{what}: a {type(found).__name__} instead of a float"
        assert math.isfinite(found), f"{what}: {found}; what has no value is Undefined(reason)"
        if metric.percent:
            assert -1e-9 <= found <= 1 + 1e-9, f"{what}: {found}; a share lies in [0, 1] and is no percentage"
        return float(found)

    def close(a: Value, b: Value) -> bool:
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            return type(a) is type(b)
        return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)

    def facts() -> None:
        check_docstrings(metric, kinds.metrics, name)
        assert metric.symbol.isidentifier(), f"symbol {metric.symbol!r} must be a word: it is a column and a JSON key"
        assert metric.better in ("higher", "lower"), f"better is {metric.better!r}"
        kind = getattr(metric, "interval", "symmetric")
        assert kind in get_args(IntervalKind), f"interval is {kind!r}; known: {', '.join(get_args(IntervalKind))}"
        for label, parameter in list(inspect.signature(metric).parameters.items())[1:]:
            has_default = parameter.default is not inspect.Parameter.empty
            assert has_default and parameter.kind is parameter.KEYWORD_ONLY, (
                f"parameter {label!r} must be keyword-only with a default"
            )
        for other, found in kinds.metrics.working().items():
            assert found is metric or found.symbol != metric.symbol, f"metric {other!r} has the symbol too: rename one"

    def defined() -> None:
        found = value(outcome(noisy, target, group), "ordinary scores")
        assert not isinstance(found, Undefined), f"undefined for ordinary scores of two groups: {found}"

    def perfect() -> None:
        best = value(outcome(target * 1.0, target, group), "perfect scores")
        worst = value(outcome(1.0 - target, target, group), "reversed scores")
        if not isinstance(best, Undefined) and not isinstance(worst, Undefined):
            in_order = best >= worst - 1e-12 if metric.better == "higher" else best <= worst + 1e-12
            assert in_order, f"perfect scores give {best}, reversed ones {worst}, but {metric.better} is better"

    def constant() -> None:
        for score in (0.0, 0.5, 1.0):
            value(outcome(np.full(n, score), target, group), f"a constant score of {score}")

    def absent() -> None:
        value(outcome(noisy, target, group, n_groups=3), "a declared group without examples")
        value(outcome(noisy, target, np.zeros(n)), "one group of two without examples")
        value(outcome(noisy, np.where(group == 1, 0, target), group), "a group without positives")
        value(outcome(noisy, np.ones(n), group), "no negative at all")
        value(outcome(noisy[:1], target[:1], group[:1]), "a single example")

    def small() -> None:
        for trial in range(60):
            k, rows = int(rng.integers(2, 6)), int(rng.integers(1, 12))
            given = outcome(rng.integers(0, 5, rows) / 4, rng.integers(0, 2, rows), rng.integers(0, k, rows), k)
            value(given, f"{rows} rows of {k} groups (trial {trial})")

    def rows() -> None:
        order = rng.permutation(n)
        before = value(outcome(noisy, target, group), "ordinary scores")
        after = value(outcome(noisy[order], target[order], group[order]), "shuffled rows")
        assert close(before, after), f"{before}, and {after} with the rows in another order"

    def symmetry() -> None:
        if not metric.symmetric:
            raise Skipped("depends on which group is declared first, as it says itself")
        before = value(outcome(noisy, target, group), "ordinary scores")
        after = value(outcome(noisy, target, 1 - group), "group codes exchanged")
        assert close(before, after), f"{before}, and {after} with the two groups' codes exchanged; or symmetric=False"

    def many_groups() -> None:
        if "pairs" not in inspect.signature(metric).parameters:
            raise Skipped("does not take `pairs`")
        offered = [p for p in get_args(Pairs) if not isinstance(accepted_settings(metric, p, "propagate"), Undefined)]
        two, four = outcome(noisy, target, group), outcome(noisy, target, np.arange(n) // 2 % 4, n_groups=4)
        first = value(two, "two groups", pairs=offered[0])
        for pairs in offered:
            found, many = value(two, "two groups", pairs=pairs), value(four, "four groups", pairs=pairs)
            assert close(first, found), (
                f"two groups have one pair, but pairs={pairs!r} gives {found} where {first} is due"
            )
            if pairs == "adjacent" or not metric.symmetric:
                continue
            code = np.array([2, 0, 3, 1])
            other = value(replace(four, group=code[four.group]), "four groups, codes exchanged", pairs=pairs)
            assert close(many, other), (
                f"{many} with pairs={pairs!r}, and {other} with the codes of four groups exchanged"
            )

    def pure() -> None:
        given = outcome(noisy, target, group)
        copies = given.score.copy(), given.target.copy(), given.group.copy()
        first, second = value(given, "ordinary scores"), value(given, "ordinary scores")
        assert close(first, second), f"{first}, and {second} when asked again"
        kept = all(np.array_equal(a, b) for a, b in zip(copies, (given.score, given.target, given.group), strict=True))
        assert kept, "it changes the predictions it is given"

    return [
        ("docstrings, symbol and version", facts),
        ("defined for ordinary scores", defined),
        ("perfect and reversed scores", perfect),
        ("constant scores", constant),
        ("an absent group or class", absent),
        ("few rows, many groups: a number or Undefined", small),
        ("the rows' order does not matter", rows),
        ("exchanging two groups' codes", symmetry),
        ("more than two groups, by each way to pair them", many_groups),
        ("same answer twice, input untouched", pure),
    ]
