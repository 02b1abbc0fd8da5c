"""Wasserstein distance of the groups' scores, score units."""

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="WD", better="lower", headline=True, order=80, version=2)
def wasserstein(
    outcome: Outcome,
    *,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """Sum over the 99 inner edges of 100 score buckets of |CDF_0 - CDF_1|, divided by 100; in [0, 0.99], 0 is fair.

    First Wasserstein distance of the bucketed scores, within 0.01 of that of the scores themselves (Miroshnikov et al.,
    Wasserstein-based Fairness Interpretability Framework for Machine Learning Models, Machine Learning 2022). More
    groups: the mean over adjacent pairs or over all pairs, or the largest (`pairs`). Undefined if a group of a pair has
    no examples.

    Elsewhere: scipy `wasserstein_distance(centres, centres, p_0, p_1)` with the centres of the buckets as values and
    the shares as weights; the shares as values are another, common, quantity. FFB `ABCC` is that of the scores
    themselves, x 100.
    """
    return scoring.mean_distance(outcome, scoring.wasserstein, pairs, undefined)
