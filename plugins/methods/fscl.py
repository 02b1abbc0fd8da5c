"""FSCL: supervised contrast in which negatives share the anchor's group."""

from fairssl.api import Method

METHOD = Method(
    summary="supervised contrast with negatives of the anchor's group",
    paper="Park, Lee, Lee, Hwang, Kim, Byun. Fair Contrastive Learning for Facial Attribute Classification. CVPR 2022.",
    objective="fscl",
    contrastive=True,
    target="annotated",
    group="annotated",
    notes=(
        "Networks besides the encoder: a projector, 512-128. The authors know target and group of every image: "
        "--annotated 1.0. With less, only the annotated images are trained on, while the probe has all targets; an "
        "epoch is a pass over them and train.min_steps sets a least number of steps. As in the authors' code the "
        "positives are not in the denominator; an anchor without positives is left out where theirs gives 0/0, and the "
        "factor tau/0.07 is dropped. Theirs: ResNet18 with a 3x3 stem (encoder timm, stem=small), SGD 0.1 with cosine "
        "decay, batch 128, 100 epochs, tau 0.1; here the common recipe with Adam. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "fscl.temperature": (0.07, 0.1, 0.3)},
)
