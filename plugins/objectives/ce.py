"""Cross-entropy of a linear classifier on the annotated images, whose targets are seen: the supervised baseline.

As in the comparisons of Qi, Hu, Lin, Yang: Provable Optimization for Adversarial Fair Self-supervised Contrastive
Learning, 2024, which trains its supervised methods on the annotated 5 % alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fairssl.api import Batch, Context, Objective, Stream, Terms
from fairssl.nn import LinearClassifier, classification


class CrossEntropy(Objective):
    """L = mean over the views of -log p(y | view), with p the sigmoid of one linear layer on the representation.

    One view per image, drawn like those of every other method: a batch costs half of a contrastive one, and as much as
    the usual supervised batch of that many images. A head that needs two gets two, and all are averaged.
    """

    sees = frozenset({"target"})
    streams = frozenset({"annotated"})
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
        return classification(batches["annotated"])
