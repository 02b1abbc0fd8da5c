"""SogCLR: the global contrastive loss, SoFCLR without its adversary."""

from fairssl.api import Method

METHOD = Method(
    summary="global contrastive loss with one running estimate per image",
    paper=(
        "Yuan, Wu, Qiu, Du, Zhang, Zhou, Yang. Provable Stochastic Optimization for Global Contrastive Learning: "
        "Small Batch Does Not Harm Performance. ICML 2022."
    ),
    objective="sogclr",
    contrastive=True,
    theory=True,
    notes=(
        "Written as the SoFCLR paper writes it: tau in front, one u per image averaged over both views, eps0 added to "
        "the mean over the negatives; half the gradient of the authors' code. Each image's first visit sets its u. "
        "Temperature 0.3 and gamma 0.9, which the SoFCLR paper leaves open. Search space of the SoFCLR paper; the "
        "temperatures are ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "sogclr.temperature": (0.1, 0.3, 0.5)},
)
