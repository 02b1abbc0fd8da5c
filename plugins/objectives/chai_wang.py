"""Contrast in which each image weighs as much as its gradient helps the worst-classified annotated images; no group labels.

Chai, Wang: Self-Supervised Fair Representation Learning without Demographics, NeurIPS 2022.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import LinearClassifier, mlp, nt_xent_of_views


class WeightedContrast(Objective):
    """Lower level: sum over the images i of w_i l_i / B, with l_i the NT-Xent of i's two views. Upper level: the weights w
    and a linear classifier of the target on f lower the mean of the `top_share` largest cross-entropies of the annotated
    views, which stand for the authors' small labelled validation set.

    As in the paper the weights are set anew in each step, from how the gradient of l_i lies to that of the upper loss U:
    a_i = <grad l_i, grad U>, w_i = B max(a_i, 0) / sum of max(a_j, 0), for a step along grad l_i lowers U by a_i. Where no
    a_i is above 0 all weights are 1, and `unweighted` counts that. Gradients are taken at a linear layer of D x D that
    closes the encoder (the representation), where the authors' hold all of it: there all a_i are one directional derivative
    of (l_1, ..., l_B), which costs one more backward pass through projector and loss.

    The classifier is moved by the mean of the largest losses; the encoder by the weighted contrast alone.
    """

    sees = frozenset({"target"})
    streams = frozenset({"all", "annotated"})
    labelled = frozenset({"annotated"})

    class Config(PluginConfig):
        temperature: float = Field(0.3, gt=0)
        """Tau: similarities are divided by it."""
        top_share: float = Field(0.5, gt=0, le=1)
        """Share of the annotated views, those with the largest loss, that the upper level looks at."""
        hidden_dim: int = Field(256, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.last = nn.Linear(ctx.feature_dim, ctx.feature_dim)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim)
        self.classifier = LinearClassifier(ctx.feature_dim)

    def represent(self, h: Tensor) -> Tensor:
        return self.last(h)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch, judged = batches["all"], batches["annotated"]
        logit, target = self.classifier(judged.flat_f().detach()), judged.target_of_views()
        loss = F.binary_cross_entropy_with_logits(logit, target.to(logit.dtype), reduction="none")
        largest, at = loss.topk(math.ceil(self.config.top_share * len(loss)))

        first, second = nt_xent_of_views(batch.z, self.config.temperature).chunk(2)
        contrast = (first + second) / 2  # l, (B,)
        # dU/df of the k worst, sigmoid minus target times the classifier's weight over k, zero for the others.
        slope = torch.zeros_like(loss).index_copy(0, at, (torch.sigmoid(logit) - target)[at] / len(at)).detach()
        towards = self._moved_by(judged.flat_h().detach(), slope, batch.flat_h().detach())
        alignment = _directional(contrast, batch.flat_f(), towards)
        helpful = alignment.clamp_min(0)
        total = helpful.sum()
        weight = torch.where(total > 0, len(helpful) * helpful / total.clamp_min(1e-30), 1.0)
        return Terms(
            primal={"weighted_nt_xent": (weight * contrast).mean(), "top_cross_entropy": largest.mean()},
            log={
                "nt_xent": contrast.mean(),
                "share_of_images": (weight > 0).float().mean(),
                "unweighted": (total <= 0).float(),
            },
        )

    def _moved_by(self, h: Tensor, slope: Tensor, of: Tensor) -> Tensor:
        """How a step of the last layer along dU/d(weight, bias) moves the representations of `of` (N, D), (N, F): with
        dU/df_n = slope_n c, c the classifier's weight, it is c times the sum over n of slope_n (h_n . h + 1)."""
        c = self.classifier.weight.detach()[0]
        return ((of @ h.T + 1) @ slope)[:, None] * c


def _directional(values: Tensor, of: Tensor, towards: Tensor) -> Tensor:
    """The derivative of (B,) values as `of` moves along `towards`, both (N, F); (B,), a constant. By two backward passes:
    of the values with unknown weights, and of the result by these weights."""
    weights = torch.ones_like(values).requires_grad_()
    (slope,) = torch.autograd.grad(values, of, weights, create_graph=True)
    return torch.autograd.grad((slope * towards).sum(), weights, retain_graph=True)[0].detach()
