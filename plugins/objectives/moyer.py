"""Codes that tell nothing of the group, without an adversary: the decoder is told the group, so the code need not be.

Moyer, Gao, Brekelmans, Galstyan, Ver Steeg: Invariant Representations without Adversarial Training, NeurIPS 2018, arXiv
1805.09458: the bound on I(z; c) of section 2 in the variational autoencoder of section 3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import ImageDecoder, bounded_log_variance, divergence_from_prior, one_hot


class InvariantAutoencoder(Objective):
    """L = (1 + lambda) reconstruction + beta KL(q(z|x) || N(0, I)) + lambda KL(q(z|x) || q(z)), per pixel and channel.

    reconstruction = ||x - x^||^2 / (2 sigma^2), with x^ decoded from z and the group c. The group's information in the code
    is bounded by I(z; c) <= E KL(q(z|x) || q(z)) - E log p(x|z, c) - H(x|c), and lambda weighs this bound: a code that
    holds what the group tells is paid for once more, and the decoder has no use for it. The first divergence is bounded in
    turn by the mean over all pairs of the batch of KL(q(z|x_i) || q(z|x_j)), as in the authors' code.

    It sees the annotated images alone, whose group is known; an epoch is a pass over them. Code, log-variance, sigma and
    decoder are those of `vae`; the decoder has the group beside the code, one-hot. The representation is the code's mean.
    With the head `classifier` this is the paper's supervised form.
    """

    sees = frozenset({"group", "views"})
    streams = frozenset({"annotated"})
    n_views = 1

    class Config(PluginConfig):
        aliases: ClassVar = {"lambda": "invariance"}
        latent_dim: int = Field(128, ge=1)
        """F, width of the code."""
        sigma: float = Field(0.1, gt=0)
        """Standard deviation of a pixel given the code, in the scale -1..1."""
        beta: float = Field(1.0, ge=0)
        """Weight of the divergence from the prior."""
        invariance: float = Field(1.0, ge=0)
        """Lambda: weight of the bound on what the code tells of the group."""
        bound: float = Field(10.0, gt=0, le=40)
        """Largest log-variance of the code, either way."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.feature_dim = config.latent_dim
        self.n_groups = ctx.n_groups
        self.mu = nn.Linear(ctx.feature_dim, config.latent_dim)
        self.log_variance = nn.Linear(ctx.feature_dim, config.latent_dim)
        self.decoder = ImageDecoder(config.latent_dim + ctx.n_groups, ctx.feature_dim, ctx.image_shape)

    def represent(self, h: Tensor) -> Tensor:
        """(B, D) -> mu (B, F)."""
        return self.mu(h)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        x, mu = batch.flat_views(), batch.flat_f()
        s, n_bounded = bounded_log_variance(self.log_variance(batch.flat_h()), self.config.bound)
        code = mu + torch.exp(s / 2) * torch.randn_like(mu)
        group = one_hot(batch.group_of_views(), self.n_groups, code.dtype)
        squared = (x - self.decoder.decoded(torch.cat([code, group], 1))).square().mean()
        n_pixels, invariance = math.prod(x.shape[1:]), self.config.invariance
        return Terms(
            primal={
                "reconstruction": (1 + invariance) * squared / (2 * self.config.sigma**2),
                "divergence": self.config.beta * divergence_from_prior(mu, s) / n_pixels,
                "information": invariance * divergence_of_pairs(mu, s) / n_pixels,
            },
            log={"n_bounded": n_bounded},
        )


def divergence_of_pairs(mu: Tensor, s: Tensor) -> Tensor:
    """Mean over all pairs of rows, each with itself too, of KL(N(mu_i, e^s_i) || N(mu_j, e^s_j)) in nats; 0-d."""
    gap = (
        mu[:, None] - mu[None, :]
    ).square()  # (n, n, F): differences first, small variances leave no room for rounding
    between = s[:, None] - s[None, :]
    divergence = (torch.exp(between) + gap * torch.exp(-s)[None, :] - between - 1).sum(-1) / 2
    return divergence.mean()
