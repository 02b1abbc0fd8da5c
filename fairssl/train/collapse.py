"""Whether an encoder still tells images apart: the spread of its features and how many directions they use."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fairssl.nn import normalize

ROWS = 10_000  # at most so many are looked at
LEAST_SD = 0.02  # below it all features point one way; an untrained small CNN has 0.2
LEAST_RANK = 1.05  # below it they lie on a line


@dataclass(frozen=True)
class Spread:
    """`feature_sd` in 0..1: the root of the mean squared distance of the features, at unit length, from their mean; 0 if all
    point one way (Chen and He: Exploring Simple Siamese Representation Learning, CVPR 2021, watch the same per entry).

    `effective_rank` in 0..F: exp of the entropy of the singular values of the centred features, as shares of their sum (Roy
    and Vetterli: The Effective Rank, EUSIPCO 2007): how many directions the features use; 0 if they do not vary.
    """

    feature_sd: float
    effective_rank: float

    @property
    def collapsed(self) -> bool:
        """Whether the features are a point or a line. A classifier of two classes that is trained to the end comes near a
        line and may be none the worse; an encoder that is trained without targets has lost everything."""
        return self.feature_sd < LEAST_SD or self.effective_rank < LEAST_RANK


@torch.no_grad()
def spread(f: Tensor) -> Spread:
    """Of (n, F) features, or of evenly many of very many; n at least 2. Reads back."""
    f = f.detach()[:: -(-len(f) // ROWS)].double().cpu()
    unit = normalize(f)
    sd = (unit - unit.mean(0)).square().sum(1).mean().sqrt()
    centred = f - f.mean(0)
    gram = centred @ centred.T if len(f) < f.shape[1] else centred.T @ centred
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    values = torch.where(values > 1e-6 * torch.linalg.matrix_norm(f), values, 0.0)  # the rest is rounding
    if not values.any():
        return Spread(float(sd), 0.0)
    share = values / values.sum()
    return Spread(float(sd), float(torch.special.entr(share).sum().exp()))
