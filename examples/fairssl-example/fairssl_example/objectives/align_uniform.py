"""Two views of an image lie close to each other, and the views of all images spread evenly over the sphere.

Wang, Isola: Understanding Contrastive Representation Learning through Alignment and Uniformity on the Hypersphere, ICML 2020,
the definitions of L_align and L_uniform in section 4.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp, normalize


class AlignUniform(Objective):
    """L = alignment * mean |z - z'|^2 + uniformity * (U(Z) + U(Z')) / 2, z at unit length; the first term lies in 0..4, U in
    -4t..0."""

    version = 1

    class Config(PluginConfig):
        alignment: float = Field(1.0, ge=0)
        """Weight of the distance of an image's two views."""
        uniformity: float = Field(1.0, ge=0)
        """Weight of U, which is low where the images are spread out."""
        t: float = Field(2.0, gt=0)
        """Inverse width of the Gaussian: squared distances are multiplied by it."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the vector z."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        z, z_ = map(normalize, batches["all"].z)  # (B, P) each
        spread = (uniformity(z, self.config.t) + uniformity(z_, self.config.t)) / 2
        return Terms(
            primal={
                "alignment": self.config.alignment * (z - z_).square().sum(1).mean(),
                "uniformity": self.config.uniformity * spread,
            }
        )


def uniformity(z: Tensor, t: float) -> Tensor:
    """(B, P) of unit length -> 0-d: log of the mean of exp(-t |z_i - z_j|^2) over the pairs of different images."""
    exponent = 2 * t * (z @ z.T - 1)
    itself = torch.eye(len(z), dtype=torch.bool, device=z.device)
    pairs = exponent.masked_fill(itself, -torch.inf)
    return pairs.flatten().logsumexp(0) - torch.log(torch.full_like(pairs[0, 0], len(z) * (len(z) - 1)))
