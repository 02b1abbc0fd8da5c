"""Draws images and a table of labels as a user might have them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def drawn(number: int, side: int = 12, form: str = "PNG") -> bytes:
    """The bytes of an image that no other number gives."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


def labels(n: int) -> dict[str, list[str]]:
    """Four columns of n values: each smiling x gender equally often; some of smiling, gender and age are missing."""
    i = np.arange(n)
    races = np.array(["Asian", "Black", "White"])[i % 3]
    return {
        "smiling": [("yes" if k % 2 else "no") if k % 19 else "" for k in i],
        "gender": [("Male" if k // 2 % 2 else "Female") if k % 17 else "" for k in i],
        "age": [str(10 + k % 70) if k % 23 else "" for k in i],
        "race": races.tolist(),
    }


def write_folder(
    root: Path,
    n: int,
    columns: Mapping[str, Sequence[str]] | None = None,
    *,
    table: str = "faces.csv",
    folders: Sequence[str] = ("a", "b/c"),
    separator: str = ",",
) -> list[str]:
    """n images in the folders in turn, and their table; the names as the table has them."""
    names = [f"{folders[i % len(folders)]}/{i:05d}.png".removeprefix("./") for i in range(n)]
    for i, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawn(i))
    write_table(root / table, names, labels(n) if columns is None else columns, separator)
    return names


def write_table(
    path: Path, names: Sequence[str], columns: Mapping[str, Sequence[str]], separator: str = ",", heading: str = "file"
) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([heading, *columns])
        writer.writerows(zip(names, *columns.values(), strict=True))
