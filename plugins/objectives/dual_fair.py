"""An image and what it would be in another group attract each other, and a network learns from itself to stay useful.

Han, Lee, Wu, Kim, Wu, Wang, Xie, Cha: DualFair: Fair Representation Learning at Both Group and Individual Levels via
Contrastive Self-supervision, WWW 2023, arXiv 2303.08403. Theirs is a method for tables; the form for images is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import (
    ImageDecoder,
    another_group,
    bounded_log_variance,
    contrast_within_groups,
    conv_net,
    divergence_from_prior,
    mlp,
    normalize,
    one_hot,
    passes,
    stepping,
    stored_pixels,
)

if TYPE_CHECKING:
    from fairssl.data.device import DeviceSplit


class DualFair(Objective):
    """Before the first step (`prepare`) a cyclic variational autoencoder with the group beside its code is trained on the
    annotated images: it shall draw an image again from its code, and find the code again, and from it the image, after the
    image was drawn as another group's. In training each annotated image has a third view, its counterfactual, and

    L = group * contrast + individual * pair + distillation * self.

    contrast: image and counterfactual attract each other, each among views of its own group, so that the group tells nothing
    (`fairssl.nn.contrast_within_groups`). pair: a predictor of one's vector finds the other's, 2 - 2 cos in both directions,
    the found one a constant. self: the same for the two usual views, the self-distillation that keeps the representation
    useful.

    The authors draw a whole row of a table from the autoencoder. Here the counterfactual is the view plus the difference of
    its decodings as the other and as its own group, so that what the decoder cannot draw stays. Only annotated images are
    seen; the authors know the group of every row.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})

    class Config(PluginConfig):
        temperature: float = Field(0.3, gt=0)
        """Tau: similarities are divided by it."""
        group: float = Field(1.0, ge=0)
        """Weight of the contrast."""
        individual: float = Field(1.0, ge=0)
        """Weight of the counterfactual pairs."""
        distillation: float = Field(1.0, ge=0)
        """Weight of the self-distillation."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the hidden layers of projector and predictor."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""
        generator_epochs: int = Field(10, ge=1)
        """Passes over the annotated images."""
        width: int = Field(32, ge=8)
        """Channels of the generator's first layer."""
        code_dim: int = Field(32, ge=1)
        """Width of the autoencoder's code."""
        sigma: float = Field(0.1, gt=0)
        """Standard deviation of a pixel given the code, in the scale -1..1."""
        prepare_lr: float = Field(1e-3, gt=0)
        """Learning rate of Adam for the generator."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)
        self.predictor = mlp(config.projection_dim, config.hidden_dim, config.projection_dim)
        self.generator = _CyclicVAE(ctx.image_shape, ctx.n_groups, config.width, config.code_dim).requires_grad_(False)

    def train(self, mode: bool = True) -> DualFair:
        super().train(mode)
        self.generator.eval()  # its batch norm keeps the statistics that `prepare` gave it
        return self

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def views(self, batch: Batch, gen: torch.Generator) -> Batch:
        own = batch.group_of_images()
        with torch.no_grad():
            counterfactual = self.generator.as_another(batch.views[0], own, self._other(batch))
        batch.views = [*batch.views, counterfactual.contiguous(memory_format=torch.channels_last)]
        return batch

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        first, second, *rest = batch.z
        counterfactual = rest[0] if rest else second
        codes = [batch.group_of_images(), self._other(batch) if rest else batch.group_of_images()]
        contrast = contrast_within_groups([first, counterfactual], codes, self.config.temperature)
        return Terms(
            primal={
                "group": self.config.group * contrast,
                "individual": self.config.individual * self._distance(first, counterfactual),
                "distillation": self.config.distillation * self._distance(first, second),
            }
        )

    def _other(self, batch: Batch) -> Tensor:
        return another_group(batch.group_of_images(), batch.index, self.n_groups)

    def _distance(self, a: Tensor, b: Tensor) -> Tensor:
        """2 - 2 cos of what the predictor makes of one and of the other as it is, the mean over both directions; 0..4."""
        found = normalize(self.predictor(torch.cat([a, b])))
        wanted = normalize(torch.cat([b, a]).detach())
        return (2 - 2 * (found * wanted).sum(1)).mean()

    def prepare(self, data: DeviceSplit, gen: torch.Generator) -> None:
        known = data.annotated.to(data.group.device)
        self.generator.train()
        with stepping(self.generator, self.config.prepare_lr) as draw:
            for rows in passes(known, self.config.generator_epochs, 32, gen):
                own = data.group[rows]
                other = another_group(own, rows, self.n_groups)
                draw.take(
                    self.generator.loss(stored_pixels(data.images, rows, gen), own, other, self.config.sigma, gen)
                )
        self.generator.eval()


class _CyclicVAE(torch.nn.Module):
    """A variational autoencoder whose decoder is told the group."""

    def __init__(self, image_shape: tuple[int, int, int], n_groups: int, width: int, code_dim: int) -> None:
        super().__init__()
        self.n_groups = n_groups
        self.encoder = conv_net(image_shape[0], width, 2 * code_dim)
        self.decoder = ImageDecoder(code_dim + n_groups, 2 * width, image_shape)

    def code(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, H, W) -> mean and log-variance of the code, (B, F) each."""
        mu, raw = self.encoder(x).chunk(2, 1)
        return mu, bounded_log_variance(raw, 10.0)[0]

    def drawn(self, code: Tensor, group: Tensor) -> Tensor:
        """(B, F) and (B,) -> (B, C, H, W)."""
        return self.decoder(torch.cat([code, one_hot(group, self.n_groups, code.dtype)], 1))

    def as_another(self, x: Tensor, own: Tensor, other: Tensor) -> Tensor:
        """(B, C, H, W) in -1..1 as if of another group."""
        mu = self.code(x)[0]
        return (x + self.drawn(mu, other) - self.drawn(mu, own)).clamp(-1, 1)

    def loss(self, x: Tensor, own: Tensor, other: Tensor, sigma: float, gen: torch.Generator) -> Tensor:
        """The negative bound per pixel, and the cycle: code and image found again by way of another group."""
        mu, s = self.code(x)
        noise = torch.randn(mu.shape, generator=gen, device=gen.device)
        code = mu + torch.exp(s / 2) * noise
        again, _ = self.code(self.drawn(code, other))
        squared = (x - self.drawn(code, own)).square().mean() + (x - self.drawn(again, own)).square().mean()
        n_pixels = x[0].numel()
        cycle = (again - mu).square().sum(1).mean() / 2
        return squared / (2 * sigma**2) + (divergence_from_prior(mu, s) + cycle) / n_pixels
