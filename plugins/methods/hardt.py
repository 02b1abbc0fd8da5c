"""Hardt et al.: the classifier of erm, whose decisions are made with a threshold for each group."""

from fairssl.api import Method

METHOD = Method(
    summary="erm, a threshold for each group chosen on the annotated part",
    paper="Hardt, Price, Srebro. Equality of Opportunity in Supervised Learning. NeurIPS 2016. arXiv 1610.02413.",
    objective="erm",
    train={"recipe": "randaugment", "schedule": "cosine", "min_steps": 400},
    scored_by="own",
    probe_params={"thresholds": "odds"},
    target="all",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged; shares the pretraining of erm. The thresholds "
        "equalise true and false positive rates on the annotated training images, where the authors take the joint "
        "distribution as known; between two thresholds a group's images are decided at random, seeded. It is the only "
        "row that reads the group of every test image. DP, ED, EO are of its decisions; the other metrics are of scores "
        "moved to the right side of 0.5. With probe.thresholds any method has such a row. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "probe.thresholds": ("odds", "opportunity", "parity")},
)
