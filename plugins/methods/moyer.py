"""Moyer et al.: a variational autoencoder whose code tells nothing of the group, without an adversary."""

from fairssl.api import Method

METHOD = Method(
    summary="autoencoder whose decoder is told the group, a bound on what the code tells",
    paper=(
        "Moyer, Gao, Brekelmans, Galstyan, Ver Steeg. Invariant Representations without Adversarial Training. NeurIPS "
        "2018. arXiv 1805.09458."
    ),
    objective="moyer",
    train={"min_steps": 400},
    group="annotated",
    notes=(
        "Networks besides the encoder: two linear layers to the code's mean and log-variance, and a decoder that "
        "mirrors the encoder and is told the group. The unsupervised form. The authors know the group of every image: "
        "--annotated 1.0. With less, only the annotated images are trained on, while the probe has all. Code width, "
        "sigma and the augmented view as in vfae; lambda 1 weighs the bound like the autoencoder's loss. Search "
        "space: ours."
    ),
    search={"moyer.invariance": (0.1, 1, 10), "moyer.sigma": (0.05, 0.1, 0.3), "train.lr": (1e-3, 1e-4, 1e-5)},
)
