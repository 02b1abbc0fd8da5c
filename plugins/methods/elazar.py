"""Several adversaries: a classifier that hides the group from three discriminators at once."""

from fairssl.api import Method

METHOD = Method(
    summary="classifier against several discriminators behind gradient reversal",
    paper=(
        "Elazar, Goldberg. Adversarial Removal of Demographic Attributes from Text Data. EMNLP 2018. arXiv 1808.06640."
    ),
    objective="ce",
    heads={"grl": {"n_discriminators": 3}},
    train={"min_steps": 400},
    scored_by="own",
    adversarial=True,
    target="annotated",
    group="annotated",
    notes=(
        "Extra networks: a linear classifier, whose scores are judged, and three discriminators of two layers that "
        "differ in their first weights. A method for text, whose encoder is an LSTM and whose discriminator one "
        "perceptron; its authors try two, three and five of them, larger ones, and larger weights. They know target "
        "and group of every text: --annotated 1.0. What they are cited for is that a classifier trained afterwards "
        "finds the attribute again where these discriminators are at chance: the column Leak, and for a perceptron "
        "Leak (MLP), of every table. At least 400 steps. Search space: theirs for weight and number, ours for the "
        "learning rate."
    ),
    search={"grl.weight": (0.5, 1, 1.5, 2, 3, 5), "grl.n_discriminators": (1, 2, 3, 5), "train.lr": (1e-3, 1e-4, 1e-5)},
)
