"""Kullback-Leibler divergence of the groups' scores, nats."""

from typing import Literal

import numpy as np

from fairssl import scoring
from fairssl.api import Outcome, Value, metric


@metric(symbol="KL", better="lower", headline=True, order=90, symmetric=False, interval="reversed", version=2)
def kl_divergence(
    outcome: Outcome,
    *,
    reading: Literal["forward", "reversed", "mean"] = "forward",
    pairs: scoring.Pairs = "adjacent",
    undefined: scoring.WhenUndefined = "propagate",
) -> Value:
    """Sum over 100 score buckets of p_0 ln(p_0 / p_1), p = (share + 1e-4) / 1.01; in [0, 9.12], 0 is fair.

    Kullback and Leibler, On Information and Sufficiency, Annals of Mathematical Statistics 1951. The group declared
    first is p_0, our choice, as the paper leaves the direction and the smoothing open; `reversed` and `mean` (of both
    directions) are the other readings. It grows as the test set shrinks, even for a fair scorer: never compare it
    between test sets of different size. More groups: the mean over adjacent pairs of groups or over all pairs,
    or the largest (`pairs`). Undefined if a group of a pair has no examples.

    Elsewhere: scipy `entropy(p_0, p_1)` of the smoothed shares. AIF360 `kl_divergence` is another quantity: it compares
    the groups' shares of y = 1.
    """

    def divergence(p: np.ndarray, q: np.ndarray) -> float:
        if reading == "mean":
            return (scoring.kl_divergence(p, q) + scoring.kl_divergence(q, p)) / 2
        return scoring.kl_divergence(q, p) if reading == "reversed" else scoring.kl_divergence(p, q)

    return scoring.mean_distance(outcome, divergence, pairs, undefined)
