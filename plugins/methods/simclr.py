"""SimCLR: the contrastive baseline that looks at no label."""

from fairssl.api import Method

METHOD = Method(
    summary="contrastive baseline, NT-Xent over the batch",
    paper=(
        "Chen, Kornblith, Norouzi, Hinton. A Simple Framework for Contrastive Learning of Visual Representations. "
        "ICML 2020."
    ),
    objective="simclr",
    contrastive=True,
    notes=(
        "Mean over the 2B views without a factor tau, as published; simclr.loss_scale_tau=true gives SogCLR's scale. "
        "Temperature 0.3, which the SoFCLR paper leaves open. Search space of the SoFCLR paper; the temperatures are "
        "ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "simclr.temperature": (0.1, 0.3, 0.5)},
)
