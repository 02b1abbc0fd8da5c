"""FairKL: supervised contrast in which distances are distributed alike within groups and across them."""

from fairssl.api import Method

METHOD = Method(
    summary="supervised contrast, distances alike within and across groups",
    paper=(
        "Barbano, Dufumier, Tartaglione, Grangetto, Gori. Unbiased Supervised Contrastive Learning. ICLR 2023. arXiv "
        "2211.05568."
    ),
    objective="eps_sup_infonce",
    heads={"fair_kl": {}},
    train={"min_steps": 400},
    contrastive=True,
    target="annotated",
    group="annotated",
    notes=(
        "Networks besides the encoder: a projector, 512-128. The authors know target and group of every image: "
        "--annotated 1.0. With less, only the annotated images are trained on, while the probe has all targets. "
        "Distances of all anchors are pooled where their equation takes each anchor's. At least 400 steps. Search "
        "space: ours."
    ),
    search={
        "train.lr": (1e-3, 1e-4, 1e-5),
        "fair_kl.weight": (0.1, 1, 10),
        "eps_sup_infonce.epsilon": (0, 0.25, 0.5),
        "eps_sup_infonce.temperature": (0.07, 0.1, 0.3),
    },
)
