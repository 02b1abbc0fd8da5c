"""No training: the encoder as it was drawn. The row that tells what the architecture alone gives.

Saxe, Koh, Chen, Bhand, Suresh, Ng: On Random Weights and Unsupervised Feature Learning, ICML 2011.
"""

from __future__ import annotations

from fairssl.api import Objective


class Random(Objective):
    """No loss and no step. The representation is the backbone's feature h, batch norm with its initial statistics."""

    trains = False
