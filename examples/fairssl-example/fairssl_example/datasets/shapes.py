"""A disc or a square, drawn on light or on dark ground; in training the two go together.

Drawn by this file, CC0. The group of some training images is not known, as with real annotations.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pydantic import Field

from fairssl.api import Card, DataFacts, Dataset, DatasetConfig, Defaults, Progress, Split, Splits, silent

GROUNDS = ("light", "dark")
STREAMS = {"train": 0, "val": 1, "test": 2}  # each split has random numbers of its own


class Shapes(Dataset):
    """Target `disc` (1: a disc, 0: a square), attribute `ground`. Place, size, colour and noise are drawn at random."""

    version = 1  # raise it when images, labels or splits change: finished runs are then made anew
    card = Card(
        title="Discs and squares",
        licence="CC0",
        source="drawn by this file",
        citation="none",
        targets=("disc",),
        attributes={"ground": GROUNDS},
        positive={"disc": "a disc"},
        defaults=Defaults(
            target="disc",
            attribute="ground",
            image_size=32,
            batch_size=64,
            epochs=5,
            encoder="small_cnn",
            annotated=0.2,
            seeds=2,
            preset="smoke",
        ),
        embedded=True,
    )

    class Config(DatasetConfig):
        n_train: int = Field(640, ge=8)
        """Training images; --set data.n_train=2048."""
        n_eval: int = Field(200, ge=8)
        """Images in validation, and as many in test, all four cells equally often."""
        correlation: float = Field(0.7, ge=0, le=1)
        """Share of training images with a disc on light or a square on dark ground."""
        unknown: float = Field(0.1, ge=0, lt=1)
        """Share of training images whose group is not known (-1)."""

    def inspect(self, root: Path | None) -> DataFacts:
        """Nothing to find. The parameters are in a run's key by themselves, so the fingerprint need not hold them."""
        return DataFacts("shapes-1", n_images=self.config.n_train + 2 * self.config.n_eval, max_image_size=None)

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """The three splits, images uint8 (N, 3, S, S). That target and attribute are in the card is checked before."""
        sizes = {"train": self.config.n_train, "val": self.config.n_eval, "test": self.config.n_eval}
        made: list[Split] = []
        for part, n in sizes.items():
            rng = np.random.default_rng((split_seed, STREAMS[part]))
            agree, unknown = (self.config.correlation, self.config.unknown) if part == "train" else (0.5, 0.0)
            made.append(_draw(part, n, agree, unknown, image_size, rng))
            progress("drawing", len(made), len(sizes))
        train, val, test = made
        return Splits(train, val, test, groups=GROUNDS)


def _draw(part: str, n: int, agree: float, unknown: float, size: int, rng: np.random.Generator) -> Split:
    number = np.arange(n)
    disc = number % 2
    together = number < round(agree * n)  # in pairs of a disc and a square, so that both grounds are as frequent
    dark = np.where(together, 1 - disc, disc)
    images = np.empty((n, 3, size, size), np.uint8)
    y, x = np.mgrid[:size, :size] + 0.5
    for image, is_disc, is_dark in zip(images, disc, dark, strict=True):
        radius = size * rng.uniform(0.28, 0.42)
        top, left = rng.uniform(radius, size - radius, 2)
        distance = np.hypot(y - top, x - left) if is_disc else np.maximum(abs(y - top), abs(x - left))
        ground, colour = (115 if is_dark else 140), rng.uniform(180, 255, (3, 1))
        picture = np.full((3, size, size), float(ground))
        picture[:, distance < radius] = colour
        image[:] = (picture + rng.normal(0, 12, picture.shape)).clip(0, 255)
    group = np.where(rng.random(n) < unknown, -1, dark)
    return Split(images, disc.astype(np.int64), group.astype(np.int64), tuple(f"{part}{i:05d}" for i in range(n)))
