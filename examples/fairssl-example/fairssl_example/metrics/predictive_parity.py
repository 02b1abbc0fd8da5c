"""Predictive parity: the largest gap between two groups' precision.

Chouldechova: Fair Prediction with Disparate Impact, Big Data 2017, definition 2.2.
"""

from fairssl import scoring
from fairssl.api import Outcome, Undefined, Value, metric


@metric(symbol="PPVGap", heading="ΔPPV", better="lower", percent=True, headline=True, order=200, version=1)
def predictive_parity(outcome: Outcome) -> Value:
    """max over groups of P(y = 1 | s > 0.5, group) minus the min over groups, in [0, 1]; 0 is fair.

    Undefined if nobody of a group is predicted y = 1.
    """
    c = scoring.counts(outcome)
    precision = []
    for code, label in enumerate(outcome.groups):
        false, true = c.predicted[2 * code], c.predicted[2 * code + 1]  # predicted y = 1, and y is 0, and 1
        if false + true == 0:
            return Undefined(f"no example of group {label!r} is predicted y = 1")
        precision.append(true / (false + true))
    return max(precision) - min(precision)
