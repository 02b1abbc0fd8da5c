"""Absolute gap in true positive rates, one of ED's two gaps."""

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="TPRGap", better="lower", percent=True, order=100, given_target=True, version=2)
def tpr_gap(
    outcome: Outcome,
    *,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|TPR_0 - TPR_1|, TPR = P(s > 0.5 | y = 1, group), in [0, 1]; 0 is fair.

    The same number as EO; beside FPRGap it shows which of its halves ED comes from. More groups: the mean over adjacent
    pairs of groups or over all pairs, or the largest (`pairs`). Undefined if a group of a pair has no positive.

    Elsewhere: as EO.
    """
    return scoring.mean_gap(outcome, scoring.true_positive_rates(outcome), pairs, undefined)
