"""Images of one class attract each other; the others repel only within the anchor's group.

Park, Lee, Lee, Hwang, Kim, Byun: Fair Contrastive Learning for Facial Attribute Classification, CVPR 2022.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp, normalize


class FSCL(Objective):
    """L = mean over the anchors i of -mean over p in P(i) of log exp(z_i.z_p/tau) / (sum over n in N(i) of exp(z_i.z_n/tau)).

    P(i) holds the other views of the anchor's class, in whatever group; N(i) the views of another class in the anchor's
    own group, so that a negative differs from the anchor in its class alone. The positives are not in the denominator,
    and the loss may be negative. An anchor without positives is left out of the mean and counted (`n_no_positive`); one
    without negatives is drawn to its positives by the mean of (1 - z_i.z_p)/tau, as in the authors' code, and counted
    (`n_no_negative`).

    `group_norm` is FSCL+: each positive p is divided by how many positives p itself has in its own group, as the authors'
    code does, and the anchor is weighed by n / (K G^2 n_i), with n views in the batch of which n_i are in the anchor's cell
    of class and group. Every cell then counts the same among the positives and among the anchors, and with large equal
    cells the loss tends to FSCL's; for two classes and two groups the constant is the authors' n / 8. A positive that is
    alone in its cell is left out.

    The projector is the authors', D-512-128 without batch norm; their constant factor tau / 0.07 is left out.
    """

    version = 2  # 2: FSCL+ divides each positive by the count of the positive's own cell, not of the anchor's
    sees = frozenset({"target", "group"})
    streams = frozenset({"annotated"})

    class Config(PluginConfig):
        temperature: float = Field(0.1, gt=0)
        """Tau: similarities are divided by it."""
        group_norm: bool = False
        """FSCL+: every cell of class and group counts the same."""
        hidden_dim: int = Field(512, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_cells, self.n_groups = ctx.n_targets * ctx.n_groups, ctx.n_groups
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim, batch_norm=False)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        target, group = batch.target_of_views(), batch.group_of_views()
        z = normalize(batch.flat_z())
        n = len(z)
        same_class = target[:, None] == target[None, :]
        same_group = group[:, None] == group[None, :]
        positive = same_class & ~torch.eye(n, dtype=torch.bool, device=z.device)
        negative = same_group & ~same_class
        similarity = z @ z.T / self.config.temperature
        lonely = ~negative.any(1)
        # One that has no negative gets its own similarity, 1 / tau, for a denominator without a gradient.
        denominator = similarity.masked_fill(~negative, -torch.inf).masked_fill(lonely[:, None], 0).logsumexp(1)
        denominator = torch.where(lonely, 1 / self.config.temperature, denominator)
        n_own = (positive & same_group).sum(1)
        if self.config.group_norm:
            positive = positive & (n_own > 0)[None, :]
        cost = torch.where(positive, denominator[:, None] - similarity, 0.0)
        counted = positive.any(1)
        if self.config.group_norm:
            loss = (cost / n_own.clamp_min(1)[None, :]).sum(1) * n / (self.n_cells * self.n_groups * (n_own + 1))
        else:
            loss = cost.sum(1) / positive.sum(1).clamp_min(1)
        return Terms(
            primal={"fscl": loss.sum() / counted.sum().clamp_min(1)},
            log={"n_no_positive": (~counted).sum().float(), "n_no_negative": lonely.sum().float()},
        )
