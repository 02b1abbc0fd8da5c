"""ERM: a tuned classifier that sees every target, without regard to fairness."""

from fairssl.api import Method

METHOD = Method(
    summary="cross-entropy on all images with all targets, RandAugment",
    paper=(
        "Vapnik. Principles of Risk Minimization for Learning Theory. NeurIPS 1991; the augmentation of Cubuk, Zoph, "
        "Shlens, Le. RandAugment: Practical Automated Data Augmentation with a Reduced Search Space. NeurIPS 2020."
    ),
    objective="erm",
    train={"recipe": "randaugment", "schedule": "cosine", "min_steps": 400},
    scored_by="own",
    target="all",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged. The bound on accuracy for methods that see fewer "
        "targets, tuned as far as they are: random resized crops, flips and RandAugment (two operations of magnitude 9 "
        "of 30) and a learning rate that falls along a cosine. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "train.rand_magnitude": (5, 9, 15), "train.weight_decay": (1e-6, 1e-4)},
)
