"""DualFair: contrast with counterfactuals drawn by a cyclic autoencoder, and self-distillation; our form for images."""

from fairssl.api import Method

METHOD = Method(
    summary="contrast with counterfactuals and self-distillation, annotated images",
    paper=(
        "Han, Lee, Wu, Kim, Wu, Wang, Xie, Cha. DualFair: Fair Representation Learning at Both Group and Individual "
        "Levels via Contrastive Self-supervision. WWW 2023. arXiv 2303.08403."
    ),
    objective="dual_fair",
    train={"min_steps": 400},
    contrastive=True,
    group="annotated",
    generator=True,
    notes=(
        "A method for tables, which the SoFCLR paper does not say; this form for images is ours. Networks besides the "
        "encoder: a projector, 256-128, a predictor, 256-128, and an autoencoder with the group beside its code, "
        "trained before the first step. The authors know the group of every row: --annotated 1.0. With less, only the "
        "annotated images are trained on, while the probe has all. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "dual_fair.group": (0.1, 1, 10), "dual_fair.individual": (0.1, 1, 10)},
)
