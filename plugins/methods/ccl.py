"""CCL: conditional contrastive learning alone, on the images whose group is known."""

from fairssl.api import Method

METHOD = Method(
    summary="contrast within each group, on the annotated images alone",
    paper=(
        "Ma, Tsai, Liang, Zhao, Zhang, Salakhutdinov, Morency. Conditional Contrastive Learning for Improving "
        "Fairness in Self-Supervised Learning. 2021. arXiv 2106.02866."
    ),
    objective="ccl",
    contrastive=True,
    group="annotated",
    notes=(
        "Networks besides the encoder: a projector, 256-128. The authors know the group of every image: --annotated "
        "1.0. With less, only the annotated images are trained on, while the probe has all. Each batch is mixed and "
        "each anchor contrasted with its own group, where the authors draw batches of one group. An epoch is a pass "
        "over the annotated images; train.min_steps sets a least number of steps. Temperature 0.3 as for SimCLR. Search "
        "space of the SoFCLR paper for the other contrastive methods; the temperatures are ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "ccl.temperature": (0.1, 0.3, 0.5)},
)
