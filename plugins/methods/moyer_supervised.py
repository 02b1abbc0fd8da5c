"""Moyer et al., supervised: the same code, which has to tell the target as well."""

from fairssl.api import Method

METHOD = Method(
    summary="moyer and a classifier of the target on the code",
    paper=(
        "Moyer, Gao, Brekelmans, Galstyan, Ver Steeg. Invariant Representations without Adversarial Training. NeurIPS "
        "2018. arXiv 1805.09458."
    ),
    objective="moyer",
    heads={"classifier": {}},
    train={"min_steps": 400},
    scored_by="annotated_head",
    aliases=("moyer+classifier",),
    target="annotated",
    group="annotated",
    notes=(
        "As moyer, with a linear classifier on the code's mean; after training a fresh linear head is fitted on the "
        "annotated images. The authors' supervised form is a variational information bottleneck with the bound added; "
        "it too has the decoder, since the bound needs one. Search space: ours."
    ),
    search={"moyer.invariance": (0.1, 1, 10), "classifier.weight": (0.1, 1, 10), "train.lr": (1e-3, 1e-4, 1e-5)},
)
