"""VICReg: two views agree while every feature varies and no two say the same."""

from fairssl.api import Method

METHOD = Method(
    summary="variance, invariance and covariance, without negatives",
    paper=(
        "Bardes, Ponce, LeCun. VICReg: Variance-Invariance-Covariance Regularization for Self-Supervised Learning. "
        "ICLR 2022."
    ),
    objective="vicreg",
    notes=(
        "Networks besides the encoder: an expander, 512-512-512 where the authors' is 8192-8192-8192. Adam instead of "
        "LARS. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "vicreg.covariance": (0.1, 1, 10)},
)
