"""Chai and Wang: weighted contrast, for a classifier that does well where it does worst; no group labels."""

from fairssl.api import Method

METHOD = Method(
    summary="contrast weighted by what helps the worst-classified annotated images",
    paper="Chai, Wang. Self-Supervised Fair Representation Learning without Demographics. NeurIPS 2022.",
    objective="chai_wang",
    contrastive=True,
    target="annotated",
    notes=(
        "Networks besides the encoder: a linear layer that closes it, a projector, 256-128, and a linear classifier. "
        "The annotated images are the authors' small labelled validation set: their targets are seen, their groups "
        "are not. The probe has all targets as for every self-supervised encoder. Their gradients are those of the "
        "whole encoder, here of its last layer. Search space: ours."
    ),
    search={
        "train.lr": (1e-3, 1e-4, 1e-5),
        "chai_wang.top_share": (0.1, 0.3, 0.5, 1),
        "chai_wang.temperature": (0.1, 0.3, 0.5),
    },
)
