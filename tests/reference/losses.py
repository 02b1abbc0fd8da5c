"""The losses as their papers write them: plain Python numbers, one loop per sum, nothing shared with the package.

Views are lists of B rows of P numbers, raw; every loss that compares directions normalises by itself.
"""

from __future__ import annotations

import math

Rows = list[list[float]]


def unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def dot(x: list[float], y: list[float]) -> float:
    return sum(a * b for a, b in zip(x, y, strict=True))


def one_direction(a: Rows, b: Rows, tau: float, group: list[int] | None = None) -> float:
    """Mean over the images of -log exp(a_i.b_i/tau) / (exp(a_i.b_i/tau) + sum over other images' two views)."""
    a, b = [unit(r) for r in a], [unit(r) for r in b]
    total = 0.0
    for i in range(len(a)):
        positive = math.exp(dot(a[i], b[i]) / tau)
        denominator = positive
        for j in range(len(a)):
            if j != i and (group is None or group[j] == group[i]):
                denominator += math.exp(dot(a[i], a[j]) / tau) + math.exp(dot(a[i], b[j]) / tau)
        total -= math.log(positive / denominator)
    return total / len(a)


def nt_xent(a: Rows, b: Rows, tau: float, group: list[int] | None = None) -> float:
    """Mean over all 2B views."""
    return (one_direction(a, b, tau, group) + one_direction(b, a, tau, group)) / 2


def inner_estimates(a: Rows, b: Rows, tau: float) -> tuple[list[float], list[float]]:
    """ghat_i and ghat'_i: mean of exp(z.z~/tau) over the 2(B - 1) views of other images."""
    a, b = [unit(r) for r in a], [unit(r) for r in b]
    found = []
    for mine in (a, b):
        g = []
        for i in range(len(a)):
            terms = [math.exp(dot(mine[i], view[j]) / tau) for view in (a, b) for j in range(len(a)) if j != i]
            g.append(sum(terms) / len(terms))
        found.append(g)
    return found[0], found[1]


def sogclr_step(
    a: Rows,
    b: Rows,
    index: list[int],
    u: list[float],
    seen: list[bool],
    tau: float,
    gamma: float,
    eps0: float,
    old: bool,
) -> tuple[list[float], list[float], float]:
    """One visit: the new u of all images, what each image of the batch is divided by, the value of the loss."""
    g, g_ = inner_estimates(a, b, tau)
    u_new, denominators, value = list(u), [], 0.0
    for i, image in enumerate(index):
        estimate = (g[i] + g_[i]) / 2
        u_new[image] = (1 - gamma) * u[image] + gamma * estimate if seen[image] else estimate
        denominators.append(u[image] if old and seen[image] else u_new[image])
        value += -dot(unit(a[i]), unit(b[i])) + tau * math.log(eps0 + denominators[i])
    return u_new, denominators, value / len(a)


def sogclr_surrogate(a: Rows, b: Rows, denominators: list[float], tau: float, eps0: float) -> float:
    """What has the gradient m, the denominators frozen."""
    g, g_ = inner_estimates(a, b, tau)
    total = 0.0
    for i in range(len(a)):
        total += -dot(unit(a[i]), unit(b[i])) + tau * (g[i] + g_[i]) / (2 * (eps0 + denominators[i]))
    return total / len(a)


def compositional(a: Rows, b: Rows, tau: float) -> float:
    """-z.z' + tau log of the two-view mean estimate: what gamma = 1, eps0 = 0 must descend."""
    g, g_ = inner_estimates(a, b, tau)
    terms = [-dot(unit(a[i]), unit(b[i])) + tau * math.log((g[i] + g_[i]) / 2) for i in range(len(a))]
    return sum(terms) / len(terms)


def byol_direction(prediction: Rows, target: Rows) -> float:
    """Mean squared distance between unit vectors."""
    total = 0.0
    for p, t in zip(prediction, target, strict=True):
        total += sum((x - y) ** 2 for x, y in zip(unit(p), unit(t), strict=True))
    return total / len(prediction)


def vicreg(a: Rows, b: Rows, invariance: float = 25.0, variance: float = 25.0, covariance: float = 1.0) -> float:
    """Bardes et al. 2022, Algorithm 1."""
    n, width = len(a), len(a[0])
    distance = sum((x - y) ** 2 for p, q in zip(a, b, strict=True) for x, y in zip(p, q, strict=True)) / (n * width)
    hinge = spread = 0.0
    for z in (a, b):
        mean = [sum(row[k] for row in z) / n for k in range(width)]
        for k in range(width):
            for m in range(width):
                c = sum((row[k] - mean[k]) * (row[m] - mean[m]) for row in z) / (n - 1)
                if k == m:
                    hinge += max(0.0, 1 - math.sqrt(c + 1e-4)) / width
                else:
                    spread += c * c / width
    return invariance * distance + variance * hinge + covariance * spread


Layer = tuple[Rows, list[float]]  # weight, bias


def cross_entropy(features: Rows, first: Layer, second: Layer, a: list[int]) -> float:
    """Mean of -log softmax(W2 relu(W1 x + b1) + b2)[a]."""
    total = 0.0
    for x, group in zip(features, a, strict=True):
        hidden = [max(0.0, dot(row, x) + bias) for row, bias in zip(*first, strict=True)]
        logits = [dot(row, hidden) + bias for row, bias in zip(*second, strict=True)]
        total -= logits[group] - math.log(sum(math.exp(value) for value in logits))
    return total / len(features)


def slope(function, rows: Rows, step: float = 1e-6) -> Rows:
    """Central differences of a function of `rows`, one number at a time."""
    gradient = []
    for i in range(len(rows)):
        line = []
        for k in range(len(rows[i])):
            moved = []
            for sign in (1, -1):
                copy = [list(row) for row in rows]
                copy[i][k] += sign * step
                moved.append(function(copy))
            line.append((moved[0] - moved[1]) / (2 * step))
        gradient.append(line)
    return gradient
