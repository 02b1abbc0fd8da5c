"""A prediction finds the slowly moving encoder's view of the same image among those of the whole batch.

Chen, Xie, He: An Empirical Study of Training Self-Supervised Vision Transformers, ICCV 2021, eq. 1 and Algorithm 1. The
batch takes the place of the queue of He, Fan, Wu, Xie, Girshick: Momentum Contrast, CVPR 2020.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import ema_update, mlp, momentum_copy, momentum_rate, normalize, sharded


class MoCoV3(Objective):
    """L = ctr(q, k') + ctr(q', k), ctr(q, k) = 2 tau * mean over the images i of -log of exp(q_i.k_i / tau) over the sum over
    j of exp(q_i.k_j / tau); at least 0.

    q = predictor(projector(f)) at unit length, k the same of the momentum encoder and projector without a predictor. After
    each step these become rate * momentum + (1 - rate) * online, the rate rising from `momentum` to 1 along half a cosine.
    Widths are those of the other objectives, D-256-128 and 128-256-128, instead of 4096 and 256; the patch embedding of a
    vision transformer is not frozen.
    """

    sees = frozenset({"views"})  # the momentum encoder encodes them too

    class Config(PluginConfig):
        temperature: float = Field(0.2, gt=0)
        """Tau: similarities are divided by it."""
        momentum: float = Field(0.99, ge=0, le=1)
        """Share of the momentum encoder that stays at the first step; it rises to 1."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the hidden layer of projector and predictor."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)
        self.predictor = mlp(config.projection_dim, config.hidden_dim, config.projection_dim)
        self.momentum_encoder = momentum_copy(ctx.encoder)
        self.momentum_projector = momentum_copy(self.projector)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch, tau = batches["all"], self.config.temperature
        q, q_ = normalize(self.predictor(batch.flat_z())).chunk(2)
        with torch.no_grad():
            pixels = batch.flat_views().contiguous(memory_format=torch.channels_last)
            k, k_ = normalize(self.momentum_projector(sharded(self.momentum_encoder, pixels))).chunk(2)
        return Terms(primal={"contrast": _contrast(q, k_, tau) + _contrast(q_, k, tau)})

    def after_step(self, encoder: nn.Module, progress: Tensor) -> None:
        rate = momentum_rate(self.config.momentum, progress)
        ema_update(self.momentum_encoder, encoder, rate)
        ema_update(self.momentum_projector, self.projector, rate)


def _contrast(q: Tensor, k: Tensor, tau: float) -> Tensor:
    """Unit vectors (B, P) -> 0-d."""
    return 2 * tau * F.cross_entropy(q @ k.T / tau, torch.arange(len(q), device=q.device))
