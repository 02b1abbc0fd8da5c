"""Equalised loss as a penalty: the same mean cross-entropy in every group.

Donini, Oneto, Ben-David, Shawe-Taylor, Pontil: Empirical Risk Minimization Under Fairness Constraints, NeurIPS 2018, and
Cherepanova, Nanda, Goldblum, Dickerson, Goldstein: Technical Challenges for Training Fair Neural Networks, 2021, arXiv
2102.06764.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import group_gap


class EqualizedLoss(Head):
    """R = |mean cross-entropy in group 0 - mean cross-entropy in group 1|, at least 0.

    Over the annotated batch, all views; with more groups, the mean over adjacent pairs. A pair with an empty group adds
    0, and `empty_cells` counts the groups. The loss over both classes, as Cherepanova et al. have it; Donini et al.
    equalise the loss of the positive class alone, `eql_on` "positive".
    """

    sees = frozenset({"target", "group"})
    streams = frozenset({"annotated"})
    n_views = 1
    needs = "logits"

    class Config(HeadConfig):
        eql_on: Literal["all", "positive"] = "all"
        """Whose loss is made equal: every image's, or that of the images with y = 1."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        logit = batch.flat_z()
        target, group = batch.target_of_views(), batch.group_of_views()
        loss = F.binary_cross_entropy_with_logits(logit, target.to(logit.dtype), reduction="none")
        among = target == 1 if self.config.eql_on == "positive" else None
        gap, empty = group_gap(loss, group, self.n_groups, among)
        return Terms(primal={"eql": gap}, log={"empty_cells": empty})
