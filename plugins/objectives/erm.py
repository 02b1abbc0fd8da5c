"""Empirical risk minimisation: cross-entropy of a linear classifier on every training image, all targets seen."""

from __future__ import annotations

from fairssl.api import Classifier


class ERM(Classifier):
    """L = mean over the views of the batch of -log p(y | view), p the sigmoid of a linear layer on the representation.

    `ce` with the targets of all images instead of the annotated ones'. One view per image; a head that needs two gets
    two, and all are averaged.
    """

    streams = frozenset({"all"})
