"""VFAE, semi-supervised: the autoencoder with MMD, and a classifier on the annotated images."""

from fairssl.api import Method

METHOD = Method(
    summary="vfae and a classifier of the target on the annotated part",
    paper="Louizos, Swersky, Li, Welling, Zemel. The Variational Fair Autoencoder. ICLR 2016. arXiv 1511.00830.",
    objective="vae",
    heads={"mmd": {"weight": 10.0}, "classifier": {}},
    target="annotated",
    group="annotated",
    notes=(
        "As vfae, with a linear classifier on the code's mean for the annotated images, whose targets are seen; the "
        "probe has all targets as for every unsupervised encoder. The original has a second code below the first, "
        "which depends on the target, and for images without one takes the mean over both classes; here there is one "
        "code, and images without a target give the autoencoder's loss alone. Search space: ours."
    ),
    search={"mmd.weight": (1, 10, 100), "classifier.weight": (0.1, 1, 10), "train.lr": (1e-3, 1e-4, 1e-5)},
)
