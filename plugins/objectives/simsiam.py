"""Predict one view's vector from the other's, which is held still; no negatives and no second encoder.

Chen, He: Exploring Simple Siamese Representation Learning, CVPR 2021, eqs. 1 to 4.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp, normalize


class SimSiam(Objective):
    """L = mean over the images of -cos(q(z), z') / 2 - cos(q(z'), z) / 2, in -1..1; the vector after the comma is a constant.

    The projector has three layers with batch norm after each, also the last, the predictor two with a bottleneck, as
    published; widths are 512 and 128 where theirs are 2048 and 512. That the features do not collapse rests on the
    constant and on the predictor: `feature_sd` in the history tells.
    """

    class Config(PluginConfig):
        projection_dim: int = Field(512, ge=1)
        """P, width of the projector's layers."""
        bottleneck_dim: int = Field(128, ge=1)
        """Width of the predictor's hidden layer."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        width = config.projection_dim
        self.projector = nn.Sequential(*mlp(ctx.feature_dim, width, width, width), nn.BatchNorm1d(width, affine=False))
        self.predictor = mlp(width, config.bottleneck_dim, width)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        z, z_ = batches["all"].z
        p, p_ = self.predictor(batches["all"].flat_z()).chunk(2)
        return Terms(primal={"similarity": (_negative_cosine(p, z_) + _negative_cosine(p_, z)) / 2})


def _negative_cosine(prediction: Tensor, target: Tensor) -> Tensor:
    """(B, P), (B, P) -> 0-d, in -1..1; no gradient to the target."""
    return -(normalize(prediction) * normalize(target.detach())).sum(1).mean()
