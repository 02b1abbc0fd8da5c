"""A discriminator predicts the group from the representation; the encoder makes it fail.

Qi, Hu, Lin, Yang: Provable Optimization for Adversarial Fair Self-supervised Contrastive Learning, 2024, eq. of F_fair
and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, Head, HeadConfig, Stream, Terms, UserError
from fairssl.nn import GradientGuard, log_likelihood, mlp, normalize


class Adversary(Head):
    """min over the encoder, max over D of weight * mean of log D(E(view))[a] over all views of the annotated batch.

    The encoder minimises the discriminator's log-likelihood; D, a two-layer perceptron with a softmax over the G
    groups, maximises it, without the weight. At a fair encoder D gives the groups' shares, and its cross-entropy is
    their entropy.

    The paper calls E normalised and uses one symbol for what the linear probe, the contrastive loss and D see. Its
    theory needs D and the probe to see the same vector, so D sees the probe's, f, at unit length; "raw" leaves its
    length, and "projection" is the literal reading, the normalised contrastive vector z.
    """

    sees = frozenset({"group"})
    streams = frozenset({"annotated"})
    n_views = 1  # as many as the objective draws

    class Config(HeadConfig):
        aliases: ClassVar = {"alpha": "weight"}
        input: Literal["normalized", "raw", "projection"] = "normalized"
        """What the discriminator sees: f at unit length, f itself, or the contrastive vector z at unit length."""
        hidden_dim: int = Field(512, ge=1)
        """Width of the discriminator's hidden layer."""
        projection_dim: int = Field(128, ge=1)
        """P of the objective; matters for input "projection" alone."""

        def unread(self) -> frozenset[str]:
            return frozenset() if self.input == "projection" else frozenset({"projection_dim"})

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.input_dim = config.projection_dim if config.input == "projection" else ctx.feature_dim
        self.discriminator = mlp(self.input_dim, config.hidden_dim, ctx.n_groups, batch_norm=False)
        self.guard = GradientGuard()

    def dual_parameters(self) -> Iterable[nn.Parameter]:
        return self.discriminator.parameters()

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        log_d = self.discriminator(self.guard(self._input(batch))).log_softmax(1)
        likelihood, accuracy = log_likelihood(log_d, batch.group_of_views())
        return Terms(
            primal={"log_likelihood": likelihood},
            dual={"cross_entropy": -likelihood},
            log={"accuracy": accuracy, "skipped": self.guard.count()},
        )

    def _input(self, batch: Batch) -> Tensor:
        """What D sees of the V views, (V B, input_dim)."""
        x = batch.flat_z() if self.config.input == "projection" else batch.flat_f()
        x = x[:, None] if x.ndim == 1 else x  # a classifier's logits
        if x.shape[1] != self.input_dim:
            raise UserError(
                f"the adversary was built for vectors {self.input_dim} wide, but the objective gives {x.shape[1]}; "
                "with adversary.input=projection set adversary.projection_dim to the objective's"
            )
        return x if self.config.input == "raw" else normalize(x)
