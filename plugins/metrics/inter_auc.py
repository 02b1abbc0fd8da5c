"""Inter-group AUC: gap in ranking across the groups."""

from collections.abc import Sequence

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="InterAUC", better="lower", headline=True, order=60, given_target=True, version=2)
def inter_auc(
    outcome: Outcome,
    *,
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|AUC(positives of 0, negatives of 1) - AUC(positives of 1, negatives of 0)|, in [0, 1]; 0 is fair.

    Kallus and Zhou, The Fairness of Risk Scores Beyond Classification: Bipartite Ranking and the xAUC Metric, NeurIPS
    2019. Ties count a half. More groups, by `pairs`: "adjacent" is the mean over the tasks "group k against everyone
    else", as in the paper; "all" the mean over all pairs of groups, "max" the largest of those. Undefined if either side
    lacks a positive or a negative.

    Elsewhere: xAUC disparity, of Kallus and Zhou, with its sign; no library has it.
    """

    def of_task(ones: Sequence[int], others: Sequence[int]) -> Value:
        return scoring.gap(
            scoring.auc(outcome, (ones, 1), (others, 0)),
            scoring.auc(outcome, (others, 1), (ones, 0)),
        )

    return scoring.over_tasks(outcome, of_task, pairs, undefined)
