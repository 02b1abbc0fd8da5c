"""The image shall be drawn again from its representation, so that the representation keeps what the image shows.

As in Edwards, Storkey: Censoring Representations with an Adversary, ICLR 2016, arXiv 1511.05897, eq. 9.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairssl.api import Batch, Context, Head, Stream, Terms
from fairssl.nn import ImageDecoder


class Reconstruction(Head):
    """weight * mean squared difference of the views of all images, in the normalised scale of about -1..1, and what a
    decoder draws from f; at least 0. It needs no label.

    The decoder mirrors a ResNet (`fairssl.nn.ImageDecoder`). What is drawn is the augmented view: one recipe for every
    method.
    """

    sees = frozenset({"views"})
    n_views = 1

    def __init__(self, config: Head.Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.decoder = ImageDecoder(ctx.feature_dim, ctx.feature_dim, ctx.image_shape)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["all"]
        squared = (batch.flat_views() - self.decoder.decoded(batch.flat_f())).square().mean()
        return Terms(primal={"squared_error": squared})
