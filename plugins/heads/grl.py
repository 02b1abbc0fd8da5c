"""A discriminator of the group behind a layer that reverses its gradient.

Beutel, Chen, Zhao, Chi: Data Decisions and Theoretical Implications when Adversarially Learning Fair Representations,
FAT/ML 2017, arXiv 1707.00075; the layer is that of Ganin and Lempitsky, ICML 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from torch import Tensor
from torch.func import functional_call

from fairssl.api import Batch, GroupDiscriminator, Stream, Terms


class GradientReversal(GroupDiscriminator):
    """L = weight * mean over the annotated views of -log D(J(f))[a], with J the identity whose gradient is times -1.

    So D descends its cross-entropy and the encoder ascends it, in one optimiser with one learning rate: there is no dual
    parameter. Beutel et al.'s lambda is `weight`; here it scales D's gradient too, which Adam does not feel. D is the
    two-layer perceptron of `adversary`, where theirs is one layer, and sees f at unit length ("raw" leaves its length).
    """

    class Config(GroupDiscriminator.Config):
        aliases: ClassVar = {"lambda": "weight"}

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        log_d = self._guarded_discriminator()(self.guard(self.seen(batch), factor=-1.0))
        likelihood, log = self.judged(log_d, batch)
        return Terms(primal={"cross_entropy": -likelihood}, log=log)

    def _guarded_discriminator(self) -> Callable[[Tensor], Tensor]:
        """D with its weights guarded as well: they are not dual, so the loop does not do it."""
        weights = {name: self.guard(value) for name, value in self.discriminator.named_parameters()}
        return lambda x: functional_call(self.discriminator, weights, (x,))
