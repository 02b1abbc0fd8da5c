"""GRL: a classifier that sees every target, and gradient reversal for a group seen on some images."""

from fairssl.api import Method

METHOD = Method(
    summary="classifier of all targets, gradient reversal on the annotated group",
    paper=(
        "Beutel, Chen, Zhao, Chi. Data Decisions and Theoretical Implications when Adversarially Learning Fair "
        "Representations. FAT/ML 2017. arXiv 1707.00075."
    ),
    objective="erm",
    heads={"grl": {}},
    train={"recipe": "randaugment", "schedule": "cosine", "min_steps": 400},
    sampler="group_balanced",
    scored_by="own",
    adversarial=True,
    target="all",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier and a discriminator of two layers, where the authors' has one, which sees "
        "the representation at unit length. Their finding that the adversary's sample should be balanced over the "
        "groups is followed: annotated batches hold equally many of each. The training loop is erm's. Search space: "
        "ours, that of the SoFCLR paper for its adversary."
    ),
    search={"grl.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1), "train.lr": (1e-3, 1e-4, 1e-5)},
)
