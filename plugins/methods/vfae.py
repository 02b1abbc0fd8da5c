"""VFAE: a variational autoencoder whose codes have one distribution in all groups; the unsupervised variant."""

from fairssl.api import Method

METHOD = Method(
    summary="variational autoencoder, MMD between the groups of the annotated part",
    paper="Louizos, Swersky, Li, Welling, Zemel. The Variational Fair Autoencoder. ICLR 2016. arXiv 1511.00830.",
    objective="vae",
    heads={"mmd": {"weight": 10.0}},
    group="annotated",
    notes=(
        "Networks besides the encoder: two linear layers to mu and the log-variance, and a decoder that mirrors the "
        "encoder. The unsupervised variant of the SoFCLR paper's appendix: every image gives the autoencoder's loss, "
        "annotated ones also MMD^2 between the groups' mu; the probe sees mu. The original gives the group to encoder "
        "and decoder, which takes it for every image; here neither has it. The original's second code, which depends on "
        "the target, is left out, and its 500 random features are replaced by the exact kernel. It reconstructs the "
        "augmented view: one recipe for every method. Code width, reconstruction and weight are left open by the SoFCLR "
        "paper; ours: 128, squared error of normalised pixels with sigma 0.1, all per pixel, MMD times 10, as the "
        "original weighs it heavily too. Search space: ours."
    ),
    search={"mmd.weight": (1, 10, 100), "vae.sigma": (0.05, 0.1, 0.3), "train.lr": (1e-3, 1e-4, 1e-5)},
)
