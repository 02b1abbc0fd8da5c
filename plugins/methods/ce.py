"""CE: a classifier of the annotated images, without regard to fairness; the reference that the paper selects by."""

from fairssl.api import Method

METHOD = Method(
    summary="cross-entropy on the annotated images, no regard to fairness",
    paper=(
        "The supervised baseline of Qi, Hu, Lin, Yang. Provable Optimization for Adversarial Fair Self-supervised "
        "Contrastive Learning. 2024. arXiv 2406.05686."
    ),
    objective="ce",
    train={"min_steps": 400},
    scored_by="own",
    target="annotated",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged. Trained on the annotated images alone, with "
        "their targets; --annotated 1.0 gives it all. One view per image and the augmentation of every other method. At "
        "least 400 steps, since an epoch of few images has few. Search space of the SoFCLR paper."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5)},
)
