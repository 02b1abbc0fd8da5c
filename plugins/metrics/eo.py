"""Equal opportunity: absolute TPR gap."""

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="EO", heading="ΔEO", better="lower", percent=True, headline=True, order=30, given_target=True, version=2)
def equal_opportunity(
    outcome: Outcome,
    *,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|TPR_0 - TPR_1|, TPR = P(s > 0.5 | y = 1, group), in [0, 1]; 0 is fair.

    Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NeurIPS 2016. It depends on which class is
    y = 1. More groups: the mean over adjacent pairs of groups or over all pairs, or the largest (`pairs`). Undefined if
    a group of a pair has no positive.

    Elsewhere: fairlearn `equal_opportunity_difference` (over more than two groups the largest minus the smallest, here
    `pairs="max"`) and `true_positive_rate_difference`; AIF360 `equal_opportunity_difference`, with its sign;
    torchmetrics `BinaryFairness` gives the ratio of the smaller to the larger TPR under this name.
    """
    return scoring.mean_gap(outcome, scoring.true_positive_rates(outcome), pairs, undefined)
