"""A second network learns what is easy, and the first one what that one fails at; no group labels.

Nam, Cha, Ahn, Lee, Shin: Learning from Failure: Training Debiased Classifier from Biased Classifier, NeurIPS 2020,
Algorithm 1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Classifier, Context, PluginConfig, Stream, Terms
from fairssl.nn import LinearClassifier, sharded


class LearningFromFailure(Classifier):
    """L = mean over the views of W(x) CE(x, y) + GCE_B(x, y), W = CE_B / (CE_B + CE), with B the biased network.

    B, an encoder with a linear classifier of its own, is trained by the generalised cross-entropy (1 - p(y)^q) / q, which
    dwells on what is learnt already: on images that a shortcut solves. W is near 1 for an image that B fails at. In W both
    cross-entropies are running means per image (`momentum` of the old value; the first visit sets them), each divided by
    the largest one of the image's class, as in the authors' code. W is a constant to the gradient.

    B begins as a copy of the encoder, where the authors' two networks begin apart.
    """

    sees = frozenset({"target", "views"})  # the biased network encodes them too

    class Config(PluginConfig):
        q: float = Field(0.7, gt=0, le=1)
        """Of the biased classifier's generalised cross-entropy; the larger, the more it dwells on what is easy."""
        momentum: float = Field(0.7, ge=0, lt=1)
        """Of the running mean of each image's losses."""

    running: Tensor
    target_of: Tensor

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.biased_encoder = copy.deepcopy(ctx.encoder).to(memory_format=torch.channels_last)
        self.biased_classifier = LinearClassifier(ctx.feature_dim)
        self.n_targets = ctx.n_targets
        self.register_buffer("running", torch.zeros(2, ctx.n_train))  # cross-entropy of B, and of the first network
        self.register_buffer("target_of", torch.full((ctx.n_train,), -1))  # of images that were visited

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["all"]
        target = batch.target_of_views()
        logit = batch.flat_z()
        pixels = batch.flat_views().contiguous(memory_format=torch.channels_last)
        biased = self.biased_classifier(sharded(self.biased_encoder, pixels))
        loss, loss_of_biased = (
            F.binary_cross_entropy_with_logits(x, target.to(x.dtype), reduction="none") for x in (logit, biased)
        )
        weight = self.weights(batch, loss_of_biased.detach(), loss.detach()).repeat(len(batch.f))
        generalised = -torch.expm1(-self.config.q * loss_of_biased) / self.config.q
        accuracy, accuracy_of_biased = (((x.detach() > 0) == (target == 1)).float().mean() for x in (logit, biased))
        return Terms(
            primal={"weighted_cross_entropy": (weight * loss).mean(), "generalised": generalised.mean()},
            log={"accuracy": accuracy, "accuracy_of_biased": accuracy_of_biased, "weight": weight.mean()},
        )

    @torch.no_grad()
    def weights(self, batch: Batch, loss_of_biased: Tensor, loss: Tensor) -> Tensor:
        """Take the views' losses (V B,) into the running ones; W of each image, (B,)."""
        at, target, n_views = batch.index, batch.target_of_images(), len(batch.f)
        new = torch.stack([loss_of_biased, loss]).view(2, n_views, len(at)).mean(1).to(self.running.dtype)
        seen = self.target_of[at] >= 0
        old = self.running[:, at]
        mixed = torch.where(seen, self.config.momentum * old + (1 - self.config.momentum) * new, new)
        self.running.index_copy_(1, at, mixed)
        self.target_of.index_copy_(0, at, target)
        classes = torch.arange(self.n_targets, device=at.device)
        of_class = self.target_of[None, :] == classes[:, None]  # (K, N)
        largest = torch.where(of_class[None], self.running[:, None, :], 0.0).amax(2)  # (2, K)
        biased, own = mixed / largest[:, target].clamp_min(1e-8)
        return (biased / (biased + own).clamp_min(1e-8)).to(loss.dtype)
