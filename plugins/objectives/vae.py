"""Reconstruct the image from a noisy code close to a standard normal: a variational autoencoder.

Kingma, Welling: Auto-Encoding Variational Bayes, ICLR 2014, eq. 10; Rezende, Mohamed, Wierstra: Stochastic
Backpropagation and Approximate Inference in Deep Generative Models, ICML 2014. The unsupervised part of Louizos, Swersky,
Li, Welling, Zemel: The Variational Fair Autoencoder, ICLR 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import ImageDecoder, bounded_log_variance, divergence_from_prior


class VAE(Objective):
    """L = mean over the views of (||x - x^||^2 / (2 sigma^2) + beta KL(N(mu, e^s) || N(0, I))) / (C H W).

    The negative evidence lower bound in nats, without its constant, per pixel and channel: the division keeps a head's
    weight of the same meaning at every image size. x is the augmented view, in the normalised scale of about -1..1, and
    x^ the decoder's mean; the pixels' standard deviation `sigma` says how much of the image the code must hold. Two
    linear layers on the backbone's feature give mu (B, F), which is the representation, and s (B, F).

    The log-variance is s = bound tanh(raw / bound), so that no output of the encoder makes the loss infinite; `n_bounded`
    in the log counts the entries with |raw| > bound, which ought to be 0.

    The decoder mirrors a ResNet (`fairssl.nn.ImageDecoder`) and is told neither target nor group.
    """

    sees = frozenset({"views"})  # what is reconstructed
    n_views = 1

    class Config(PluginConfig):
        latent_dim: int = Field(128, ge=1)
        """F, width of the code, which is the representation."""
        sigma: float = Field(0.1, gt=0)
        """Standard deviation of a pixel given the code, in the normalised scale."""
        beta: float = Field(1.0, ge=0)
        """Weight of the divergence; 1: the bound itself."""
        bound: float = Field(10.0, gt=0, le=40)
        """Largest absolute log-variance of the code."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.feature_dim = config.latent_dim
        self.mu = nn.Linear(ctx.feature_dim, config.latent_dim)
        self.log_variance = nn.Linear(ctx.feature_dim, config.latent_dim)
        self.decoder = ImageDecoder(config.latent_dim, ctx.feature_dim, ctx.image_shape)

    def represent(self, h: Tensor) -> Tensor:
        """(B, D) -> mu (B, F)."""
        return self.mu(h)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["all"]
        x, mu = batch.flat_views(), batch.flat_f()
        s, n_bounded = bounded_log_variance(self.log_variance(batch.flat_h()), self.config.bound)
        code = mu + torch.exp(s / 2) * torch.randn_like(mu)
        decoded = self.decoder.decoded(code)
        n_pixels = math.prod(x.shape[1:])
        squared = (x - decoded).square().mean()
        return Terms(
            primal={
                "reconstruction": squared / (2 * self.config.sigma**2),
                "divergence": self.config.beta * divergence_from_prior(mu, s) / n_pixels,
            },
            log={"n_bounded": n_bounded},
        )
