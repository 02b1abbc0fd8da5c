"""Intra-group AUC: gap in ranking inside the groups."""

from collections.abc import Sequence

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="IntraAUC", better="lower", headline=True, order=50, given_target=True, version=2)
def intra_auc(
    outcome: Outcome,
    *,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|AUC(positives of 0, negatives of 0) - AUC(positives of 1, negatives of 1)|, in [0, 1]; 0 is fair.

    Beutel et al., Fairness in Recommendation Ranking through Pairwise Comparisons, KDD 2019. Ties count a half. More
    groups, by `pairs`: "adjacent" is the mean over the tasks "group k against everyone else", as in the paper; "all" the
    mean over all pairs of groups, "max" the largest of those. Undefined if either side lacks a positive or a negative.

    Elsewhere: for two groups, the gap of scikit-learn's `roc_auc_score` within each; FFB `auc_parity`, x 100.
    """

    def of_task(ones: Sequence[int], others: Sequence[int]) -> Value:
        return scoring.gap(
            scoring.auc(outcome, (ones, 1), (ones, 0)),
            scoring.auc(outcome, (others, 1), (others, 0)),
        )

    return scoring.over_tasks(outcome, of_task, pairs, undefined)
