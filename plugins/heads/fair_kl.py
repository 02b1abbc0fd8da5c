"""Two images of one class shall be as near to each other across the groups as within a group.

Barbano, Dufumier, Tartaglione, Grangetto, Gori: Unbiased Supervised Contrastive Learning, ICLR 2023, arXiv 2211.05568,
the regulariser FairKL.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fairssl.api import Batch, Head, Stream, Terms
from fairssl.nn import normalize

SMALLEST = 1e-4  # variance


class FairKL(Head):
    """weight * (KL(positive, same group || positive, other group) + the same for negatives), at least 0.

    Each is the divergence of one normal distribution from another, with the means and variances of the distances
    (1 - z.z') of pairs of annotated views: positives have one target, negatives two; the two views of one image are no
    pair. A kind of pair of which the batch has fewer than two adds 0, and `empty_kinds` counts these.

    The paper takes the distances of each anchor by itself; here those of all anchors of the batch are pooled, since in a
    batch of a hundred an anchor has too few of one kind for a variance. Variances are at least 1e-4. For more than two
    groups, every other group is "the other".
    """

    sees = frozenset({"target", "group"})
    streams = frozenset({"annotated"})
    n_views = 1
    needs = "embedding"

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        z, target, group = normalize(batch.flat_z()), batch.target_of_views(), batch.group_of_views()
        image = batch.index.repeat(len(batch.f))
        distance = 1 - z @ z.T
        pair = image[:, None] != image[None, :]
        same_class = target[:, None] == target[None, :]
        same_group = group[:, None] == group[None, :]
        terms, empty = {}, torch.zeros((), device=z.device)
        for name, kind in (("positives", pair & same_class), ("negatives", pair & ~same_class)):
            within, across = _moments(distance, kind & same_group), _moments(distance, kind & ~same_group)
            both = (within[2] > 1) & (across[2] > 1)
            terms[name] = torch.where(both, _divergence(*within[:2], *across[:2]), 0.0)
            empty = empty + (~both).float()
        return Terms(primal=terms, log={"empty_kinds": empty})


def _moments(value: Tensor, of: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of the values at `of`, and how many they are; 0-d each."""
    n = of.sum()
    mean = torch.where(of, value, 0.0).sum() / n.clamp_min(1)
    variance = torch.where(of, (value - mean).square(), 0.0).sum() / n.clamp_min(1)
    return mean, variance.clamp_min(SMALLEST), n


def _divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(other mean, other variance)) in nats."""
    ratio = variance / other_variance
    return (ratio + (mean - other_mean).square() / other_variance - torch.log(ratio) - 1) / 2
