"""A sheet of training images per target and group, as the loop sees them: the first thing to check of a dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from fairssl.figures.style import figures, plain, save
from fairssl.registry import configure
from fairssl.spec.config import TrainConfig
from fairssl.spec.run import DataSpec
from fairssl.types import Splits, UserError

PER_CELL = 8
IMAGE, WITHIN, APART = 0.85, 0.06, 0.3  # inches: an image with the gap behind it, that gap, and between cells
LABELS, TITLE = 1.9, 0.6  # inches beside and above the images


def sheet(
    splits: Splits,
    title: str,
    image_size: int,
    folder: Path,
    name: str,
    n: int = PER_CELL,
    config: TrainConfig | None = None,
) -> list[Path]:
    """A row of plain and a row of augmented images for each cell of target and group of the training split, the same
    images below each other, closer than to the next cell. `title` names them; a cell without images says so."""
    import torch

    from fairssl.data.augment import augment, random_numbers

    config = config or configure(TrainConfig, "train", {})
    train = splits.train
    if n < 1:
        raise UserError(f"--images {n}: must be at least 1")
    cells = [(y, code) for y in (0, 1) for code in range(len(splits.groups))]
    rng, gen = np.random.default_rng(0), torch.Generator().manual_seed(0)
    with figures() as figure_of:
        width, height = IMAGE * n + LABELS, (2 * IMAGE + APART) * len(cells)
        figure = figure_of(figsize=(width, height + TITLE))
        for at, (target, code) in enumerate(cells):
            top = height - at * (2 * IMAGE + APART)

            def place(down: int, across: int, top: float = top) -> Any:
                left, bottom = LABELS + IMAGE * across, top - IMAGE * (down + 1)
                size = IMAGE - WITHIN
                axes = figure.add_axes((left / width, bottom / (height + TITLE), size / width, size / (height + TITLE)))
                axes.set_axis_off()
                return axes

            members = np.flatnonzero((train.target == target) & (train.group == code))
            chosen = np.sort(rng.permutation(members)[:n])
            said = f"y = {target}, {splits.groups[code]}\n{len(members)} images"
            middle = (top - IMAGE) / (height + TITLE)
            beside = (LABELS - 0.12) / width
            figure.text(beside, middle, plain_lines(said), ha="right", va="center", fontsize=9)
            if not len(chosen):
                figure.text(LABELS / width, middle, "none in the training split", va="center", fontsize=9)
                continue
            images = torch.from_numpy(np.array(train.images[chosen]))
            views = augment(images, image_size, config, random_numbers(len(images), config, gen))
            seen = ((views * 0.5 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)).numpy()
            for i in range(len(chosen)):
                place(0, i).imshow(images[i].permute(1, 2, 0).numpy(), interpolation="nearest")
                place(1, i).imshow(seen[i], interpolation="nearest")
        told = f"{title}\ny = 1 is {splits.positive}; each image plain and, below it, augmented"
        figure.text(0.5, (height + 0.1) / (height + TITLE), plain_lines(told), ha="center", va="bottom", fontsize=9)
        return save(figure, folder, name)


def show_dataset(data: DataSpec, splits: Splits, out: Path, n: int = PER_CELL) -> list[Path]:
    """The sheet of a dataset's training split; what `fairssl data show` draws."""
    where = f"{data.dataset}: target {data.target}, attribute {data.attribute}"
    title = f"{where}, {data.image_size} px, {len(splits.train)} training images"
    parts = ("data", data.dataset, data.target, data.attribute)
    return sheet(splits, title, data.image_size, out, "-".join(re.sub(r"[^A-Za-z0-9]+", "_", p) for p in parts), n)


def plain_lines(text: str) -> str:
    return "\n".join(plain(line) for line in text.splitlines())
