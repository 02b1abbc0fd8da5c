"""Supervised contrast with a margin, without regard to fairness: fair_kl without its regulariser."""

from fairssl.api import Method

METHOD = Method(
    summary="supervised contrast with a margin, no regard to fairness",
    paper=(
        "Barbano, Dufumier, Tartaglione, Grangetto, Gori. Unbiased Supervised Contrastive Learning. ICLR 2023. arXiv "
        "2211.05568."
    ),
    objective="eps_sup_infonce",
    train={"min_steps": 400},
    contrastive=True,
    target="annotated",
    notes=(
        "Networks besides the encoder: a projector, 512-128. Only the annotated images are trained on, while the "
        "probe has all targets. At least 400 steps. Search space: ours."
    ),
    search={
        "train.lr": (1e-3, 1e-4, 1e-5),
        "eps_sup_infonce.epsilon": (0, 0.25, 0.5),
        "eps_sup_infonce.temperature": (0.07, 0.1, 0.3),
    },
)
