"""DINO: self-distillation of large and small crops with a momentum teacher."""

from fairssl.api import Method

METHOD = Method(
    summary="self-distillation of large and small crops, momentum teacher",
    paper=(
        "Caron, Touvron, Misra, Jegou, Mairal, Bojanowski, Joulin. Emerging Properties in Self-Supervised Vision "
        "Transformers. ICCV 2021. arXiv 2104.14294."
    ),
    objective="dino",
    train={"crop_min": 0.4},
    contrastive=False,
    notes=(
        "A small form. Networks besides the encoder: a momentum teacher of everything, a projector, 512-512-256, and 1,024 "
        "prototypes where the authors have 65,536. Views: two of at least two fifths of the image and four small crops "
        "half as wide, where theirs are eight of 96 beside 224 pixels, so that a step costs about twice a contrastive one. "
        "The teacher's temperature stays. An encoder made for one image size takes no small crops: dino.n_small=0. "
        "Search space: ours."
    ),
    search={"train.lr": (1e-3, 1e-4, 1e-5), "dino.teacher_temperature": (0.02, 0.04, 0.07)},
)
