"""VAE: the plain variational autoencoder, probed on the mean of its code."""

from fairssl.api import Method

METHOD = Method(
    summary="variational autoencoder, no label and no regard to fairness",
    paper="Kingma, Welling. Auto-Encoding Variational Bayes. ICLR 2014.",
    objective="vae",
    notes="What vfae is without its MMD term. Search space: ours.",
    search={"vae.sigma": (0.05, 0.1, 0.3), "train.lr": (1e-3, 1e-4, 1e-5)},
)
