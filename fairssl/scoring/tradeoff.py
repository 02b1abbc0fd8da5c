"""Accuracy against a gap: the points that no other beats, the area they dominate, and the best accuracy at a given gap.

A point is (accuracy, gap), both fractions: higher accuracy and lower gap are better. Front and area are those of moocore
(Core Algorithms for Multi-Objective Optimization), exact in two dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fairssl.scoring.statistics import SeedSummary, summarize
from fairssl.types import Undefined, UserError, Value

Point = tuple[float, float]
BETTER = (True, False)  # which of accuracy and gap is to be maximised
WORST: Point = (0.0, 1.0)  # no point lies beyond it


@dataclass(frozen=True)
class BestWithin:
    """The most accurate of the named points whose gap is at most `limit`; `Undefined` where there is none."""

    limit: float
    name: str | None
    accuracy: Value
    gap: Value


def pareto_front(points: Sequence[Point]) -> list[int]:
    """Positions of the points that no other point beats, by ascending gap, then accuracy, then position.

    One point beats another if it is no worse in accuracy and gap and better in one of them; of equal points all are in.
    """
    if not points:
        return []
    import moocore

    kept = moocore.is_nondominated(_array(points), maximise=BETTER, keep_weakly=True)
    return sorted(np.flatnonzero(kept).tolist(), key=lambda i: (points[i][1], points[i][0], i))


def hypervolume(points: Sequence[Point], reference: Point = WORST) -> float:
    """Area of (accuracy, gap) that the points dominate and that dominates the reference point; larger is better.

    Zitzler and Thiele, Multiobjective Evolutionary Algorithms: A Comparative Case Study and the Strength Pareto Approach,
    IEEE Transactions on Evolutionary Computation 1999. At most (1 - accuracy) x gap of the reference. It depends on that
    point, which must be stated beside it: (majority share, gap of the least fair method), say. Points beyond it add
    nothing, and no points have 0.
    """
    accuracy, gap = reference
    if not (0 <= accuracy <= 1 and gap >= 0):
        raise UserError(f"reference point {reference}: an accuracy in [0, 1] and a gap of at least 0")
    if not points:
        return 0.0
    import moocore

    return float(moocore.hypervolume(_array(points), ref=reference, maximise=BETTER))


def hypervolume_over_seeds(
    points: Mapping[int, Sequence[Point]], reference: Point = WORST, level: float = 0.95
) -> SeedSummary:
    """Mean, standard deviation and t interval of the hypervolume over seeds; `points` holds each seed's points.

    The interval ends at 0 and at (1 - accuracy) x gap of the reference, beyond which no hypervolume lies.
    """
    found = summarize([hypervolume(of_seed, reference) for of_seed in points.values()], level)
    if isinstance(found.low, Undefined) or isinstance(found.high, Undefined):
        return found
    largest = (1 - reference[0]) * reference[1]
    return replace(found, low=max(found.low, 0.0), high=min(found.high, largest))


def best_within(points: Mapping[str, Point], limits: Sequence[float]) -> list[BestWithin]:
    """For each limit k, in the order given, the most accurate point with a gap of at most k.

    Of equal accuracies the smaller gap wins, then the first name by the alphabet.
    """
    found = []
    for limit in limits:
        allowed = [(-accuracy, gap, name) for name, (accuracy, gap) in points.items() if gap <= limit]
        if allowed:
            accuracy, gap, name = min(allowed)
            found.append(BestWithin(limit, name, -accuracy, gap))
        else:
            nothing = Undefined(f"none has a gap of at most {limit:g}")
            found.append(BestWithin(limit, None, nothing, nothing))
    return found


def _array(points: Sequence[Point]) -> np.ndarray:
    array = np.array(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != 2 or not np.isfinite(array).all():
        raise UserError(f"points must be pairs (accuracy, gap) of numbers, not {points!r}")
    return array
