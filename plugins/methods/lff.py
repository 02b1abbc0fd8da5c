"""LfF: a classifier that dwells on what a second, biased one fails at; no group labels."""

from fairssl.api import Method

METHOD = Method(
    summary="classifier that learns what a biased one fails at, no groups",
    paper=(
        "Nam, Cha, Ahn, Lee, Shin. Learning from Failure: Training Debiased Classifier from Biased Classifier. "
        "NeurIPS 2020."
    ),
    objective="lff",
    train={"recipe": "randaugment", "schedule": "cosine", "min_steps": 400},
    scored_by="own",
    target="all",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged, and a second encoder with a linear classifier "
        "of its own. It sees the target of every image and no group. The training loop is that of erm. Search space: "
        "ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "lff.q": (0.5, 0.7, 0.9)},
)
