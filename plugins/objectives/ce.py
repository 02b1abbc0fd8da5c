"""Cross-entropy of a linear classifier on the annotated images, whose targets are seen: the supervised baseline.

As in the comparisons of Qi, Hu, Lin, Yang: Provable Optimization for Adversarial Fair Self-supervised Contrastive
Learning, 2024, which trains its supervised methods on the annotated 5 % alone.
"""

from __future__ import annotations

from fairssl.api import Classifier


class CrossEntropy(Classifier):
    """L = mean over the views of the annotated batch of -log p(y | view), p the sigmoid of a linear layer on f.

    One view per image, drawn like those of every other method; a head that needs two gets two, and all are averaged.
    """

    streams = frozenset({"annotated"})
