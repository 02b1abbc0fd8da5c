"""A threshold for each group, chosen after training so that decisions meet a criterion of fairness.

Hardt, Price, Srebro: Equality of Opportunity in Supervised Learning, NeurIPS 2016, sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fairssl.types import UserError

Adjust = Callable[[np.ndarray, np.ndarray], np.ndarray]  # scores and groups, (n,) each -> scores


@dataclass(frozen=True)
class Curve:
    """One group's decisions s > threshold, by falling threshold: (T,) each. Rates in 0..1; counts of images."""

    threshold: np.ndarray
    fpr: np.ndarray
    tpr: np.ndarray
    negatives: int
    positives: int

    @property
    def rate(self) -> np.ndarray:
        """Share of the group's images that are taken for y = 1."""
        n = self.negatives + self.positives
        return (self.fpr * self.negatives + self.tpr * self.positives) / n

    @property
    def errors(self) -> np.ndarray:
        """Images on the wrong side."""
        return self.fpr * self.negatives + (1 - self.tpr) * self.positives


@dataclass(frozen=True)
class Mixture:
    """How a group's images are decided: with probability `trust` by s > high with probability `share` and s > low else;
    otherwise at random, y = 1 with probability `coin`."""

    high: float
    low: float
    share: float = 1.0
    trust: float = 1.0
    coin: float = 0.0


def fit(
    score: np.ndarray, target: np.ndarray, group: np.ndarray, groups: Sequence[str], criterion: str
) -> list[Mixture]:
    """The rule of each group with the fewest errors on these images among those that meet the criterion.

    `opportunity`: equal true positive rates. `parity`: equal shares of y = 1. Both with one threshold in each group, so
    that the rates are equal up to what one image moves. `odds`: equal true and false positive rates, exactly in
    expectation, for which a group's images may have to be decided at random between two thresholds, or by a coin: the
    best point that lies below the convex hull of every group's ROC curve.

    A group without an image of some target has no such rate: `UserError`.
    """
    curves = []
    for code, name in enumerate(groups):
        mine = group == code
        for y in (0, 1):
            if not (target[mine] == y).any():
                raise UserError(
                    f"probe.thresholds={criterion}: no annotated image of group {name} has y = {y}; annotate more images "
                    "(--annotated), or write probe.thresholds=none"
                )
        curves.append(curve(score[mine], target[mine]))
    return _odds(curves) if criterion == "odds" else _equal(curves, criterion)


def curve(score: np.ndarray, target: np.ndarray) -> Curve:
    """Of one group, with thresholds half-way between scores, from nobody to everybody."""
    values = np.unique(score)[::-1]
    middle = (values[:-1] + values[1:]) / 2
    # Where two scores are neighbours among the floats, half-way is one of them.
    threshold = np.concatenate([[np.inf], np.where(middle < values[:-1], middle, values[1:]), [-np.inf]])
    order = np.sort(score[target == 1]), np.sort(score[target == 0])
    tpr, fpr = (1 - np.searchsorted(one, threshold, side="right") / len(one) for one in order)
    return Curve(threshold, fpr, tpr, len(order[1]), len(order[0]))


def _equal(curves: list[Curve], criterion: str) -> list[Mixture]:
    rates = [c.tpr if criterion == "opportunity" else c.rate for c in curves]
    best: tuple[float, list[int]] | None = None
    for level in np.unique(np.concatenate(rates)):
        at = [int(np.abs(r - level).argmin()) for r in rates]  # the highest threshold of those that are as near
        errors = float(sum(c.errors[i] for c, i in zip(curves, at, strict=True)))
        if best is None or errors < best[0]:
            best = errors, at
    assert best is not None  # rates 0 and 1 are always there
    return [Mixture(c.threshold[i], c.threshold[i]) for c, i in zip(curves, best[1], strict=True)]


def _odds(curves: list[Curve]) -> list[Mixture]:
    hulls = [_hull(c) for c in curves]
    at = np.unique(np.concatenate([c.fpr[h] for c, h in zip(curves, hulls, strict=True)]))
    tops = np.array([np.interp(at, c.fpr[h], c.tpr[h]) for c, h in zip(curves, hulls, strict=True)])
    crossings = [at]
    for i in range(len(curves)):
        for j in range(i):
            gap = tops[i] - tops[j]
            left = np.flatnonzero(gap[:-1] * gap[1:] < 0)
            crossings.append(at[left] + (at[left + 1] - at[left]) * gap[left] / (gap[left] - gap[left + 1]))
    at = np.unique(np.concatenate(crossings))
    reach = np.array([np.interp(at, c.fpr[h], c.tpr[h]) for c, h in zip(curves, hulls, strict=True)])
    tpr = reach.min(0)
    negatives, positives = (sum(getattr(c, name) for c in curves) for name in ("negatives", "positives"))
    best = int((negatives * at + positives * (1 - tpr)).argmin())
    return [_mixture(c, h, float(at[best]), float(tpr[best])) for c, h in zip(curves, hulls, strict=True)]


def _hull(c: Curve) -> np.ndarray:
    """Positions of the curve's points on its upper convex hull, by rising fpr."""
    kept: list[int] = []
    for i in range(len(c.fpr)):
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            turn = (c.fpr[b] - c.fpr[a]) * (c.tpr[i] - c.tpr[a]) - (c.tpr[b] - c.tpr[a]) * (c.fpr[i] - c.fpr[a])
            if turn < 0:
                break
            kept.pop()
        kept.append(i)
    # Straight up at fpr 0 the point below is reached by no mixture that is better.
    return np.array([i for n, i in enumerate(kept) if n + 1 == len(kept) or c.fpr[kept[n + 1]] > c.fpr[i]])


def _mixture(c: Curve, hull: np.ndarray, fpr: float, tpr: float) -> Mixture:
    """What gives these rates in a group whose hull is above them."""
    right = int(np.searchsorted(c.fpr[hull], fpr, side="left"))
    left = max(right - 1, 0) if c.fpr[hull[right]] > fpr else right
    a, b = hull[left], hull[right]
    share = 1.0 if a == b else float((c.fpr[b] - fpr) / (c.fpr[b] - c.fpr[a]))  # of the higher threshold
    top = share * c.tpr[a] + (1 - share) * c.tpr[b]
    trust = 1.0 if top - fpr <= 1e-12 else float(np.clip((tpr - fpr) / (top - fpr), 0, 1))
    return Mixture(float(c.threshold[a]), float(c.threshold[b]), share, trust, fpr)


def adjusted(score: np.ndarray, group: np.ndarray, rules: Sequence[Mixture], seed: int) -> np.ndarray:
    """Scores whose decisions s > 0.5 are those of the groups' rules, (n,) in 0..1: half the score below, (1 + score) / 2
    above, so that images of one group that are decided alike keep their order."""
    rng = np.random.Generator(np.random.PCG64(seed))
    which, trusted, coin = rng.random((3, len(score)))
    positive = np.zeros(len(score), dtype=bool)
    for code, rule in enumerate(rules):
        threshold = np.where(which < rule.share, rule.high, rule.low)
        decided = np.where(trusted < rule.trust, score > threshold, coin < rule.coin)
        positive = np.where(group == code, decided, positive)
    return np.where(positive, np.maximum((1 + score) / 2, np.nextafter(0.5, 1)), np.minimum(score / 2, 0.5))
