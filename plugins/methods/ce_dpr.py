"""CE+DPR: cross-entropy and a penalty on the gap in demographic parity, both on the annotated images."""

from fairssl.api import Method

METHOD = Method(
    summary="cross-entropy and a soft demographic-parity penalty, annotated images",
    paper=(
        "Cherepanova, Nanda, Goldblum, Dickerson, Goldstein. Technical Challenges for Training Fair Neural Networks. "
        "2021. arXiv 2102.06764; as the baseline of the SoFCLR paper, arXiv 2406.05686."
    ),
    objective="ce",
    heads={"dpr": {}},
    train={"min_steps": 400},
    sampler="cell_balanced",
    scored_by="own",
    aliases=("ce+dpr",),
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier. Cherepanova et al. penalise the ratio of the groups' mean probabilities; "
        "the SoFCLR paper speaks of the disparity, so the penalty is their difference. CE + weight * penalty, since the "
        "search space includes weight 1. Batches take equally many images of each target and group, which the SoFCLR "
        "paper leaves open and which balances the cross-entropy as well. Search space of the SoFCLR paper."
    ),
    search={"dpr.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1), "train.lr": (1e-3, 1e-4, 1e-5)},
)
