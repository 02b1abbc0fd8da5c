"""Two views agree feature by feature, and no two features say the same: their cross-correlation is the identity.

Zbontar, Jing, Misra, LeCun, Deny: Barlow Twins: Self-Supervised Learning via Redundancy Reduction, ICML 2021, eqs. 1
and 2.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp

TINY = 1e-6  # a feature that varies less does not vary: it correlates with nothing


class BarlowTwins(Objective):
    """L = (sum_i (1 - C_ii)^2 + redundancy * sum_{i != j} C_ij^2) / P, at least 0, with C the cross-correlation over the batch
    of the two views' features.

    The sum is divided by P, the number of features, where the paper's is not: a head's weight then means the same at
    every width. The projector is narrower than the paper's 8192-8192-8192.
    """

    version = 1

    class Config(PluginConfig):
        redundancy: float = Field(5e-3, ge=0)
        """Lambda, weight of the redundancy term."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(256, ge=1)
        """P, width of the vector z whose features are compared."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        c = cross_correlation(*batches["all"].z)  # (P, P)
        own = c.diagonal()
        invariance = (1 - own).square().sum()
        redundancy = c.square().sum() - own.square().sum()
        return Terms(
            primal={
                "invariance": invariance / len(c),
                "redundancy": self.config.redundancy * redundancy / len(c),
            }
        )


def cross_correlation(z: Tensor, z_: Tensor) -> Tensor:
    """2 x (B, P) -> (P, P) in [-1, 1], over the batch; 0 where a feature is constant. Eq. 2."""
    return _standardised(z).T @ _standardised(z_) / len(z)


def _standardised(z: Tensor) -> Tensor:
    """(B, P) with mean 0 and standard deviation 1 of each feature; a constant feature becomes 0."""
    z = z - z.mean(0)
    return z / z.square().mean(0).clamp(min=TINY).sqrt()
