"""Random: the untrained encoder, the floor under every table."""

from fairssl.api import Method

METHOD = Method(
    summary="untrained encoder",
    paper="Saxe, Koh, Chen, Bhand, Suresh, Ng. On Random Weights and Unsupervised Feature Learning. ICML 2011.",
    objective="random",
    notes=(
        "Networks: none but the encoder, which takes no step; the linear probe is trained on the targets of all "
        "training images as for every embedding. With --encoder NAME --weights FILE it is the row of that frozen encoder. "
        "Not one of the SoFCLR paper's baselines."
    ),
)
