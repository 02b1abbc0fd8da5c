"""VFAE: a variational autoencoder whose codes have one distribution in all groups; the unsupervised variant."""

from fairssl.api import Method

METHOD = Method(
    summary="variational autoencoder, MMD between the groups of the annotated part",
    paper="Louizos, Swersky, Li, Welling, Zemel. The Variational Fair Autoencoder. ICLR 2016. arXiv 1511.00830.",
    objective="vae",
    heads={"mmd": {}},
    group="annotated",
    notes=(
        "Networks besides the encoder: two linear layers to mu and the log-variance, and a decoder that mirrors the "
        "encoder. The unsupervised variant of the SoFCLR paper's appendix: every image gives the autoencoder's loss, "
        "annotated ones also MMD^2 between the groups' mu; the probe sees mu. The original gives the group to encoder "
        "and decoder, which needs it for every image; here neither has it. It uses 500 random features for the kernel "
        "and a second code that depends on the target; neither is here. It reconstructs the augmented view, one recipe for every "
        "method. Code width, reconstruction and weight are left open by the papers; ours: 128, squared error of "
        "normalised pixels with sigma 0.1, all per pixel. Search space, ours: mmd.weight 0.1, 0.3, 0.5, 0.7, 0.9, 1; vae.sigma "
        "0.05, 0.1, 0.3; learning rate 1e-3, 1e-4, 1e-5."
    ),
)
