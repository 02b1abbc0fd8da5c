"""Absolute gap in false positive rates, one of ED's two gaps."""

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="FPRGap", better="lower", percent=True, order=110, given_target=True, version=2)
def fpr_gap(
    outcome: Outcome,
    *,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|FPR_0 - FPR_1|, FPR = P(s > 0.5 | y = 0, group), in [0, 1]; 0 is fair.

    Predictive equality in Corbett-Davies et al., Algorithmic Decision Making and the Cost of Fairness, KDD 2017. More
    groups: the mean over adjacent pairs of groups or over all pairs, or the largest (`pairs`). Undefined if a group of a
    pair has no negative.

    Elsewhere: fairlearn `false_positive_rate_difference`; AIF360 `false_positive_rate_difference`, with its sign.
    """
    return scoring.mean_gap(outcome, scoring.false_positive_rates(outcome), pairs, undefined)
