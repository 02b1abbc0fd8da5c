"""Resampling: cross-entropy on batches with equally many images of each target and group."""

from fairssl.api import Method

METHOD = Method(
    summary="cross-entropy on batches balanced over target and group",
    paper=(
        "Idrissi, Arjovsky, Pezeshki, Lopez-Paz. Simple data balancing achieves competitive worst-group-accuracy. "
        "CLeaR 2022. arXiv 2110.14503."
    ),
    objective="ce",
    train={"min_steps": 400},
    sampler="cell_balanced",
    scored_by="own",
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged. Their RWG, by sampling, on the annotated "
        "images; they know target and group of every image: --annotated 1.0. At least 400 steps. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "train.weight_decay": (1e-6, 1e-4, 1e-2)},
)
