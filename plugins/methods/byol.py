"""BYOL: the baseline without negatives; the SoFCLR paper's tables call it Boyl."""

from fairssl.api import Method

METHOD = Method(
    summary="predicts a moving average of itself, without negatives",
    paper=(
        "Grill, Strub, Altché, Tallec, Richemond, Buchatskaya, Doersch, Avila Pires, Guo, Azar, Piot, "
        "Kavukcuoglu, Munos, Valko. Bootstrap Your Own Latent: A New Approach to Self-Supervised Learning. "
        "NeurIPS 2020."
    ),
    objective="byol",
    notes=(
        "Adam and the SoFCLR paper's widths (projector 256-128, predictor 256-128) instead of LARS, 4096 and 256. "
        "tau_base 0.99, the authors' value for 100 epochs. Batch statistics are taken over both views together. Search "
        "space of the SoFCLR paper."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5)},
)
