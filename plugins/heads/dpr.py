"""Demographic parity as a penalty: the same mean probability in every group.

A baseline of Cherepanova, Nanda, Goldblum, Dickerson, Goldstein: Technical Challenges for Training Fair Neural Networks,
2021, arXiv 2102.06764, in the difference form.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fairssl.api import Batch, Context, Head, Stream, Terms
from fairssl.nn import group_gap


class DemographicParity(Head):
    """R = |mean p in group 0 - mean p in group 1|, in 0..1, p the probability of y = 1.

    Over the annotated batch, all views; with more groups, the mean over adjacent pairs. A pair with an empty group adds
    0, and `empty_cells` counts the groups. Cherepanova et al. penalise the ratio of the two means; the SoFCLR paper
    speaks of the disparity, so this is their difference.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1
    needs = "logits"

    def __init__(self, config: Head.Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        p = torch.sigmoid(batch.flat_z())
        gap, empty = group_gap(p, batch.group_of_views(), self.n_groups)
        return Terms(primal={"dpr": gap}, log={"empty_cells": empty})
