"""DFR: ERM with its last layer refitted on annotated images that are balanced over target and group."""

from fairssl.api import Method

METHOD = Method(
    summary="erm, last layer refitted on a balanced annotated set",
    paper=(
        "Kirichenko, Izmailov, Wilson. Last Layer Re-Training is Sufficient for Robustness to Spurious Correlations. ICLR "
        "2023."
    ),
    objective="erm",
    train={"recipe": "randaugment", "schedule": "cosine", "min_steps": 400},
    probe_params={"kind": "lbfgs"},
    scored_by="balanced_head",
    target="all",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier; shares the pretraining of erm. The head is a logistic regression on "
        "standardised features of equally many annotated training images of each target and group (the authors' DFR- "
        "Tr), with an L2 penalty of 1 where they tune an L1 penalty and average ten balanced draws. Search space: ours."
    ),
    search={
        "train.lr": (1e-3, 1e-4, 1e-5),
        "train.rand_magnitude": (5, 9, 15),
        "train.weight_decay": (1e-6, 1e-4),
        "probe.l2": (0.01, 0.1, 1, 10, 100),
    },
)
