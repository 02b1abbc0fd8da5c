"""The metrics once more, slow and plain: loops over pairs of examples, written from the definitions, importing nothing.

Every function takes lists `score`, `target`, `group`, the number of groups K and how pairs of groups become one number
("adjacent", "all" or "max"); None is undefined.
"""

import math
from itertools import combinations, pairwise


def _mean(parts):
    return None if any(p is None for p in parts) else sum(parts) / len(parts)


def _one(parts, pairs):
    if pairs != "max":
        return _mean(parts)
    return None if any(p is None for p in parts) else sorted(parts)[-1]


def _gap(a, b):
    return None if a is None or b is None else abs(a - b)


def _rate(score, keep):
    """Share of the kept examples whose score is above 0.5."""
    kept = [s for s, k in zip(score, keep, strict=True) if k]
    return sum(s > 0.5 for s in kept) / len(kept) if kept else None


def _rates(score, target, group, n_groups, classes):
    rows = list(zip(target, group, strict=True))
    return [_rate(score, [y in classes and g == k for y, g in rows]) for k in range(n_groups)]


def _over_pairs(values, pairs, distance=_gap):
    chosen = pairwise(values) if pairs == "adjacent" else combinations(values, 2)
    return _one([distance(a, b) for a, b in chosen], pairs)


def acc(score, target, group, n_groups, pairs="adjacent"):
    return sum((s > 0.5) == (y == 1) for s, y in zip(score, target, strict=True)) / len(score)


def dp(score, target, group, n_groups, pairs="adjacent"):
    return _over_pairs(_rates(score, target, group, n_groups, {0, 1}), pairs)


def eo(score, target, group, n_groups, pairs="adjacent"):
    return _over_pairs(_rates(score, target, group, n_groups, {1}), pairs)


def fpr_gap(score, target, group, n_groups, pairs="adjacent"):
    return _over_pairs(_rates(score, target, group, n_groups, {0}), pairs)


def ed(score, target, group, n_groups, pairs="adjacent"):
    tpr = _rates(score, target, group, n_groups, {1})
    fpr = _rates(score, target, group, n_groups, {0})
    rates = list(zip(tpr, fpr, strict=True))
    return _over_pairs(rates, pairs, lambda a, b: _mean([_gap(a[0], b[0]), _gap(a[1], b[1])]))


def auc(above, below):
    """Every pair compared, a tie counting a half."""
    if not above or not below:
        return None
    won = 0.0
    for p in above:
        for n in below:
            won += 1.0 if p > n else 0.5 if p == n else 0.0
    return won / (len(above) * len(below))


def _some(score, target, group, classes, wanted):
    return [s for s, y, g in zip(score, target, group, strict=True) if y in classes and wanted(g)]


def _tasks(score, target, group, n_groups, pairs):
    """(positives, negatives, other positives, other negatives) of k against the rest, or of each pair of groups."""
    codes = range(n_groups)
    sides = [({k}, {g for g in codes if g != k}) for k in codes]
    if pairs != "adjacent":
        sides = [({i}, {j}) for i, j in combinations(codes, 2)]
    for side in sides:
        yield tuple(_some(score, target, group, {y}, side[own].__contains__) for own in (0, 1) for y in (1, 0))


def intra_auc(score, target, group, n_groups, pairs="adjacent"):
    tasks = _tasks(score, target, group, n_groups, pairs)
    return _one([_gap(auc(p, n), auc(rp, rn)) for p, n, rp, rn in tasks], pairs)


def inter_auc(score, target, group, n_groups, pairs="adjacent"):
    tasks = _tasks(score, target, group, n_groups, pairs)
    return _one([_gap(auc(p, rn), auc(rp, n)) for p, n, rp, rn in tasks], pairs)


def gauc(score, target, group, n_groups, pairs="adjacent"):
    tasks = _tasks(score, target, group, n_groups, pairs)
    return _one([_gap(auc(p + n, rp + rn), 0.5) for p, n, rp, rn in tasks], pairs)


def bucket(s):
    """The last of 100 buckets whose lower edge k/100 is not above s."""
    return max(k for k in range(100) if k / 100 <= s)


def _shares(score, group, n_groups):
    found = []
    for k in range(n_groups):
        kept = [bucket(s) for s, g in zip(score, group, strict=True) if g == k]
        found.append([kept.count(b) / len(kept) for b in range(100)] if kept else None)
    return found


def wd(score, target, group, n_groups, pairs="adjacent"):
    shares = _shares(score, group, n_groups)

    def distance(p, q):
        if p is None or q is None:
            return None
        return sum(abs(sum(p[:k]) - sum(q[:k])) for k in range(1, 100)) / 100

    return _over_pairs(shares, pairs, distance)


def kl(score, target, group, n_groups, pairs="adjacent"):
    shares = _shares(score, group, n_groups)

    def divergence(p, q):
        if p is None or q is None:
            return None
        smooth = [((a + 1e-4) / 1.01, (b + 1e-4) / 1.01) for a, b in zip(p, q, strict=True)]
        return sum(a * math.log(a / b) for a, b in smooth)

    return _over_pairs(shares, pairs, divergence)


def worst_group_acc(score, target, group, n_groups, pairs="adjacent"):
    found = []
    for k in range(n_groups):
        for y in (0, 1):
            kept = _some(score, target, group, {y}, lambda g, k=k: g == k)
            found.append(sum((s > 0.5) == (y == 1) for s in kept) / len(kept) if kept else None)
    return None if None in found else min(found)


def area(score, target, group, n_groups, pairs="adjacent"):
    rows = list(zip(score, target, strict=True))
    return auc([s for s, y in rows if y == 1], [s for s, y in rows if y == 0])


def balanced_acc(score, target, group, n_groups, pairs="adjacent"):
    rows = list(zip(score, target, strict=True))
    parts = []
    for wanted in (0, 1):
        right = [(s > 0.5) == (y == 1) for s, y in rows if y == wanted]
        parts.append(sum(right) / len(right) if right else None)
    return _mean(parts)


def calibration_error(rows, n_bins=10):
    """Bin by bin: share of the rows times |mean score - share of y = 1|."""
    total = 0.0
    for b in range(n_bins):
        kept = [(s, y) for s, y in rows if max(k for k in range(n_bins) if k / n_bins <= s) == b]
        if kept:
            gap = abs(sum(s for s, _ in kept) / len(kept) - sum(y for _, y in kept) / len(kept))
            total += len(kept) / len(rows) * gap
    return total


def ece_gap(score, target, group, n_groups, pairs="adjacent"):
    found = []
    for k in range(n_groups):
        rows = [(s, y) for s, y, g in zip(score, target, group, strict=True) if g == k]
        found.append(calibration_error(rows) if rows else None)
    return _over_pairs(found, pairs)


ALL = {
    "Acc": acc,
    "ED": ed,
    "EO": eo,
    "DP": dp,
    "IntraAUC": intra_auc,
    "InterAUC": inter_auc,
    "GAUC": gauc,
    "WD": wd,
    "KL": kl,
    "TPRGap": eo,
    "FPRGap": fpr_gap,
    "WorstGroupAcc": worst_group_acc,
    "AUC": area,
    "BalAcc": balanced_acc,
    "ECEGap": ece_gap,
}
