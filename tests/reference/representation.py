"""FSCL, MMD, the autoencoder's loss and LEACE as their papers write them: one loop per sum, nothing shared with the package.

Views are lists of B rows of P numbers, raw; FSCL normalises by itself. LEACE is in the form without square roots.
"""

from __future__ import annotations

import math
from statistics import median_low

import numpy as np
from reference.losses import Rows, dot, unit


def fscl(
    views: list[Rows],
    target: list[int],
    group: list[int],
    tau: float,
    plus: bool = False,
    n_classes: int = 2,
    n_groups: int = 2,
) -> float:
    """Park et al. 2022, over all views; anchors without positives left out, FSCL+ with `plus`."""
    z = [unit(row) for view in views for row in view]
    y, a = target * len(views), group * len(views)
    n, costs = len(z), []
    for i in range(n):
        positives = [j for j in range(n) if j != i and y[j] == y[i]]
        own = [j for j in positives if a[j] == a[i]]
        negatives = [j for j in range(n) if y[j] != y[i] and a[j] == a[i]]
        if plus:  # how many positives each positive has itself in its own group
            n_own = {p: sum(k != p and y[k] == y[p] and a[k] == a[p] for k in range(n)) for p in positives}
            positives = [p for p in positives if n_own[p]]
        if not positives:
            continue
        denominator = sum(math.exp(dot(z[i], z[j]) / tau) for j in negatives) if negatives else math.exp(1 / tau)
        each = {j: math.log(denominator) - dot(z[i], z[j]) / tau for j in positives}
        if plus:
            in_cell = 1 + len(own)
            cost = sum(each[j] / n_own[j] for j in positives)
            costs.append(cost * n / in_cell / (n_classes * n_groups**2))
        else:
            costs.append(sum(each.values()) / len(positives))
    return sum(costs) / len(costs) if costs else 0.0


def kernel_mean(x: Rows, y: Rows, gammas: list[float], scale: float) -> float:
    total = 0.0
    for gamma in gammas:
        for p in x:
            for q in y:
                total += math.exp(-gamma * sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) / scale)
    return total / (len(gammas) * len(x) * len(y))


def mmd2(x: Rows, y: Rows, gammas: list[float], scale: float = 1.0) -> float:
    """Gretton et al. 2012, eq. 5: the biased estimate."""
    return kernel_mean(x, x, gammas, scale) + kernel_mean(y, y, gammas, scale) - 2 * kernel_mean(x, y, gammas, scale)


def median_square(rows: Rows) -> float:
    """The lower median of the squared distances of different rows."""
    pairs = [(i, j) for i in range(len(rows)) for j in range(i)]
    return median_low([sum((a - b) ** 2 for a, b in zip(rows[i], rows[j], strict=True)) for i, j in pairs])


def group_mmd2(rows: Rows, group: list[int], n_groups: int, gammas: list[float], scale: float) -> float:
    """Two groups against each other, more each against all rows, averaged; a missing one gives 0."""
    members = [[row for row, a in zip(rows, group, strict=True) if a == code] for code in range(n_groups)]
    if n_groups == 2:
        return mmd2(*members, gammas, scale) if all(members) else 0.0
    return sum(mmd2(rows, some, gammas, scale) for some in members if some) / n_groups


def divergence(mu: list[float], log_variance: list[float]) -> float:
    """KL(N(mu, sigma^2) || N(0, I)) in nats, Kingma and Welling 2014, appendix B."""
    return sum(-0.5 * (1 + s - m**2 - math.exp(s)) for m, s in zip(mu, log_variance, strict=True))


def leace(x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The matrix A and mean m of r(x) = m + A (x - m): A = I - S (S' C^-1 S)^+ S' C^-1, S = Cov(x, z), C = Cov(x)."""
    z = (group[:, None] == np.unique(group)[None, :]).astype(float)
    mean = x.mean(0)
    c = np.cov(x.T, bias=True)
    s = (x - mean).T @ (z - z.mean(0)) / len(x)
    inverse = np.linalg.inv(c)
    return np.eye(len(c)) - s @ np.linalg.pinv(s.T @ inverse @ s, rcond=1e-10) @ s.T @ inverse, mean
