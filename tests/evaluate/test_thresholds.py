"""A threshold for each group: against exhaustive search and a linear programme, and from the command line."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linprog

from fairssl.evaluate import thresholds
from fairssl.evaluate.thresholds import Mixture, adjusted, curve, fit
from fairssl.types import UserError


def drawn(n: int, n_groups: int, seed: int, ties: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, targets and groups; each group has both targets, and the groups' scores are shifted."""
    rng = np.random.Generator(np.random.PCG64(seed))
    group = np.arange(n) % n_groups
    target = (np.arange(n) // n_groups) % 2
    score = 1 / (1 + np.exp(-(rng.normal(size=n) + 1.2 * target + 0.5 * group)))
    return (np.round(score, 2) if ties else score), target, group


def rates(rule: Mixture, score: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """Expected (fpr, tpr) of a rule on a group's images."""
    found = []
    for y in (0, 1):
        s = score[target == y]
        by_threshold = rule.share * (s > rule.high).mean() + (1 - rule.share) * (s > rule.low).mean()
        found.append(float(rule.trust * by_threshold + (1 - rule.trust) * rule.coin))
    return found[0], found[1]


def programme(score: np.ndarray, target: np.ndarray, group: np.ndarray) -> float:
    """The fewest expected errors of any predictor with equal rates that never prefers a lower score in a group, at random
    between thresholds or not: P(y^ = 1 | score, group) as unknowns, rising with the score."""
    cells = sorted({(g, s) for g, s in zip(group, score, strict=True)})
    codes = sorted(set(group))
    cost, constant = np.zeros(len(cells)), float((target == 1).sum())
    share = np.zeros((len(codes), 2, len(cells)))
    for at, (g, s) in enumerate(cells):
        for y in (0, 1):
            n = int(((group == g) & (score == s) & (target == y)).sum())
            cost[at] += n if y == 0 else -n
            share[g, y, at] = n / ((group == g) & (target == y)).sum()
    equal = np.concatenate([share[0] - share[g] for g in codes[1:]])
    rising = []
    for at in range(len(cells) - 1):
        if cells[at][0] == cells[at + 1][0]:
            row = np.zeros(len(cells))
            row[at], row[at + 1] = 1, -1
            rising.append(row)
    found = linprog(cost, np.array(rising), np.zeros(len(rising)), equal, np.zeros(len(equal)), bounds=(0, 1))
    assert found.status == 0
    return constant + float(found.fun)


@pytest.mark.parametrize("n_groups", [2, 5])
@pytest.mark.parametrize("seed", range(6))
def test_odds_are_equal_with_as_few_errors_as_any_that_rises_with_the_score(n_groups: int, seed: int) -> None:
    score, target, group = drawn(60, n_groups, seed)
    rules = fit(score, target, group, [str(g) for g in range(n_groups)], "odds")
    found = [rates(rule, score[group == g], target[group == g]) for g, rule in enumerate(rules)]
    assert np.ptp(np.array(found), axis=0) == pytest.approx([0, 0], abs=1e-9)
    errors = sum(
        fpr * ((group == g) & (target == 0)).sum() + (1 - tpr) * ((group == g) & (target == 1)).sum()
        for g, (fpr, tpr) in enumerate(found)
    )
    assert errors == pytest.approx(programme(score, target, group), abs=1e-6)


@pytest.mark.parametrize("criterion", ["opportunity", "parity"])
@pytest.mark.parametrize("seed", range(4))
def test_one_threshold_each_is_the_best_of_all_that_are_as_equal(criterion: str, seed: int) -> None:
    score, target, group = drawn(24, 2, seed)
    rules = fit(score, target, group, ["a", "b"], criterion)
    curves = [curve(score[group == g], target[group == g]) for g in (0, 1)]

    def measured(pair: tuple[float, float]) -> tuple[float, float]:
        """The gap of the criterion's rates, and the errors."""
        positive = np.where(group == 0, score > pair[0], score > pair[1])
        judged = (target == 1) if criterion == "opportunity" else np.ones(len(group), bool)
        gap = abs(positive[judged & (group == 0)].mean() - positive[judged & (group == 1)].mean())
        return float(gap), float((positive != target).sum())

    gap, errors = measured((rules[0].high, rules[1].high))
    every = [measured(pair) for pair in itertools.product(curves[0].threshold, curves[1].threshold)]
    assert gap <= 1 / 6  # one image of the smaller cell moves a rate by that
    assert errors == min(e for g, e in every if g <= 1e-12) or errors < min(e for g, e in every if g <= 1e-12)
    assert errors >= min(e for g, e in every if g <= gap + 1e-12)


def test_by_hand() -> None:
    score = np.array([0.9, 0.6, 0.4, 0.1, 0.5, 0.3, 0.2, 0.05])
    target = np.array([1, 1, 0, 0, 1, 1, 0, 0])
    group = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    for criterion in ("opportunity", "parity", "odds"):  # each group can be told apart without error
        rules = fit(score, target, group, ["a", "b"], criterion)
        assert [rule.high for rule in rules] == pytest.approx([0.5, 0.25])
        new = adjusted(score, group, rules, seed=0)
        assert ((new > 0.5) == (target == 1)).all()
        assert new == pytest.approx([0.95, 0.8, 0.2, 0.05, 0.75, 0.65, 0.1, 0.025])


def test_scores_stay_in_order_within_a_group_and_none_is_lost() -> None:
    score, target, group = drawn(400, 5, 3, ties=False)
    for criterion in ("opportunity", "parity"):
        new = adjusted(score, group, fit(score, target, group, list("abcde"), criterion), seed=1)
        assert ((new >= 0) & (new <= 1)).all()
        for g in range(5):
            assert (np.argsort(new[group == g]) == np.argsort(score[group == g])).all()


def test_a_rule_at_random_is_seeded_and_has_its_rates() -> None:
    n = 40_000
    score, target, group = drawn(n, 2, 7, ties=False)
    rules = fit(score[:200], target[:200], group[:200], ["a", "b"], "odds")
    new = adjusted(score, group, rules, seed=5)
    assert (new == adjusted(score, group, rules, seed=5)).all()
    for g, rule in enumerate(rules):
        mine = group == g
        wanted = rates(rule, score[mine], target[mine])
        found = [(new[mine & (target == y)] > 0.5).mean() for y in (0, 1)]
        assert found == pytest.approx(wanted, abs=0.02)


def test_a_group_without_a_target_has_no_threshold() -> None:
    with pytest.raises(UserError, match=r"no annotated image of group b has y = 1; annotate more images"):
        fit(np.array([0.1, 0.9, 0.3]), np.array([0, 1, 0]), np.array([0, 0, 1]), ["a", "b"], "odds")


def test_a_group_that_is_not_judged_changes_nothing() -> None:
    rules = [Mixture(0.5, 0.5), Mixture(0.2, 0.2)]
    assert adjusted(np.array([0.3]), np.array([1]), rules, 0) == pytest.approx([0.65])
    assert len(thresholds.adjusted(np.array([]), np.array([], dtype=int), rules, 0)) == 0


@pytest.mark.slow
def test_it_is_a_row_of_its_own_that_shares_the_pretraining(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fairssl", "bench", "--dataset", "colored_digits", "--seeds", "1", "--json"]
    command += ["--method", "random", "--set", "probe.thresholds=none,odds,opportunity,parity", "--annotated", "0.5"]
    command += ["--device", "cpu", "--out", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert len(list((tmp_path / "runs" / "pretrain").iterdir())) == 1 and len(rows) == 4
    assert "probe.thresholds=parity" in done.stdout
