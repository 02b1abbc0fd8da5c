"""SimSiam: two views predict each other, with one side held still; no negatives, no momentum encoder."""

from fairssl.api import Method

METHOD = Method(
    summary="prediction of the other view, stop-gradient, no momentum encoder",
    paper=("Chen, He. Exploring Simple Siamese Representation Learning. CVPR 2021. arXiv 2011.10566."),
    objective="simsiam",
    contrastive=False,
    notes=(
        "Networks besides the encoder: a projector, 512-512-512 with batch norm after each layer, and a predictor, 128-512; "
        "the authors' are four times as wide. Adam at 1e-3 instead of SGD with momentum and a cosine "
        "(train.optimizer=sgd, train.schedule=cosine). Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "simsiam.bottleneck_dim": (64, 128, 256)},
)
