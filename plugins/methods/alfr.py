"""ALFR: a classifier, a decoder and an adversary share one representation."""

from fairssl.api import Method

METHOD = Method(
    summary="classifier, reconstruction and an adversary of the group in one",
    paper="Edwards, Storkey. Censoring Representations with an Adversary. ICLR 2016. arXiv 1511.05897.",
    objective="ce",
    heads={"adversary": {}, "reconstruction": {}},
    train={"min_steps": 400},
    scored_by="own",
    adversarial=True,
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged, a discriminator of two layers, and a decoder "
        "that mirrors the encoder. The authors know target and group of every image, and say that a part may lack the "
        "group: here classifier and adversary see the annotated images and the reconstruction, which needs no label, "
        "all. Their weights alpha, beta, gamma are reconstruction.weight, adversary.weight and 1; they step encoder "
        "and adversary in turn, here both step at once. The adversary sees the representation at unit length, theirs "
        "as it is (adversary.input=raw). An epoch is a pass over the annotated images, and at least 400 steps are "
        "taken. Search space: ours, the SoFCLR paper's for its adversary."
    ),
    search={
        "adversary.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1),
        "reconstruction.weight": (0.1, 1, 10),
        "train.lr": (1e-3, 1e-4, 1e-5),
    },
)
