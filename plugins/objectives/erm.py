"""Empirical risk minimisation: cross-entropy of a linear classifier on every training image, all targets seen."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fairssl.api import Batch, Context, Objective, Stream, Terms
from fairssl.nn import LinearClassifier, classification


class ERM(Objective):
    """L = mean over the views of -log p(y | view), with p the sigmoid of one linear layer on the representation.

    `ce` with the targets of all images instead of the annotated ones'. One view per image; a head that needs two gets
    two, and all are averaged.
    """

    sees = frozenset({"target"})
    n_views = 1
    gives = "logits"

    def __init__(self, config: Objective.Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.classifier = LinearClassifier(ctx.feature_dim)

    def project(self, f: Tensor) -> Tensor:
        """(B, F) -> (B,) logits of y = 1."""
        return self.classifier(f)

    def scores(self, f: Tensor) -> Tensor:
        return torch.sigmoid(self.classifier(f).double())

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        return classification(batches["all"])
