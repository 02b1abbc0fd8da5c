"""Area under the ROC curve over all examples."""

from fairssl import scoring
from fairssl.api import Outcome, Undefined, Value, metric


@metric(symbol="AUC", better="higher", order=130)
def area_under_roc(outcome: Outcome) -> Value:
    """P(s > s') + P(s = s') / 2 for s of the positives and s' of the negatives of all groups together, in [0, 1].

    Hanley and McNeil, The Meaning and Use of the Area under a Receiver Operating Characteristic (ROC) Curve, Radiology
    1982 (the Mann-Whitney statistic). 1 is perfect, 1/2 is no separation. It says nothing of fairness. Undefined if
    there is no positive or no negative.

    Elsewhere: scikit-learn `roc_auc_score`; torchmetrics `BinaryAUROC`.
    """
    everybody = range(len(outcome.groups))
    value = scoring.auc(outcome, (everybody, 1), (everybody, 0))
    if isinstance(value, Undefined):
        return Undefined(f"no {'positive' if not (outcome.target == 1).any() else 'negative'} in any group")
    return value
