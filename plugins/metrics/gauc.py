"""Group AUC: how well the score tells the groups apart."""

from collections.abc import Sequence
from typing import Literal

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="GAUC", better="lower", headline=True, order=70, version=2)
def group_auc(
    outcome: Outcome,
    *,
    reading: Literal["centred", "difference"] = "centred",
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """|AUC(all of group 0, all of group 1) - 1/2|, in [0, 1/2]; 0 is fair.

    Yao, Lin and Yang, Stochastic Methods for AUC Optimization subject to AUC-based Fairness Constraints, AISTATS 2023.
    Ties count a half. `difference` is |AUC_01 - AUC_10|, twice as much. More groups, by `pairs`: "adjacent"
    is the mean over the tasks "group k against everyone else", as in the paper; "all" the mean over all pairs of groups,
    "max" the largest of those. Undefined if either side has no examples.

    Elsewhere: for two groups, scikit-learn `abs(roc_auc_score(group == 0, s) - 0.5)`.
    """
    scale = 2 if reading == "difference" else 1

    def of_task(ones: Sequence[int], others: Sequence[int]) -> Value:
        distance = scoring.gap(scoring.auc(outcome, (ones, None), (others, None)), 0.5)
        return distance * scale if isinstance(distance, float) else distance

    return scoring.over_tasks(outcome, of_task, pairs, undefined)
