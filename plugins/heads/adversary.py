"""A discriminator predicts the group from the representation; the encoder makes it fail.

Qi, Hu, Lin, Yang: Provable Optimization for Adversarial Fair Self-supervised Contrastive Learning, 2024, eq. of F_fair
and Algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fairssl.api import Batch, Context, GroupDiscriminator, Stream, Terms, UserError
from fairssl.nn import normalize


class Adversary(GroupDiscriminator):
    """min over the encoder, max over D of weight * mean of log D(E(view))[a] over all views of the annotated batch.

    The encoder minimises the discriminator's log-likelihood; D, a two-layer perceptron with a softmax over the G
    groups, maximises it, without the weight. At a fair encoder D gives the groups' shares, and its cross-entropy is
    their entropy.

    The paper calls E normalised and uses one symbol for what the linear probe, the contrastive loss and D see. Its
    theory needs D and the probe to see the same vector, so D sees the probe's, f, at unit length; "raw" leaves its
    length, and "projection" is the literal reading, the normalised contrastive vector z.
    """

    class Config(GroupDiscriminator.Config):
        aliases: ClassVar = {"alpha": "weight"}
        input: Literal["normalized", "raw", "projection"] = "normalized"  # type: ignore[assignment]  # one more
        """What the discriminator sees: f at unit length, f itself, or the contrastive vector z at unit length."""
        projection_dim: int = Field(128, ge=1)
        """P of the objective; matters for input "projection" alone."""
        start: float = Field(0.0, ge=0, lt=1, json_schema_extra={"added": True})
        """Share of the training before the encoder is moved by the discriminator, which learns from the first step."""

        def unread(self) -> frozenset[str]:
            return frozenset() if self.input == "projection" else frozenset({"projection_dim"})

    started: Tensor

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        if config.start:
            self.register_buffer("started", torch.zeros(()))  # 0 before the start, then 1

    def input_dim(self, config: Config, ctx: Context) -> int:
        return config.projection_dim if config.input == "projection" else ctx.feature_dim

    def dual_parameters(self) -> Iterable[nn.Parameter]:
        return self.discriminator.parameters()

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        likelihood, accuracy = self.likelihood(self.discriminator(self.guard(self.seen(batch))), batch)
        return Terms(
            primal={"log_likelihood": likelihood * self.started if self.config.start else likelihood},
            dual={"cross_entropy": -likelihood},
            log={"accuracy": accuracy, "skipped": self.guard.count()},
        )

    @torch.no_grad()
    def after_step(self, encoder: nn.Module, progress: Tensor) -> None:
        if self.config.start:
            self.started.copy_(progress >= self.config.start)

    def seen(self, batch: Batch) -> Tensor:
        x = batch.flat_z() if self.config.input == "projection" else batch.flat_f()
        x = x[:, None] if x.ndim == 1 else x  # a classifier's logits
        wanted = self.discriminator[0].in_features
        if x.shape[1] != wanted:
            raise UserError(
                f"the adversary was built for vectors {wanted} wide, but the objective gives {x.shape[1]}; "
                "with adversary.input=projection set adversary.projection_dim to the objective's"
            )
        return x if self.config.input == "raw" else normalize(x)
