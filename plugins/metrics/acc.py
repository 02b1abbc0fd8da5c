"""Accuracy: share of right decisions at threshold 0.5."""

from fairssl import scoring
from fairssl.api import Outcome, Undefined, Value, metric


@metric(symbol="Acc", better="higher", percent=True, headline=True, order=10)
def accuracy(outcome: Outcome) -> Value:
    """P(1[s > 0.5] = y) over all examples of all groups, in [0, 1]; 1 is perfect. It says nothing of fairness.

    A score of exactly 0.5 predicts 0, as the argmax over two logits does. Undefined for no examples.

    Elsewhere: scikit-learn `accuracy_score` of the decisions; torchmetrics `BinaryAccuracy`.
    """
    counts = scoring.counts(outcome)
    n = sum(counts.n)
    if not n:
        return Undefined("0 samples")
    rejected = sum(counts.n[0::2]) - sum(counts.predicted[0::2])
    return (rejected + sum(counts.predicted[1::2])) / n
