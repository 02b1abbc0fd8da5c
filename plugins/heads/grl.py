"""A discriminator of the group, or several, behind a layer that reverses the gradient.

Beutel, Chen, Zhao, Chi: Data Decisions and Theoretical Implications when Adversarially Learning Fair Representations,
FAT/ML 2017, arXiv 1707.00075; the layer is that of Ganin and Lempitsky, ICML 2015; several as in Elazar, Goldberg:
Adversarial Removal of Demographic Attributes from Text Data, EMNLP 2018.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from fairssl.api import Batch, Context, GroupDiscriminator, Stream, Terms
from fairssl.nn import Discriminator


class GradientReversal(GroupDiscriminator):
    """L = weight * mean over the annotated views of -log D(J(f))[a], with J the identity whose gradient is times -1.

    So D descends its cross-entropy and the encoder ascends it, in one optimiser with one learning rate: there is no dual
    parameter. Beutel et al.'s lambda is `weight`; here it scales D's gradient too, which Adam does not feel. D is the
    two-layer perceptron of `adversary`, where theirs is one layer, and sees f at unit length ("raw" leaves its length).

    With several discriminators, which differ in their first weights alone, L is the sum over them and `accuracy` their
    mean: what hides the group from one must hide it from all.
    """

    class Config(GroupDiscriminator.Config):
        aliases: ClassVar = {"lambda": "weight"}
        n_discriminators: int = Field(1, ge=1, json_schema_extra={"added": True})
        """How many discriminators, which differ in their first weights; the loss is the sum over them."""

    def __init__(self, config: Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        width = self.input_dim(config, ctx)
        more = range(config.n_discriminators - 1)
        self.others = nn.ModuleList(Discriminator(width, config.hidden_dim, ctx.n_groups) for _ in more)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        x = self.guard(self.seen(batch), factor=-1.0)
        found = [self.likelihood(self._guarded(one, x), batch) for one in (self.discriminator, *self.others)]
        likelihood, accuracy = (torch.stack(values) for values in zip(*found, strict=True))
        log = {"accuracy": accuracy.mean(), "skipped": self.guard.count()}
        return Terms(primal={"cross_entropy": -likelihood.sum()}, log=log)

    def _guarded(self, discriminator: nn.Module, x: Tensor) -> Tensor:
        """D(x) with D's weights guarded as well: they are not dual, so the loop does not do it."""
        weights = {name: self.guard(value) for name, value in discriminator.named_parameters()}
        return functional_call(discriminator, weights, (x,))
