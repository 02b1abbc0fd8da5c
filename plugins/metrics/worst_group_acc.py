"""Lowest accuracy among the group-by-target cells."""

from fairssl import scoring
from fairssl.api import Outcome, Undefined, Value, metric


@metric(symbol="WorstGroupAcc", better="higher", percent=True, order=120)
def worst_group_accuracy(outcome: Outcome) -> Value:
    """min over groups and targets of P(1[s > 0.5] = y | group, y), in [0, 1]; 1 is perfect.

    Sagawa et al., Distributionally Robust Neural Networks for Group Shifts, ICLR 2020, whose groups are these cells.
    Undefined if any cell is empty, since it might be the worst.

    Elsewhere: worst-group accuracy in WILDS and DomainBed; fairlearn `accuracy_score_group_min` with the cells as
    sensitive features.
    """
    cells = scoring.cell_accuracies(outcome)
    numbers = [cell for cell in cells if not isinstance(cell, Undefined)]
    return min(numbers) if len(numbers) == len(cells) else next(c for c in cells if isinstance(c, Undefined))
