"""Balanced accuracy: mean of the two classes' accuracies."""

from fairssl import scoring
from fairssl.api import Outcome, Undefined, Value, metric


@metric(symbol="BalAcc", better="higher", percent=True, order=140)
def balanced_accuracy(outcome: Outcome) -> Value:
    """(P(s > 0.5 | y = 1) + P(s <= 0.5 | y = 0)) / 2 over all groups together, in [0, 1]; 1 is perfect, 1/2 is a constant.

    Brodersen et al., The Balanced Accuracy and Its Posterior Distribution, ICPR 2010. Unlike accuracy it does not reward
    predicting the majority class. It says nothing of fairness. Undefined if there is no positive or no negative.

    Elsewhere: scikit-learn `balanced_accuracy_score` of the decisions; torchmetrics `MulticlassAccuracy(2,
    average="macro")`.
    """
    counts = scoring.counts(outcome)
    negatives, positives = sum(counts.n[0::2]), sum(counts.n[1::2])
    if not negatives or not positives:
        return Undefined(f"no {'negative' if positives else 'positive'} in any group")
    return (sum(counts.predicted[1::2]) / positives + 1 - sum(counts.predicted[0::2]) / negatives) / 2
