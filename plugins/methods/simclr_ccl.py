"""SimCLR+CCL: contrast among all images, and within the groups of a small annotated part."""

from fairssl.api import Method

METHOD = Method(
    summary="SimCLR and contrast within each group of the annotated part",
    paper=(
        "Ma, Tsai, Liang, Zhao, Zhang, Salakhutdinov, Morency. Conditional Contrastive Learning for Improving "
        "Fairness in Self-Supervised Learning. 2021. arXiv 2106.02866; as the baseline of the SoFCLR paper, arXiv "
        "2406.05686."
    ),
    objective="simclr",
    heads={"ccl": {}},
    aliases=("simclr+ccl",),
    contrastive=True,
    group="annotated",
    notes=(
        "CCL's authors use the group of every image and batches of one group; here the annotated batch is mixed and "
        "each anchor is contrasted with its own group. Set simclr.temperature and ccl.temperature together. Search "
        "space of the SoFCLR paper."
    ),
    search={"ccl.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1), "train.lr": (1e-3, 1e-4, 1e-5)},
)
