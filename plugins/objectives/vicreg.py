"""Two views agree, every feature varies, no two features say the same; no negatives.

Bardes, Ponce, LeCun: VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning, ICLR 2022,
eqs. 1 to 6, with the squared distance averaged over the features as in its Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp


class VICReg(Objective):
    """L = invariance * s(Z, Z') + variance * (v(Z) + v(Z')) + covariance * (c(Z) + c(Z')), at least 0. The expander is
    smaller than the paper's 8192-8192-8192, in keeping with the other objectives."""

    class Config(PluginConfig):
        invariance: float = Field(25.0, ge=0)
        """Lambda in the paper."""
        variance: float = Field(25.0, ge=0)
        """Mu in the paper."""
        covariance: float = Field(1.0, ge=0)
        """Nu in the paper."""
        expander_dim: int = Field(512, ge=1)
        """P, width of the expander's layers."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.expander = mlp(ctx.feature_dim, config.expander_dim, config.expander_dim, config.expander_dim)

    def project(self, f: Tensor) -> Tensor:
        return self.expander(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        z, z_ = batches["all"].z
        terms = {
            "invariance": self.config.invariance * (z - z_).square().mean(),
            "variance": self.config.variance * (_variance(z) + _variance(z_)),
            "covariance": self.config.covariance * (_covariance(z) + _covariance(z_)),
        }
        return Terms(primal=terms)


def _variance(z: Tensor) -> Tensor:
    """(B, P) -> 0-d: mean hinge of each feature's standard deviation below 1, eq. 1."""
    return torch.relu(1 - torch.sqrt(z.var(0) + 1e-4)).mean()


def _covariance(z: Tensor) -> Tensor:
    """(B, P) -> 0-d: squared covariances of different features, summed and divided by P, eqs. 3 and 4."""
    z = z - z.mean(0)
    covariance = z.T @ z / (len(z) - 1)
    return (covariance.square().sum() - covariance.diagonal().square().sum()) / z.shape[1]
