"""A classifier of the annotated images that lowers the loss of the worst group: group DRO.

Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group Shifts, ICLR 2020, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from fairssl.api import Batch, Classifier, Context, PluginConfig, Stream, Terms
from fairssl.nn import WorstGroups


class GroupDRO(Classifier):
    """L = sum over the cells k of target x group of q_k * mean cross-entropy of the annotated views in k, at least 0.

    After each batch q_k <- q_k exp(rate * loss of k), made to sum to 1. A cell that the batch lacks has loss 0
    (`empty_groups` counts them). The head of this name adds the same to a classifier's plain loss.
    """

    sees = frozenset({"target", "group"})
    streams = frozenset({"annotated"})

    class Config(PluginConfig):
        rate: float = Field(0.01, gt=0)
        """How fast a cell's weight follows its loss; eta_q in the paper."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_targets = ctx.n_targets
        self.worst = WorstGroups(ctx.n_groups * ctx.n_targets)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        logit, target = batch.flat_z(), batch.target_of_views()
        value, log = self.worst.of_cells(logit, target, batch.group_of_views(), self.n_targets, self.config.rate)
        accuracy = ((logit.detach() > 0) == (target == 1)).float().mean()
        return Terms(primal={"group_dro": value}, log={"accuracy": accuracy, **log})
