"""Contrast with the whole training set through one running estimate per image, so that small batches suffice.

Yuan, Wu, Qiu, Du, Zhang, Zhou, Yang: Provable Stochastic Optimization for Global Contrastive Learning: Small Batch Does
Not Harm Performance, ICML 2022; in the form of Qi, Hu, Lin, Yang: Provable Optimization for Adversarial Fair
Self-supervised Contrastive Learning, 2024, Algorithm 1 and the equations of u and m.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms, UserError
from fairssl.nn import mlp, normalize


class SogCLR(Objective):
    """F = mean over the images of -z.z' + tau log(eps0 + g), with g the mean of exp(z.z~/tau) over all other images.

    A batch gives each image two estimates g, g' of its g, one per view, over the 2(B - 1) views of the other images.
    The buffer `u` (n_train,) keeps their running mean, u <- (1 - gamma) u + gamma (g + g')/2, or (g + g')/2 on an
    image's own first visit. What is minimised is a surrogate with the gradient m of the paper,
    mean of -z.z' + tau (g + g') / (2 (eps0 + u)) with u held constant; `gcl` in the log is F at the present u.

    Where the sources differ: the paper's m divides by the u before the update while its Algorithm 1 and all public code
    update first (`u_in_grad`); public code divides each view by its own estimate and sums the views, which doubles the
    gradient: a head's weight ported from there must be halved here. An image must not be twice in a batch.
    """

    class Config(PluginConfig):
        temperature: float = Field(0.3, ge=0.02)
        """Tau; exp(1/tau) leaves float32 below 0.0113."""
        gamma: float = Field(0.9, gt=0, le=1)
        """Share of the new estimate in u."""
        gamma_schedule: Literal["constant", "cosine"] = "constant"
        """cosine: from `gamma` down to `gamma_min`."""
        gamma_min: float = Field(0.2, gt=0, le=1)
        """Where the cosine schedule ends."""
        gamma_decay: float = Field(0.5, gt=0, le=1)
        """Share of the training after which `gamma_min` is reached."""
        u_in_grad: Literal["new", "old"] = "new"
        """Whether the gradient divides by u after its update in this step, or before it."""
        eps0: float = Field(1e-8, ge=0)
        """Added to u, which lies in exp(-1/tau)..exp(1/tau)."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""

        def unread(self) -> frozenset[str]:
            return frozenset({"gamma_min", "gamma_decay"} if self.gamma_schedule == "constant" else ())

    u: Tensor
    seen: Tensor
    gamma: Tensor

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)
        self.register_buffer("u", torch.zeros(ctx.n_train))
        self.register_buffer("seen", torch.zeros(ctx.n_train, dtype=torch.bool))
        self.register_buffer("gamma", torch.tensor(config.gamma))

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch, tau, eps0 = batches["all"], self.config.temperature, self.config.eps0
        z, z_ = (normalize(view) for view in batch.z)
        g, g_ = _mean_over_negatives(z, z_, tau)
        similarity = (z * z_).sum(1)
        u = self.update(batch.index, (g + g_).detach() / 2)
        surrogate = -similarity + tau * (g + g_) / (2 * (eps0 + u))
        value = -similarity.detach() + tau * torch.log(eps0 + u)
        return Terms(primal={"gcl_surrogate": surrogate.mean()}, log={"gcl": value.mean(), "u": u.mean()})

    def update(self, index: Tensor, estimate: Tensor) -> Tensor:
        """Move `u` at `index` (B,) towards `estimate` (B,); returns what divides the gradient, (B,)."""
        old, seen = self.u[index], self.seen[index]
        new = torch.where(seen, (1 - self.gamma) * old + self.gamma * estimate, estimate)
        self.u.index_copy_(0, index, new)
        self.seen.index_fill_(0, index, True)
        return new if self.config.u_in_grad == "new" else torch.where(seen, old, estimate)

    @torch.no_grad()
    def after_step(self, encoder: torch.nn.Module, progress: Tensor) -> None:
        if self.config.gamma_schedule == "cosine":
            phase = (progress / self.config.gamma_decay).clamp(max=1)
            height = self.config.gamma - self.config.gamma_min
            self.gamma.copy_(self.config.gamma_min + height * (1 + torch.cos(math.pi * phase)) / 2)


def _mean_over_negatives(z: Tensor, z_: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """Normalised views 2 x (B, P) -> 2 x (B,): mean of exp(z.z~/tau) over the 2(B - 1) views of other images."""
    n = len(z)
    if n < 2:
        raise UserError(
            f"sogclr contrasts an image with others, but the batch holds {n}; set a batch size of at least 2"
        )
    both = torch.cat([z, z_])
    exp = torch.exp(both @ both.T / tau)
    own = torch.eye(n, dtype=torch.bool, device=z.device).repeat(2, 2)
    g, g_ = (exp.masked_fill(own, 0).sum(1) / (2 * (n - 1))).chunk(2)
    return g, g_
