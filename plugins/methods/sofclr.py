"""SoFCLR: the global contrastive loss against a discriminator of the group on a small annotated part."""

from fairssl.api import Method

METHOD = Method(
    summary="SogCLR and an adversary that sees the group of the annotated part",
    paper=(
        "Qi, Hu, Lin, Yang. Provable Optimization for Adversarial Fair Self-supervised Contrastive Learning. "
        "2024. arXiv 2406.05686."
    ),
    objective="sogclr",
    heads={"adversary": {}},
    adversarial=True,
    contrastive=True,
    group="annotated",
    theory=True,
    notes=(
        "The discriminator sees the representation that the linear probe sees, at unit length; the literal reading, the "
        "contrastive vector, is adversary.input=projection. The gradient divides by the u after its update, as in "
        "Algorithm 1; the paper's eq. of m has the one before (sogclr.u_in_grad=old). Both gradients are taken at the "
        "old parameters and both are Adam steps, the discriminator's one per step. Search space of the paper; the "
        "temperatures are ours. On colored_digits, where the colour goes with the digit, the adversary takes the digit along: "
        "accuracy and ED of two seeds are 92.6 and 9.3 for sogclr, 90.9 and 8.8 with adversary.weight=0.1, 84.4 and 20.3 with "
        "0.3, 72.8 and 38.0 with 1. The projection as its input (75.8, 26.5), the raw representation (70.1, 29.3), a longer "
        "training (train.min_steps=400: 81.1, 19.8) and a start without the adversary (adversary.start=0.3: 76.4, 31.8; 0.5: "
        "77.3, 31.5; 0.7: 83.1, 13.8; 0.9: 66.9, 45.3) do not mend it; a small weight does."
    ),
    search={
        "adversary.weight": (0.1, 0.3, 0.5, 0.7, 0.9, 1),
        "train.lr": (1e-3, 1e-4, 1e-5),
        "sogclr.temperature": (0.1, 0.3, 0.5),
    },
)
