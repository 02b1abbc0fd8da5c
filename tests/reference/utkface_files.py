"""Files named as UTKFace's are, with drawn pixels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image


def image(path: Path, seed: int, side: int = 10) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


def people(sizes: dict[tuple[int, int, int], int]) -> list[str]:
    """File names: so many of each (age, gender as in the name, race)."""
    return [
        f"{age}_{gender}_{race}_2017{age:03d}{gender}{race}{i:08d}.jpg.chip.jpg"
        for (age, gender, race), n in sizes.items()
        for i in range(n)
    ]


def write_faces(root: Path, names: Iterable[str]) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        image(root / name, seed)
    return root
