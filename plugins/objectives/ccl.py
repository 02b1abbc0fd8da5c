"""Contrast only among the annotated images of one group, so that the group does not help to tell images apart.

Ma, Tsai, Liang, Zhao, Zhang, Salakhutdinov, Morency: Conditional Contrastive Learning for Improving Fairness in
Self-Supervised Learning, 2021, arXiv 2106.02866.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp, nt_xent


class ConditionalContrast(Objective):
    """L = mean over the views of NT-Xent whose denominator holds the anchor's own group only, as in the head `ccl`.

    It sees nothing but the annotated images, so that an epoch is a pass over them. The authors draw a group, then a
    batch from that group alone; here the batch is mixed and each anchor keeps its positive and the views of other images
    of its group (`FSCL*` of Park et al. 2022). An anchor alone in its group has loss 0 and stays in the mean. The
    projector is SimCLR's.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})

    class Config(PluginConfig):
        temperature: float = Field(0.3, gt=0)
        """Tau: similarities are divided by it."""
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
        batch = batches["annotated"]
        return Terms(primal={"ccl": nt_xent(batch.z, self.config.temperature, batch.group_of_images())})
