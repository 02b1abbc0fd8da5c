"""A discriminator of the group behind a layer that reverses its gradient.

Beutel, Chen, Zhao, Chi: Data Decisions and Theoretical Implications when Adversarially Learning Fair Representations,
FAT/ML 2017, arXiv 1707.00075; the layer is that of Ganin and Lempitsky, ICML 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms
from fairssl.nn import GradientGuard, log_likelihood, mlp, normalize


class GradientReversal(Head):
    """L = weight * mean over the annotated views of -log D(J(f))[a], with J the identity whose gradient is times -1.

    So D descends its cross-entropy and the encoder ascends it, in one optimiser with one learning rate: there is no dual
    parameter. Beutel et al.'s lambda is `weight`; here it scales D's gradient too, which Adam does not feel. D is the
    two-layer perceptron of `adversary`, where theirs is one layer, and sees f at unit length ("raw" leaves its length).
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1

    class Config(HeadConfig):
        aliases: ClassVar = {"lambda": "weight"}
        input: Literal["normalized", "raw"] = "normalized"
        """What the discriminator sees: f at unit length, or f itself."""
        hidden_dim: int = Field(512, ge=1)
        """Width of the discriminator's hidden layer."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.discriminator = mlp(ctx.feature_dim, config.hidden_dim, ctx.n_groups, batch_norm=False)
        self.guard = GradientGuard()

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        f = batch.flat_f()
        x = self.guard(f if self.config.input == "raw" else normalize(f), factor=-1.0)
        likelihood, accuracy = log_likelihood(self._discriminator()(x).log_softmax(1), batch.group_of_views())
        return Terms(primal={"cross_entropy": -likelihood}, log={"accuracy": accuracy, "skipped": self.guard.count()})

    def _discriminator(self) -> Callable[[Tensor], Tensor]:
        """D with its weights guarded as well: they are not dual, so the loop does not do it."""
        weights = {name: self.guard(value) for name, value in self.discriminator.named_parameters()}
        return lambda x: functional_call(self.discriminator, weights, (x,))
