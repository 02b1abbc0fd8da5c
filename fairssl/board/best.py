"""Who is best, who is not told apart from the best, and in which order all stand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from fairssl.scoring.statistics import tie_group


def best_rows(values: Mapping[int, Mapping[int, float]], better: Literal["higher", "lower"]) -> set[int]:
    """Of rows with their values by seed, the best mean and those that a paired t test over the seeds, corrected by Holm,
    does not tell apart from it. None where there is nothing to test with: a single seed, say."""
    names = {f"{i:06d}": i for i in sorted(values)}  # equal means: the first row is the best
    found = tie_group({name: values[i] for name, i in names.items()}, better)
    return {names[name] for name in found.tied}


def ranked(means: Mapping[int, float], tiers: Mapping[int, int], better: Literal["higher", "lower"]) -> dict[int, int]:
    """1 for the best mean; equal means share a rank; all of a lower tier stand before those of a higher one."""
    sign = -1 if better == "higher" else 1
    places = {i: (tiers[i], sign * mean) for i, mean in means.items()}
    return {i: 1 + sum(other < place for other in places.values()) for i, place in places.items()}
