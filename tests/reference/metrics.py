"""The metrics once more, slow and plain: loops over pairs of examples, written from the definitions, importing nothing.

Every function takes lists `score`, `target`, `group` and the number of groups K; None is undefined.
"""

import math
from itertools import pairwise


def _mean(parts):
    return None if any(p is None for p in parts) else sum(parts) / len(parts)


def _gap(a, b):
    return None if a is None or b is None else abs(a - b)


def _rate(score, keep):
    """Share of the kept examples whose score is above 0.5."""
    kept = [s for s, k in zip(score, keep, strict=True) if k]
    return sum(s > 0.5 for s in kept) / len(kept) if kept else None


def _rates(score, target, group, n_groups, classes):
    rows = list(zip(target, group, strict=True))
    return [_rate(score, [y in classes and g == k for y, g in rows]) for k in range(n_groups)]


def _adjacent(values):
    return _mean([_gap(a, b) for a, b in pairwise(values)])


def acc(score, target, group, n_groups):
    return sum((s > 0.5) == (y == 1) for s, y in zip(score, target, strict=True)) / len(score)


def dp(score, target, group, n_groups):
    return _adjacent(_rates(score, target, group, n_groups, {0, 1}))


def eo(score, target, group, n_groups):
    return _adjacent(_rates(score, target, group, n_groups, {1}))


def fpr_gap(score, target, group, n_groups):
    return _adjacent(_rates(score, target, group, n_groups, {0}))


def ed(score, target, group, n_groups):
    tpr = _rates(score, target, group, n_groups, {1})
    fpr = _rates(score, target, group, n_groups, {0})
    return _mean([_mean([_gap(tpr[k], tpr[k + 1]), _gap(fpr[k], fpr[k + 1])]) for k in range(n_groups - 1)])


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


def _tasks(score, target, group, n_groups):
    """(positives of k, negatives of k, positives of the rest, negatives of the rest) for each k."""
    for k in range(n_groups):
        yield tuple(
            _some(score, target, group, {y}, (lambda g, k=k: g == k) if own else (lambda g, k=k: g != k))
            for own in (True, False)
            for y in (1, 0)
        )


def intra_auc(score, target, group, n_groups):
    return _mean([_gap(auc(p, n), auc(rp, rn)) for p, n, rp, rn in _tasks(score, target, group, n_groups)])


def inter_auc(score, target, group, n_groups):
    return _mean([_gap(auc(p, rn), auc(rp, n)) for p, n, rp, rn in _tasks(score, target, group, n_groups)])


def gauc(score, target, group, n_groups):
    return _mean([_gap(auc(p + n, rp + rn), 0.5) for p, n, rp, rn in _tasks(score, target, group, n_groups)])


def bucket(s):
    """The last of 100 buckets whose lower edge k/100 is not above s."""
    return max(k for k in range(100) if k / 100 <= s)


def _shares(score, group, n_groups):
    found = []
    for k in range(n_groups):
        kept = [bucket(s) for s, g in zip(score, group, strict=True) if g == k]
        found.append([kept.count(b) / len(kept) for b in range(100)] if kept else None)
    return found


def wd(score, target, group, n_groups):
    shares = _shares(score, group, n_groups)

    def distance(p, q):
        if p is None or q is None:
            return None
        return sum(abs(sum(p[:k]) - sum(q[:k])) for k in range(1, 100)) / 100

    return _mean([distance(p, q) for p, q in pairwise(shares)])


def kl(score, target, group, n_groups):
    shares = _shares(score, group, n_groups)

    def divergence(p, q):
        if p is None or q is None:
            return None
        smooth = [((a + 1e-4) / 1.01, (b + 1e-4) / 1.01) for a, b in zip(p, q, strict=True)]
        return sum(a * math.log(a / b) for a, b in smooth)

    return _mean([divergence(p, q) for p, q in pairwise(shares)])


def worst_group_acc(score, target, group, n_groups):
    found = []
    for k in range(n_groups):
        for y in (0, 1):
            kept = _some(score, target, group, {y}, lambda g, k=k: g == k)
            found.append(sum((s > 0.5) == (y == 1) for s in kept) / len(kept) if kept else None)
    return None if None in found else min(found)


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
}
