"""Max-Ent: a supervised encoder that leaves a discriminator of the group undecided."""

from fairssl.api import Method

METHOD = Method(
    summary="supervised encoder and a discriminator that it makes undecided",
    paper=(
        "Roy, Boddeti. Mitigating Information Leakage in Image Representations: A Maximum Entropy Approach. CVPR 2019; as "
        "the baseline of the SoFCLR paper, arXiv 2406.05686."
    ),
    objective="ce",
    heads={"max_entropy": {"weight": 0.1}},
    train={"min_steps": 400},
    probe_params={"epochs": 100, "decay_epoch": 50, "min_steps": 0, "lr": 1e-2},
    scored_by="annotated_head",
    aliases=("max-ent",),
    adversarial=True,
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier and a discriminator, which sees the representation at unit length; after "
        "training the encoder is frozen and a fresh linear head is fitted on the annotated images in 100 epochs, at the "
        "authors' rate of 1e-2. CE + weight * sum D log D, where the authors' code has (1 - alpha) CE + alpha * sum D "
        "log D: the search space includes weight 1. The default is 0.1, since at 1 the game swings on a hundred images. "
        "One step of the discriminator per step. Search space of the SoFCLR paper."
    ),
    search={"max_entropy.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1), "train.lr": (1e-3, 1e-4, 1e-5)},
)
