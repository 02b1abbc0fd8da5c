"""MoCo v3: contrast of predictions with a momentum encoder's views of the batch."""

from fairssl.api import Method

METHOD = Method(
    summary="contrast with a momentum encoder, the batch as negatives",
    paper=(
        "Chen, Xie, He. An Empirical Study of Training Self-Supervised Vision Transformers. ICCV 2021. arXiv 2104.02057."
    ),
    objective="moco_v3",
    contrastive=True,
    notes=(
        "Networks besides the encoder: a momentum encoder, a projector, 256-128, with a momentum copy, and a predictor, "
        "256-128; the authors' are 4096-256. The patch embedding is not frozen. AdamW and a warm-up, which they use for "
        "vision transformers, are train.optimizer=adamw and train.warmup=0.1. Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "moco_v3.temperature": (0.1, 0.2, 0.5, 1)},
)
