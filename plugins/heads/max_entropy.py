"""A discriminator predicts the group from the representation; the encoder makes it undecided.

Roy and Boddeti: Mitigating Information Leakage in Image Representations: A Maximum Entropy Approach, CVPR 2019, eqs. of
MaxEnt-ARL.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import nn

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import GradientGuard, log_likelihood, mlp, normalize


class MaxEntropy(Head):
    """min over the encoder of weight * mean over the views of sum_k D_k log D_k, in -log G..0; D maximises its likelihood.

    Not a zero-sum game: the encoder seeks the uniform distribution, whatever the groups' shares, where the adversary's
    equilibrium is their shares. D is a two-layer perceptron with a softmax over the G groups, trained on the annotated
    batch, and sees the vector that the probe sees, at unit length ("raw" leaves its length), like `adversary`.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1

    class Config(HeadConfig):
        aliases: ClassVar = {"alpha": "weight"}
        input: Literal["normalized", "raw"] = "normalized"
        """What the discriminator sees: f at unit length, or f itself."""
        hidden_dim: int = Field(512, ge=1)
        """Width of the discriminator's hidden layer."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.discriminator = mlp(ctx.feature_dim, config.hidden_dim, ctx.n_groups, batch_norm=False)
        self.guard = GradientGuard()

    def dual_parameters(self) -> Iterable[nn.Parameter]:
        return self.discriminator.parameters()

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        f = batch.flat_f()
        x = self.guard(f if self.config.input == "raw" else normalize(f))
        log_d = self.discriminator(x).log_softmax(1)
        likelihood, accuracy = log_likelihood(log_d, batch.group_of_views())
        bounded = log_d.clamp(min=-100)  # exp(-100) is 0 in float32, and 0 times infinity would be NaN
        negative_entropy = (bounded.exp() * bounded).sum(1).mean()
        return Terms(
            primal={"negative_entropy": negative_entropy},
            dual={"cross_entropy": -likelihood},
            log={"accuracy": accuracy, "skipped": self.guard.count()},
        )
