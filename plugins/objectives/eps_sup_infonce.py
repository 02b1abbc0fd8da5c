"""Images of one class attract each other by at least a margin over those of another: supervised contrast.

Barbano, Dufumier, Tartaglione, Grangetto, Gori: Unbiased Supervised Contrastive Learning, ICLR 2023, arXiv 2211.05568,
the loss called epsilon-SupInfoNCE; after Khosla and others: Supervised Contrastive Learning, NeurIPS 2020.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import Field
from torch import Tensor

from fairssl.api import Batch, Context, Objective, PluginConfig, Stream, Terms
from fairssl.nn import mlp, normalize


class EpsSupInfoNCE(Objective):
    """L = mean over the anchors i, and over the positives p of i, of
    -log exp(s_ip) / (exp(s_ip - epsilon) + sum over the negatives n of i of exp(s_in)), with s = z.z' / tau.

    Positives are the other annotated views of the anchor's class, negatives those of another class, whatever their group.
    `epsilon` is the least margin between them; the loss is at least -epsilon. With 0 this is a supervised InfoNCE whose
    denominator holds one positive at a time, where Khosla et al.'s holds them all. An anchor without positives is left out
    of the mean and counted (`n_no_positive`); one without negatives has loss -epsilon.
    """

    sees = frozenset({"target"})
    streams = frozenset({"annotated"})

    class Config(PluginConfig):
        temperature: float = Field(0.1, gt=0)
        """Tau: similarities are divided by it."""
        epsilon: float = Field(0.25, ge=0)
        """Least margin of a positive over the negatives, in similarities divided by tau."""
        hidden_dim: int = Field(512, ge=1)
        """Width of the projector's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P, width of the contrastive vector z."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.projector = mlp(ctx.feature_dim, config.hidden_dim, config.projection_dim, batch_norm=False)

    def project(self, f: Tensor) -> Tensor:
        return self.projector(f)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        z, target = normalize(batch.flat_z()), batch.target_of_views()
        s = z @ z.T / self.config.temperature
        same = target[:, None] == target[None, :]
        positive = same & ~torch.eye(len(z), dtype=torch.bool, device=z.device)
        lonely = same.all(1)  # without negatives
        negatives = s.masked_fill(same, -torch.inf).masked_fill(lonely[:, None], 0).logsumexp(1)
        negatives = torch.where(lonely, -1e9, negatives)
        cost = torch.logaddexp(s - self.config.epsilon, negatives[:, None].expand_as(s)) - s
        n_positive = positive.sum(1)
        counted = n_positive > 0
        loss = torch.where(positive, cost, 0.0).sum(1) / n_positive.clamp_min(1)
        return Terms(
            primal={"eps_sup_infonce": loss.sum() / counted.sum().clamp_min(1)},
            log={"n_no_positive": (~counted).sum().float()},
        )
