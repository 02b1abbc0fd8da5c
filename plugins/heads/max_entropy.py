"""A discriminator predicts the group from the representation; the encoder makes it undecided.

Roy and Boddeti: Mitigating Information Leakage in Image Representations: A Maximum Entropy Approach, CVPR 2019, eqs. of
MaxEnt-ARL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from torch import nn

from fairssl.api import Batch, GroupDiscriminator, Stream, Terms


class MaxEntropy(GroupDiscriminator):
    """min over the encoder of weight * mean over the views of sum_k D_k log D_k, in -log G..0; D maximises its likelihood.

    Not a zero-sum game: the encoder seeks the uniform distribution, whatever the groups' shares, where the adversary's
    equilibrium is their shares. D is a two-layer perceptron with a softmax over the G groups, trained on the annotated
    batch, and sees the vector that the probe sees, at unit length ("raw" leaves its length), like `adversary`.
    """

    class Config(GroupDiscriminator.Config):
        aliases: ClassVar = {"alpha": "weight"}

    def dual_parameters(self) -> Iterable[nn.Parameter]:
        return self.discriminator.parameters()

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        log_d = self.discriminator(self.guard(self.seen(batch)))
        likelihood, accuracy = self.likelihood(log_d, batch)
        bounded = log_d.clamp(min=-100)  # exp(-100) is 0 in float32, and 0 times infinity would be NaN
        negative_entropy = (bounded.exp() * bounded).sum(1).mean()
        return Terms(
            primal={"negative_entropy": negative_entropy},
            dual={"cross_entropy": -likelihood},
            log={"accuracy": accuracy, "skipped": self.guard.count()},
        )
