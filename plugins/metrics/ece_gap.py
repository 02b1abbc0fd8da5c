"""Gap in expected calibration error between the groups."""

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="ECEGap", better="lower", order=150, interval="none")
def calibration_gap(
    outcome: Outcome,
    *,
    n_bins: int = 10,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|ECE_0 - ECE_1|, ECE = mean over a group's examples, by bins of s, of |mean s - P(y = 1)|; in [0, 1], 0 is fair.

    Naeini, Cooper and Hauskrecht, Obtaining Well Calibrated Probabilities Using Bayesian Binning, AAAI 2015; compared
    between groups as in Pleiss et al., On Fairness and Calibration, NeurIPS 2017. `n_bins` bins of equal width, closed on
    the left, the last one on both sides, so that scores of exactly 0 and 1 have a bin. An ECE grows as its group shrinks:
    the gap of groups of very different size is partly one of size. More groups: the mean over adjacent pairs or over all
    pairs, or the largest (`pairs`). Undefined if a group of a pair has no examples.

    Elsewhere: no library has the gap; torchmetrics `BinaryCalibrationError(n_bins=10)` is the error of one group, but
    that scores of exactly 1 have a bin of their own there.
    """
    return scoring.mean_gap(outcome, scoring.calibration_errors(outcome, n_bins), pairs, undefined)
