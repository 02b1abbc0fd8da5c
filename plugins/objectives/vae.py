"""Reconstruct the image from a noisy code close to a standard normal: a variational autoencoder.

Kingma, Welling: Auto-Encoding Variational Bayes, ICLR 2014, eq. 10; Rezende, Mohamed, Wierstra: Stochastic
Backpropagation and Approximate Inference in Deep Generative Models, ICML 2014. The unsupervised part of Louizos, Swersky,
Li, Welling, Zemel: The Variational Fair Autoencoder, ICLR 2016.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import torch
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import sharded

WIDEST, NARROWEST = 512, 8  # channels of the decoder's layers


class VAE(Objective):
    """L = mean over the views of (||x - x^||^2 / (2 sigma^2) + beta KL(N(mu, e^s) || N(0, I))) / (C H W).

    The negative evidence lower bound in nats, without its constant, per pixel and channel: the division keeps a head's
    weight of the same meaning at every image size. x is the augmented view, in the normalised scale of about -1..1, and
    x^ the decoder's mean; the pixels' standard deviation `sigma` says how much of the image the code must hold. Two
    linear layers on the backbone's feature give mu (B, F), which is the representation, and s (B, F).

    The log-variance is s = bound tanh(raw / bound), so that no output of the encoder makes the loss infinite; `n_bounded`
    in the log counts the entries with |raw| > bound, which ought to be 0.

    The decoder mirrors a ResNet: from a map 1/2^n as wide as the image, n stages that double it (nearest neighbour, 3x3
    convolution, batch norm, ReLU) from D to D/2, D/4, D/8, D/8, D/8 channels (D at most 512, at least 8 channels), and a
    3x3 convolution to the C channels; n is 5, or less for images below 32 pixels. What stands out over the image is cut
    off evenly, so that any size fits. It is told neither target nor group.
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
        self.decoder = _Decoder(config.latent_dim, ctx.feature_dim, ctx.image_shape)

    def represent(self, h: Tensor) -> Tensor:
        """(B, D) -> mu (B, F)."""
        return self.mu(h)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["all"]
        x, mu = batch.flat_views(), batch.flat_f()
        raw = self.log_variance(batch.flat_h())
        s = self.config.bound * torch.tanh(raw / self.config.bound)
        code = mu + torch.exp(s / 2) * torch.randn_like(mu)
        decoded = self.decoder.cropped(sharded(self.decoder.stages, self.decoder.unfolded(code)))
        n_pixels = math.prod(x.shape[1:])
        squared = (x - decoded).square().mean()
        divergence = (mu.square() + torch.exp(s) - s - 1).sum(1).mean() / 2
        return Terms(
            primal={
                "reconstruction": squared / (2 * self.config.sigma**2),
                "divergence": self.config.beta * divergence / n_pixels,
            },
            log={"n_bounded": (raw.detach().abs() > self.config.bound).sum().float()},
        )


class _Decoder(nn.Module):
    """(B, F) -> (B, C, H, W), the mean of the normalised pixels: `cropped(stages(unfolded(z)))`. Only the stages are heavy;
    the first layer stays in float32, since a code may be far larger than a half-precision product keeps apart."""

    def __init__(self, latent_dim: int, encoder_dim: int, image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, *self.size = image_shape
        n_stages = min(5, int(math.log2(min(self.size))))
        widths = [max(NARROWEST, min(WIDEST, encoder_dim) >> min(stage, 3)) for stage in range(n_stages + 1)]
        self.start = (widths[0], *(math.ceil(side / 2**n_stages) for side in self.size))
        self.unfold = nn.Linear(latent_dim, math.prod(self.start))
        layers: list[nn.Module] = []
        for fan_in, fan_out in pairwise(widths):
            layers += [
                nn.Upsample(scale_factor=2, mode="nearest"),
                nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False),
                nn.BatchNorm2d(fan_out),
                nn.ReLU(inplace=True),
            ]
        self.stages = nn.Sequential(*layers, nn.Conv2d(widths[-1], channels, 3, padding=1))

    def forward(self, z: Tensor) -> Tensor:
        return self.cropped(self.stages(self.unfolded(z)))

    def unfolded(self, z: Tensor) -> Tensor:
        """(B, F) -> (B, D, h, w), the smallest map."""
        return self.unfold(z).view(len(z), *self.start).contiguous(memory_format=torch.channels_last)

    def cropped(self, x: Tensor) -> Tensor:
        """(B, C, at least H, at least W) -> (B, C, H, W), what stands out over the image cut off evenly."""
        height, width = self.size
        top, left = (x.shape[2] - height) // 2, (x.shape[3] - width) // 2
        return x[:, :, top : top + height, left : left + width]
