"""What keeps a row from competing, beside a seed that is not there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fairssl.board.table import SeedStats

ERRORS = 2.0  # standard errors that an accuracy must be above the majority class


def below_majority(accuracy: SeedStats | None, facts: Mapping[str, Any]) -> str:
    """Why a row counts as no better than always saying the larger class of the test set; empty if it is better.

    The standard error is of the mean over the seeds and of the test set's size: sqrt(p (1 - p) / n_test + sd^2 / n_seeds).
    """
    sizes = [sum(groups.values()) for groups in facts.get("cells", {}).values()]
    if accuracy is None or accuracy.mean is None or not sum(sizes):
        return ""
    p, n = accuracy.mean, sum(sizes)
    error = math.sqrt(p * (1 - p) / n + (accuracy.sd or 0.0) ** 2 / max(accuracy.n, 1))
    majority = max(sizes) / n
    if p > majority + ERRORS * error:
        return ""
    return f"accuracy is not two standard errors above the larger class's {100 * majority:.2f} %"


def collapsed(facts: Mapping[str, Any]) -> str:
    """What a record says of features that have collapsed; empty if they have not, or nothing is said."""
    if not facts.get("collapsed"):
        return ""
    measured = [
        f"{name} {facts[key]:.3g}"
        for name, key in (("standard deviation", "feature_sd"), ("effective rank", "effective_rank"))
        if key in facts
    ]
    return "the features have collapsed" + (f" ({', '.join(measured)})" if measured else "")
