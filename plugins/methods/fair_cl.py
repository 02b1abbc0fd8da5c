"""FairCL: contrast with a copy of each image that an editor has given another sensitive attribute."""

from fairssl.api import Method

METHOD = Method(
    summary="contrast with edited copies, negatives of the same group",
    paper=(
        "Zhang, Kuang, Chen, Liu, Wu, Xiao. Fairness-aware Contrastive Learning with Partially Annotated Sensitive "
        "Attributes. ICLR 2023."
    ),
    objective="fair_cl",
    contrastive=True,
    group="annotated",
    generator=True,
    notes=(
        "Networks besides the encoder: a projector, 256-128; a classifier of the group, an editor of five "
        "convolutions and its critic, all trained before the first step. Groups are known for the annotated images "
        "and guessed for the rest. No code of the authors' was found: losses and sizes of the editor are ours, and "
        "their reweighting of features is left out, since the probe standardises features. Search space: ours."
    ),
    search={
        "train.lr": (1e-3, 1e-4, 1e-5),
        "fair_cl.temperature": (0.1, 0.3, 0.5),
        "fair_cl.editor_epochs": (5, 10, 30),
    },
)
