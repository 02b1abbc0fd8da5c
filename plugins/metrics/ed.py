"""Equalized odds: mean of the absolute TPR and FPR gaps."""

from typing import Literal

from fairssl import scoring
from fairssl.api import Outcome, Undefined, Value, metric


@metric(symbol="ED", heading="ΔED", better="lower", percent=True, headline=True, order=20, given_target=True, version=2)
def equalized_odds(
    outcome: Outcome,
    *,
    reading: Literal["mean", "max", "sum"] = "mean",
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """(|TPR_0 - TPR_1| + |FPR_0 - FPR_1|) / 2, in [0, 1]; 0 is fair.

    Hardt, Price and Srebro, Equality of Opportunity in Supervised Learning, NeurIPS 2016. The mean of absolute gaps is
    the reading that the paper's tables fit (ED < EO in most rows) and that FSCL computes; fairlearn's default is `max`,
    FFB's is `sum`. The gaps are never averaged with their signs, which may cancel. The maximum of `reading` is taken
    within a pair of groups. More groups: the mean over adjacent pairs or over all pairs, or the largest (`pairs`).
    Undefined if a group of a pair has no positive or no negative.

    Elsewhere: for two groups, fairlearn `equalized_odds_difference(..., agg="mean")`; AIF360
    `average_abs_odds_difference`; FFB `equalized_odds` is the sum, x 100; MEDFAIR `cal_eqodd` is 1 minus it.
    """
    tpr, fpr = scoring.true_positive_rates(outcome), scoring.false_positive_rates(outcome)

    def of_pair(i: int, j: int) -> Value:
        a, b = scoring.gap(tpr[i], tpr[j]), scoring.gap(fpr[i], fpr[j])
        if isinstance(a, Undefined) or isinstance(b, Undefined):
            return a if isinstance(a, Undefined) else b
        return max(a, b) if reading == "max" else a + b if reading == "sum" else (a + b) / 2

    return scoring.over_pairs(outcome, of_pair, pairs, undefined)
