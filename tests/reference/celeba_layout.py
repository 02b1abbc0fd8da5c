"""Writes a small CelebA: generated images under the real names, and the lists in torchvision's or Kaggle's form."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

# fmt: off
COLUMNS = (
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose",
    "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses",
    "Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache",
    "Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks",
    "Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick",
    "Wearing_Necklace", "Wearing_Necktie", "Young",
)
# fmt: on


def picture(number: int, width: int = 44, height: int = 54) -> Image.Image:
    """A smooth picture that no other number gives: a 4 x 5 grid of colours, enlarged."""
    grid = np.random.default_rng(number).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)


def values(n: int, seed: int = 0) -> np.ndarray:
    """int (n, 40) of -1 and 1; Attractive (2) and Male (20) agree in a quarter of the rows; all four pairs occur."""
    table = np.random.default_rng(seed).choice([-1, 1], (n, len(COLUMNS)))
    table[:, 2] = np.where(np.arange(n) % 2, 1, -1)
    table[:, 20] = np.where(np.isin(np.arange(n) % 8, (0, 3)), 1, -1) * table[:, 2]
    return table


def partition(n: int) -> np.ndarray:
    """int (n,): 0, 1, 2 for train, val, test in CelebA's order, eight to one to one; none is empty from n = 3 on."""
    n_rest = max(1, n // 10)
    return np.repeat([0, 1, 2], [n - 2 * n_rest, n_rest, n_rest])


def write_celeba(
    root: Path,
    n: int,
    *,
    form: str = "torchvision",
    part: Sequence[int] | np.ndarray | None = None,
    identity: Sequence[int] | np.ndarray | None = None,
    newline: str = "\n",
    missing: Sequence[int] = (),
    zipped: bool = False,
    attributes: np.ndarray | None = None,
) -> None:
    """Images 000001.jpg .. n and their lists in `root`, in the form "torchvision" or "kaggle".

    `missing` are numbers (from 1) that are listed and have no file. `zipped`: the images stay in img_align_celeba.zip.
    """
    table = values(n) if attributes is None else attributes
    part = partition(n) if part is None else part
    names = [f"{i:06d}.jpg" for i in range(1, n + 1)]
    kaggle = form == "kaggle"
    folder = root / "img_align_celeba" / "img_align_celeba" if kaggle else root / "img_align_celeba"
    folder.mkdir(parents=True)
    for i, name in enumerate(names, start=1):
        if i not in missing:
            picture(i).save(folder / name, quality=95)
    if zipped:
        with zipfile.ZipFile(root / "img_align_celeba.zip", "w") as archive:
            for path in sorted(folder.iterdir()):
                archive.write(path, f"img_align_celeba/{path.name}")
                path.unlink()
        folder.rmdir()
    if kaggle:
        attr = ["image_id," + ",".join(COLUMNS)]
        attr += [",".join([name, *map(str, row)]) for name, row in zip(names, table, strict=True)]
        parts = ["image_id,partition", *(f"{name},{p}" for name, p in zip(names, part, strict=True))]
    else:
        attr = [str(n), " ".join(COLUMNS) + " "]
        attr += [f"{name} " + " ".join(f"{v:2d}" for v in row) for name, row in zip(names, table, strict=True)]
        parts = [f"{name} {p}" for name, p in zip(names, part, strict=True)]
    lists = {"list_attr_celeba": attr, "list_eval_partition": parts}
    for stem, lines in lists.items():
        text = newline.join(lines) + newline
        (root / f"{stem}.{'csv' if kaggle else 'txt'}").write_bytes(text.encode())
    if identity is not None:
        text = newline.join(f"{name} {who}" for name, who in zip(names, identity, strict=True)) + newline
        (root / "identity_CelebA.txt").write_bytes(text.encode())
