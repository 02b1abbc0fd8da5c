"""CE+EOD: cross-entropy and a penalty on the gap in equalised odds, both on the annotated images."""

from fairssl.api import Method

METHOD = Method(
    summary="cross-entropy and a soft equalised-odds penalty, annotated images",
    paper=(
        "Cherepanova, Nanda, Goldblum, Dickerson, Goldstein. Technical Challenges for Training Fair Neural Networks. "
        "2021. arXiv 2102.06764; as the baseline of the SoFCLR paper, arXiv 2406.05686."
    ),
    objective="ce",
    heads={"eod": {}},
    train={"min_steps": 400},
    sampler="cell_balanced",
    scored_by="own",
    aliases=("ce+eod",),
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier. The penalty is the sum over both classes of the gap in mean probability. "
        "CE + weight * penalty, since the search space includes weight 1. Batches take equally many images of each "
        "target and group, so that no cell is empty, which the SoFCLR paper leaves open and which balances the cross- "
        "entropy as well. Search space of the SoFCLR paper."
    ),
    search={"eod.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1), "train.lr": (1e-3, 1e-4, 1e-5)},
)
