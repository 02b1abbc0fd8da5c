"""Predict a slowly moving copy's view of the same image; no negatives.

Grill, Strub, Altché, Tallec, Richemond and others: Bootstrap Your Own Latent: A New Approach to Self-Supervised
Learning, NeurIPS 2020, eqs. 1 and 2.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import ema_update, mlp, momentum_copy, momentum_rate, normalize, sharded


class BYOL(Objective):
    """L = mean over the images of (2 - 2 cos(q(z), z'_target)) + (2 - 2 cos(q(z'), z_target)), in 0..8.

    After each step the target encoder and projector become rate * target + (1 - rate) * online, with
    rate = 1 - (1 - tau_base)(cos(pi k/K) + 1)/2. The target sees batch statistics, like the online networks, and
    its own running statistics are averaged with the online ones. Widths are those of the SoFCLR paper (projector
    D-256-128, predictor 128-256-128) instead of 4096 and 256; `tau_base` is the authors' value for 100 epochs.
    """

    sees = frozenset({"views"})  # the target encoder encodes them too

    class Config(PluginConfig):
        tau_base: float = Field(0.99, ge=0, le=1)
        """Rate of the moving average at the first step; it rises to 1."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the hidden layer of projector and predictor."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)
        self.predictor = mlp(config.projection_dim, config.hidden_dim, config.projection_dim)
        self.target_encoder = momentum_copy(ctx.encoder)
        self.target_projector = momentum_copy(self.projector)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["all"]
        p, p_ = self.predictor(batch.flat_z()).chunk(2)
        with torch.no_grad():
            pixels = batch.flat_views().contiguous(memory_format=torch.channels_last)
            t, t_ = self.target_projector(sharded(self.target_encoder, pixels)).chunk(2)
        return Terms(primal={"regression": _regression(p, t_) + _regression(p_, t)})

    def after_step(self, encoder: nn.Module, progress: Tensor) -> None:
        rate = momentum_rate(self.config.tau_base, progress)
        ema_update(self.target_encoder, encoder, rate)
        ema_update(self.target_projector, self.projector, rate)


def _regression(prediction: Tensor, target: Tensor) -> Tensor:
    """(B, P), (B, P) -> 0-d: mean squared distance of the normalised vectors, 2 - 2 cos, in 0..4."""
    return (2 - 2 * (normalize(prediction) * normalize(target)).sum(1)).mean()
