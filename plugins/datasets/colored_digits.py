"""Coloured digits: scikit-learn's 1,797 handwritten digits (8 x 8, from UCI), drawn in red or in green ink.

The idea is that of Colored MNIST (Arjovsky et al., "Invariant Risk Minimization", 2019): the target is whether the
digit is 5 or more, the group is the colour, and in the training split the two agree more often than not. The hue varies
from image to image, so that augmentation blurs the colour without wiping it out.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image
from pydantic import Field

from fairssl.api import Card, DataFacts, Dataset, DatasetConfig, Defaults, Progress, Split, Splits, UserError, silent

CONTENT = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"  # SHA-256 of the digits and their labels
N_IMAGES = 1797
SIDE = 8  # pixels of a stored digit
GROUPS = ("red", "green")
HUE = (0.0, 100.0)  # degrees


class ColoredDigits(Dataset):
    """Handwritten digits in two colours; target `large` (5 or more), attribute `color`."""

    version = 1
    card = Card(
        title="Coloured digits (scikit-learn's handwritten digits)",
        licence="CC BY 4.0 (the digits)",
        source="https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
        citation='Alpaydin, Kaynak: "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998',
        targets=("large",),
        attributes={"color": GROUPS},
        defaults=Defaults(
            target="large",
            attribute="color",
            image_size=32,
            batch_size=64,
            epochs=16,
            encoder="small_cnn",
            annotated=0.1,
            seeds=3,
            preset="smoke",
        ),
        positive={"large": "digit 5 or more"},
        embedded=True,
        train_depends_on=frozenset({"target", "attribute"}),
    )

    class Config(DatasetConfig):
        n_per_cell: int = Field(100, ge=1, le=200)
        """Images per target x colour in validation, and as many in test."""
        correlation: float = Field(0.65, ge=0.0, le=1.0)
        """Share of training images with green for large digits and red for small ones."""
        hue_sd: float = Field(25.0, ge=0.0)
        """Standard deviation about the colour's hue, in degrees."""

    def inspect(self, root: Path | None) -> DataFacts:
        """Nothing to find: the content is pinned and checked when it is loaded. `root` is not looked at."""
        return DataFacts(fingerprint=CONTENT, n_images=N_IMAGES, max_image_size=None)

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """Draw the three splits, images uint8 (N, 3, S, S); each digit is in one split, once, in one colour.

        Validation and test hold `n_per_cell` of each target x colour; training has the rest, and in each of its classes
        the share `correlation` has the class's colour.
        """
        ink, large = _digits()
        rng = np.random.Generator(np.random.PCG64(split_seed))
        look = rng.standard_normal((N_IMAGES, 1)), rng.uniform(size=(N_IMAGES, 3))
        where: dict[str, list[tuple[np.ndarray, int]]] = {"train": [], "val": [], "test": []}
        n = self.config.n_per_cell
        for y in (0, 1):
            mine = rng.permutation(np.flatnonzero(large == y))
            for part, start in (("val", 0), ("test", 2 * n)):
                where[part] += [(mine[start + a * n : start + (a + 1) * n], a) for a in (0, 1)]
            rest = mine[4 * n :]
            n_agree = round(self.config.correlation * len(rest))
            where["train"] += [(rest[:n_agree], y), (rest[n_agree:], 1 - y)]
        splits: dict[str, Split] = {}
        done = 0
        for part, cells in where.items():
            index = np.concatenate([cell for cell, _ in cells])
            group = np.concatenate([np.full(len(cell), a, dtype=np.int64) for cell, a in cells])
            mixed = rng.permutation(len(index))
            index, group = index[mixed], group[mixed]
            images = _draw(ink[index], group, look[0][index, 0] * self.config.hue_sd, look[1][index], image_size)
            ids = tuple(f"digit{i:04d}-{GROUPS[a]}" for i, a in zip(index, group, strict=True))
            splits[part] = Split(images, large[index], group, ids)
            done += len(index)
            progress("drawing digits", done, N_IMAGES)
        return Splits(splits["train"], splits["val"], splits["test"], groups=GROUPS)


def _digits() -> tuple[np.ndarray, np.ndarray]:
    """Ink float32 (1797, 8, 8) in [0, 1]; int64 (1797,) 1 where the digit is 5 or more."""
    from sklearn.datasets import load_digits

    data = load_digits()
    values, digit = data.images.astype(np.uint8), data.target.astype(np.uint8)
    content = hashlib.sha256(values.tobytes() + digit.tobytes()).hexdigest()
    if content != CONTENT:
        raise UserError(
            f"scikit-learn's digits have changed ({content[:12]} instead of {CONTENT[:12]}); install another release"
        )
    return values.astype(np.float32) / 16, (digit >= 5).astype(np.int64)


def _draw(ink: np.ndarray, group: np.ndarray, hue_shift: np.ndarray, look: np.ndarray, size: int) -> np.ndarray:
    """uint8 (N, 3, size, size): ink (N, 8, 8) enlarged smoothly, in the group's hue plus `hue_shift` degrees (N,).

    `look` (N, 3) in [0, 1) sets the ink's saturation and brightness and the paper's grey.
    """
    padded = np.pad(ink, ((0, 0), (1, 1), (1, 1)))
    large = np.stack(
        [np.asarray(Image.fromarray(one).resize((size, size), Image.Resampling.BICUBIC)) for one in padded]
    ).clip(0, 1)[:, None]
    hue = np.array(HUE)[group] + hue_shift
    # Pale ink and like paper: in strong colours contrastive learning tells images apart by colour and learns no shape.
    color = _rgb(hue, 0.15 + 0.1 * look[:, 0], 0.8 + 0.1 * look[:, 1])[:, :, None, None]
    paper = (0.1 + 0.1 * look[:, 2])[:, None, None, None]
    return ((large * color + (1 - large) * paper) * 255).round().astype(np.uint8)


def _rgb(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """(N, 3) in [0, 1] from hue in degrees, saturation and value in [0, 1]."""
    k = (np.array([5.0, 3.0, 1.0]) + hue[:, None] / 60) % 6
    chroma = (saturation * value)[:, None]
    return value[:, None] - chroma * np.clip(np.minimum(k, 4 - k), 0, 1)
