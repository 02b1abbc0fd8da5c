"""Each feature of one view agrees with the same feature of the other view, and with no other feature; no negatives.

Zbontar, Jing, Misra, LeCun, Deny: Barlow Twins: Self-Supervised Learning via Redundancy Reduction, ICML 2021, eqs. 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp

EPSILON = 1e-5  # added to a feature's variance, as batch norm does


class BarlowTwins(Objective):
    """L = sum over i of (1 - C_ii)^2 + redundancy * sum over i != j of C_ij^2, at least 0.

    C_ij in -1..1 is the correlation over the batch of feature i of one view with feature j of the other. The projector is
    smaller than the paper's 8192-8192-8192, in keeping with the other objectives.
    """

    class Config(PluginConfig):
        redundancy: float = Field(5e-3, ge=0)
        """Weight of the correlations of different features, lambda in the paper."""
        projector_dim: int = Field(512, ge=1)
        """P, width of the projector's layers."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.projector_dim, config.projector_dim, config.projector_dim)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        z, z_ = (_standardised(view) for view in batches["all"].z)
        correlation = z.T @ z_ / len(z)  # (P, P)
        own = correlation.diagonal()
        others = correlation.square().sum() - own.square().sum()
        return Terms(primal={"invariance": (1 - own).square().sum(), "redundancy": self.config.redundancy * others})


def _standardised(z: Tensor) -> Tensor:
    """(B, P) -> each feature with mean 0 and variance 1 over the batch."""
    z = z - z.mean(0)
    return z / torch.sqrt(z.square().mean(0) + EPSILON)
