"""A linear classifier of the target on the representation of the annotated images: it makes any objective semi-supervised.

As the task term of Louizos, Swersky, Li, Welling, Zemel: The Variational Fair Autoencoder, ICLR 2016, eq. 9, and of Moyer,
Gao, Brekelmans, Galstyan, Ver Steeg: Invariant Representations without Adversarial Training, NeurIPS 2018.
"""

from __future__ import annotations

from collections.abc import Mapping

from fairssl.api import Batch, Context, Head, Stream, Terms
from fairssl.nn import LinearClassifier, classification


class TargetClassifier(Head):
    """weight * mean over the annotated views of -log p(y | view), with p the sigmoid of one linear layer on f.

    It is there to shape the representation; what scores after training is the method's probe.
    """

    sees = frozenset({"target"})
    streams = frozenset({"annotated"})
    n_views = 1

    def __init__(self, config: Head.Config, ctx: Context) -> None:
        super().__init__(config, ctx)
        self.classifier = LinearClassifier(ctx.feature_dim)

    def forward(self, batches: Mapping[Stream, Batch]) -> Terms:
        batch = batches["annotated"]
        return classification(self.classifier(batch.flat_f()), batch.target_of_views())
