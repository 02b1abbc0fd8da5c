"""Two views of an image attract each other among all views of the batch (NT-Xent).

Chen, Kornblith, Norouzi, Hinton: A Simple Framework for Contrastive Learning of Visual Representations, ICML 2020,
eq. 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp, nt_xent


class SimCLR(Objective):
    """L = mean over the 2B views of -log exp(z.z_pos/tau) / (sum of exp(z.z'/tau) over the 2B - 1 other views).

    The mean, as published; the authors' code returns the sum of the two directions, which is twice this. The projector
    is the one of the SoFCLR paper, D-256-128, with batch norm in its hidden layer.
    """

    class Config(PluginConfig):
        temperature: float = Field(0.3, gt=0)
        """Tau: similarities are divided by it."""
        loss_scale_tau: bool = False
        """Multiply by tau, the scale of SogCLR's loss, so that a head's weight means the same."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        loss = nt_xent(batches["all"].z, self.config.temperature)
        if self.config.loss_scale_tau:
            loss = loss * self.config.temperature
        return Terms(primal={"nt_xent": loss})
