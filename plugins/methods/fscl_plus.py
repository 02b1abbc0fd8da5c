"""FSCL+: FSCL in which every cell of class and group counts the same."""

from fairssl.api import Method

METHOD = Method(
    summary="FSCL with every cell of class and group counting the same",
    paper="Park, Lee, Lee, Hwang, Kim, Byun. Fair Contrastive Learning for Facial Attribute Classification. CVPR 2022.",
    objective="fscl",
    params={"group_norm": True},
    aliases=("fscl+",),
    contrastive=True,
    target="annotated",
    group="annotated",
    notes=(
        "As fscl, with the authors' group-wise normalisation: an anchor is weighed by the inverse size of its cell in the "
        "batch, and each positive is divided by how many positives it has itself in its own group. Their constant n/8, n views "
        "in the batch, becomes n/(K G^2) for K classes and G groups. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "fscl.temperature": (0.07, 0.1, 0.3)},
)
