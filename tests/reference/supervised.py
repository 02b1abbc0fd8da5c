"""Supervised losses and penalties in plain Python numbers, one loop per sum, nothing shared with the package."""

from __future__ import annotations

import math

from reference.losses import Layer, Rows, dot


def probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def loss(p: float, y: int) -> float:
    return -math.log(p if y == 1 else 1 - p)


def cross_entropy(p: list[float], y: list[int]) -> float:
    return sum(loss(*pair) for pair in zip(p, y, strict=True)) / len(p)


def gap(values: list[float], member: list[int | None], n_groups: int) -> tuple[float, int]:
    """Mean over adjacent pairs of groups of the distance of their means, 0 where one is empty; how many are empty."""
    found = [[v for v, g in zip(values, member, strict=True) if g == k] for k in range(n_groups)]
    total = 0.0
    for k in range(n_groups - 1):
        if found[k] and found[k + 1]:
            total += abs(sum(found[k]) / len(found[k]) - sum(found[k + 1]) / len(found[k + 1]))
    return total / (n_groups - 1), sum(not values for values in found)


def _of_class(y: list[int], a: list[int], wanted: int) -> list[int | None]:
    return [g if target == wanted else None for target, g in zip(y, a, strict=True)]


def eod(p: list[float], y: list[int], a: list[int], n_groups: int) -> tuple[float, int]:
    parts = [gap(p, _of_class(y, a, wanted), n_groups) for wanted in (0, 1)]
    return parts[0][0] + parts[1][0], parts[0][1] + parts[1][1]


def dpr(p: list[float], a: list[int], n_groups: int) -> tuple[float, int]:
    return gap(p, list(a), n_groups)


def eql(p: list[float], y: list[int], a: list[int], n_groups: int, positive: bool = False) -> tuple[float, int]:
    losses = [loss(*pair) for pair in zip(p, y, strict=True)]
    return gap(losses, _of_class(y, a, 1) if positive else list(a), n_groups)


def negative_entropy(features: Rows, first: Layer, second: Layer) -> float:
    """Mean over the rows of sum_k D_k log D_k, with D the softmax of W2 relu(W1 x + b1) + b2."""
    total = 0.0
    for x in features:
        hidden = [max(0.0, dot(row, x) + bias) for row, bias in zip(*first, strict=True)]
        logits = [dot(row, hidden) + bias for row, bias in zip(*second, strict=True)]
        scale = sum(math.exp(value) for value in logits)
        total += sum(math.exp(value) / scale * (value - math.log(scale)) for value in logits)
    return total / len(features)
