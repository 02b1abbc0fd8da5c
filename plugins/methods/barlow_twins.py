"""Barlow Twins: features of two views agree one by one, and no two say the same."""

from fairssl.api import Method

METHOD = Method(
    summary="cross-correlation of two views' features is made the identity",
    paper=(
        "Zbontar, Jing, Misra, LeCun, Deny. Barlow Twins: Self-Supervised Learning via Redundancy Reduction. ICML 2021. "
        "arXiv 2103.03230."
    ),
    objective="barlow_twins",
    contrastive=False,
    notes=(
        "Networks besides the encoder: a projector, 512-512-512 where the authors' is 8192-8192-8192. Adam instead of LARS "
        "(train.optimizer=lars). Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "barlow_twins.redundancy": (5e-4, 5e-3, 5e-2)},
)
