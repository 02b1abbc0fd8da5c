"""The worst group's loss weighs most: group DRO as a penalty beside a classifier.

Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group Shifts, ICLR 2020, Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import WorstGroups


class GroupDRO(Head):
    """weight * sum over the cells k of target x group of q_k * mean cross-entropy of the annotated views in k, at least 0.

    After each batch q_k <- q_k exp(rate * loss of k), made to sum to 1, so that q leans towards the cells that do worst; a
    cell that the batch lacks has loss 0 (`empty_groups` counts them). `fairssl show objective group_dro` is the same
    without the plain loss of a classifier beside it.
    """

    sees = frozenset({"target", "group"})
    streams = frozenset({"annotated"})
    n_views = 1
    needs = "logits"

    class Config(HeadConfig):
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
        return Terms(primal={"group_dro": value}, log=log)
