"""Demographic parity: absolute gap in positive predictions."""

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="DP", heading="ΔDP", better="lower", percent=True, headline=True, order=40, version=2)
def demographic_parity(
    outcome: Outcome,
    *,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|P(s > 0.5 | group 0) - P(s > 0.5 | group 1)|, in [0, 1]; 0 is fair.

    Dwork et al., Fairness Through Awareness, ITCS 2012 (statistical parity). Decisions at 0.5, not mean scores.
    A perfect classifier has the gap of the base rates. More groups: the mean over adjacent pairs of groups or over all
    pairs, or the largest (`pairs`). Undefined if a group of a pair has no examples.

    Elsewhere: fairlearn `demographic_parity_difference` (over more than two groups the largest minus the smallest rate,
    here `pairs="max"`) and `selection_rate_difference`; AIF360 `statistical_parity_difference`, with its sign;
    torchmetrics `BinaryFairness` gives the ratio of the smaller to the larger rate under this name.
    """
    return scoring.mean_gap(outcome, scoring.positive_rates(outcome), pairs, undefined)
