"""CE+EQL: cross-entropy and a penalty on the gap between the groups' losses, both on the annotated images."""

from fairssl.api import Method

METHOD = Method(
    summary="cross-entropy and an equalised-loss penalty, annotated images",
    paper=(
        "Donini, Oneto, Ben-David, Shawe-Taylor, Pontil. Empirical Risk Minimization Under Fairness Constraints. NeurIPS "
        "2018; Cherepanova et al. 2021, arXiv 2102.06764; as the baseline of the SoFCLR paper, arXiv 2406.05686."
    ),
    objective="ce",
    heads={"eql": {}},
    train={"min_steps": 400},
    sampler="cell_balanced",
    scored_by="own",
    aliases=("ce+eql",),
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier. The loss of both classes, as Cherepanova et al. have it and the name "
        "says; Donini et al. equalise that of the positive class (eql.eql_on=positive). CE + weight * penalty, since "
        "the search space includes weight 1. Batches take equally many images of each target and group, which the "
        "SoFCLR paper leaves open and which balances the cross-entropy as well. Search space of the SoFCLR paper."
    ),
    search={"eql.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1), "train.lr": (1e-3, 1e-4, 1e-5)},
)
