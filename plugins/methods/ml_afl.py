"""ML-AFL: a supervised encoder against a discriminator of the group whose likelihood it lowers."""

from fairssl.api import Method

METHOD = Method(
    summary="supervised encoder and an adversary that it makes unlikely to be right",
    paper=(
        "Xie, Dai, Du, Hovy, Neubig. Controllable Invariance through Adversarial Feature Learning. NeurIPS 2017; as the "
        "baseline of the SoFCLR paper, arXiv 2406.05686, whose text also calls it Max-AFL."
    ),
    objective="ce",
    heads={"adversary": {}},
    train={"min_steps": 400},
    probe_params={"epochs": 100, "decay_epoch": 50, "min_steps": 0, "lr": 1e-2},
    scored_by="annotated_head",
    aliases=("ml-afl", "max-afl"),
    adversarial=True,
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier and the discriminator of SoFCLR, which sees the representation at unit "
        "length; after training the encoder is frozen and a fresh linear head is fitted on the annotated images in 100 "
        "epochs, at Roy and Boddeti's rate of 1e-2. CE + weight * log-likelihood, where their code has (1 - alpha) CE + "
        "alpha * log-likelihood: the search space includes weight 1. One step of the discriminator per step. Search "
        "space of the SoFCLR paper."
    ),
    search={"adversary.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1), "train.lr": (1e-3, 1e-4, 1e-5)},
)
