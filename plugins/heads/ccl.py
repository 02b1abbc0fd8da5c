"""Contrast only among images of one group, so that the group does not help to tell images apart.

Ma, Tsai, Liang, Zhao, Zhang, Salakhutdinov, Morency: Conditional Contrastive Learning for Improving Fairness in
Self-Supervised Learning, 2021, arXiv 2106.02866.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from fairssl.api import Batch, Head, HeadConfig, Stream, Terms
from fairssl.nn import nt_xent


class CCL(Head):
    """L = mean over the views of the annotated batch of NT-Xent whose denominator holds the anchor's own group only.

    The authors draw a group, then a batch from that group alone. Here the batch is mixed and each anchor keeps its
    positive and the views of other images of its group, as in the `FSCL*` variant of Park et al. 2022: it needs no
    other sampler than the adversary does. An anchor alone in its group has loss 0 and stays in the mean. The
    contrastive vector is the objective's own, and so should be the temperature.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    needs = "embedding"  # one logit has no direction

    class Config(HeadConfig):
        aliases: ClassVar = {"lambda": "weight"}
        temperature: float = Field(0.3, gt=0)
        """Tau: similarities are divided by it."""

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        return Terms(primal={"ccl": nt_xent(batch.z, self.config.temperature, batch.group_of_images())})
