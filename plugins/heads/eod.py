"""Equalised odds as a penalty: each class gets the same mean probability in every group.

The soft form of the equalised-odds gap, as in Padala and Gujar: FNNC: Achieving Fairness through Neural Networks, IJCAI
2020; a baseline of Cherepanova, Nanda, Goldblum, Dickerson, Goldstein: Technical Challenges for Training Fair Neural
Networks, 2021, arXiv 2102.06764.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from fairssl.api import Batch, Context, Head, Stream, Terms
from fairssl.nn import group_gap


class EqualizedOdds(Head):
    """R = sum over y of |mean p among (y, group 0) - mean p among (y, group 1)|, in 0..2, p the probability of y = 1.

    The soft false-positive gap plus the soft true-positive gap of the annotated batch, all views. With more groups, the
    mean over adjacent pairs. A pair with an empty cell adds 0, and `empty_cells` counts the cells.
    """

    sees = frozenset({"target", "group"})
    streams = frozenset({"annotated"})
    n_views = 1
    needs = "logits"

    def __init__(self, config: Head.Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.n_groups = ctx.n_groups

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        p = torch.sigmoid(batch.flat_z())
        target, group = batch.target_of_views(), batch.group_of_views()
        false_positive, empty0 = group_gap(p, group, self.n_groups, target == 0)
        true_positive, empty1 = group_gap(p, group, self.n_groups, target == 1)
        return Terms(primal={"eod": false_positive + true_positive}, log={"empty_cells": empty0 + empty1})
