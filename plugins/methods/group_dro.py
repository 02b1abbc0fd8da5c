"""Group DRO: a classifier that lowers the loss of the worst cell of target and group."""

from fairssl.api import Method

METHOD = Method(
    summary="classifier that minimises the loss of the worst target x group cell",
    paper=(
        "Sagawa, Koh, Hashimoto, Liang. Distributionally Robust Neural Networks for Group Shifts: On the Importance "
        "of Regularization for Worst-Case Generalization. ICLR 2020."
    ),
    objective="group_dro",
    train={"min_steps": 400},
    sampler="cell_balanced",
    scored_by="own",
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged. The authors know target and group of every "
        "image: --annotated 1.0. With less, only the annotated images are trained on. Batches hold equally many of "
        "each cell, as theirs do; the strong weight decay that they find necessary is in the search space. At least "
        "400 steps. Search space: ours."
    ),
    search={
        "train.lr": (1e-3, 1e-4, 1e-5),
        "train.weight_decay": (1e-6, 1e-4, 1e-2, 0.1),
        "group_dro.rate": (1e-3, 1e-2, 0.1),
    },
)
