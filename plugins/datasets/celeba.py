"""CelebA: celebrities' faces with forty binary attributes, in torchvision's layout or as Kaggle's CSV files.

Liu, Luo, Wang, Tang: "Deep Learning Face Attributes in the Wild", ICCV 2015. The official partition is used; every
attribute may be the target or the group.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fairssl.api import (
    Card,
    DataFacts,
    Dataset,
    Defaults,
    ImageFiles,
    Progress,
    Split,
    Splits,
    UserError,
    decoded_images,
    download_fault,
    hashed_order,
    short_id,
    silent,
)

if TYPE_CHECKING:
    import pandas as pd

# fmt: off
NAMES = (
    "5_o_clock_shadow", "arched_eyebrows", "attractive", "bags_under_eyes", "bald", "bangs", "big_lips", "big_nose",
    "black_hair", "blond_hair", "blurry", "brown_hair", "bushy_eyebrows", "chubby", "double_chin", "eyeglasses",
    "goatee", "gray_hair", "heavy_makeup", "high_cheekbones", "male", "mouth_slightly_open", "mustache",
    "narrow_eyes", "no_beard", "oval_face", "pale_skin", "pointy_nose", "receding_hairline", "rosy_cheeks",
    "sideburns", "smiling", "straight_hair", "wavy_hair", "wearing_earrings", "wearing_hat", "wearing_lipstick",
    "wearing_necklace", "wearing_necktie", "young",
)
# fmt: on
PARTS = ("train", "val", "test")
IMAGES = "img_align_celeba"
ATTRIBUTES = ("list_attr_celeba.txt", "list_attr_celeba.csv")
PARTITION = ("list_eval_partition.txt", "list_eval_partition.csv")
IDENTITY = ("identity_CelebA.txt", "identity_CelebA.csv")
SUFFIXES = (".jpg", ".jpeg", ".png")


class CelebA(Dataset):
    """CelebA, aligned and cropped; all forty attributes, or any part of its images."""

    version = 1
    card = Card(
        title="CelebA, aligned and cropped faces",
        licence="non-commercial research purposes only; the images are not the property of those who publish them",
        source="https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html",
        citation='Liu, Luo, Wang, Tang: "Deep Learning Face Attributes in the Wild", ICCV 2015',
        targets=NAMES,
        attributes={name: (f"not {name}", name) for name in NAMES},
        defaults=Defaults(target="attractive", attribute="male", image_size=128, batch_size=128, epochs=100),
        positive={name: name for name in NAMES},
        obtain=(
            "download img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt (and identity_CelebA.txt; "
            "non-commercial research only) from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, or the CSV variant "
            "from Kaggle, and point --data-dir at the folder that holds them, or whose celeba/ does"
        ),
    )

    def inspect(self, root: Path | None) -> DataFacts:
        """The images and labels found; the fingerprint is of their content, the same for every layout."""
        found = _find(root)
        with found.images as files:
            return DataFacts(
                fingerprint=found.fingerprint(files.fingerprint()),
                n_images=len(found.names),
                max_image_size=files.shorter_side(),
                notes=found.notes,
            )

    def labels(self, root: Path | None) -> Mapping[str, np.ndarray]:
        """Codes int64 (N,) of the forty attributes over all images found."""
        found = _find(root)
        found.images.close()
        return {name: found.values[:, i].astype(np.int64) for i, name in enumerate(NAMES)}

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """The three splits, images uint8 (N, 3, S, S), memory-mapped.

        The official partition, whatever `split_seed`; where the images present leave a part of it empty, 80/10/10
        drawn by `split_seed`, by identity if the identity file is there. Labels: 0 for the file's -1, 1 for its 1.
        Errors: `UserError` for an unknown name, or a target or attribute that has one value in the training split.
        """
        for role, name in (("target", target), ("attribute", attribute)):
            if name not in NAMES:
                raise UserError(f"celeba has no {role} {name!r}; it has {', '.join(NAMES)}")
        if target == attribute:
            raise UserError(f"celeba: target and attribute are both {target!r}; choose two different ones")
        found = _find(root)
        ids = [short_id(name) for name in found.names]
        part, notes = _parts(found, ids, split_seed)
        order = np.argsort(part, kind="stable")  # a split is then a slice of the pack: no copy of the images
        order = order[part[order] < len(PARTS)]
        with found.images as files:
            packed = decoded_images(files, found.names[order], image_size, files.fingerprint(progress), progress)
        rows = order[packed.kept]
        ends = np.searchsorted(part[rows], np.arange(len(PARTS) + 1))
        values = found.values[:, [NAMES.index(target), NAMES.index(attribute)]].astype(np.int64)
        splits = {}
        for i, name in enumerate(PARTS):
            here = slice(ends[i], ends[i + 1])
            if ends[i] == ends[i + 1]:
                raise UserError(f"celeba: no image of the {name} split decodes; unpack or download the images again")
            y, a = values[rows[here]].T
            splits[name] = Split(packed.images[here], y.copy(), a.copy(), tuple(ids[row] for row in rows[here]))
        for role, name, codes in (("target", target, "target"), ("attribute", attribute, "group")):
            seen = np.unique(getattr(splits["train"], codes))
            if len(seen) < 2:
                raise UserError(
                    f"celeba: the {role} {name!r} has one value in the {len(splits['train'])} training images "
                    f"({self.card.attributes[name][seen[0]]}); choose another, or add images"
                )
        return Splits(**splits, groups=self.card.attributes[attribute], notes=(*found.notes, *packed.notes, *notes))


@dataclass(frozen=True)
class _Found:
    """N images that have labels. `names` str (N,), sorted, as in `images`; `values` int8 (N, 40) of 0 and 1;
    `part` int64 (N,) 0 train, 1 val, 2 test, 3 not in the partition file; `identity` int64 (N,), or None."""

    images: ImageFiles
    names: np.ndarray
    values: np.ndarray
    part: np.ndarray
    identity: np.ndarray | None
    notes: tuple[str, ...]

    def fingerprint(self, images: str) -> str:
        labels = [self.values, self.part] + ([] if self.identity is None else [self.identity])
        whole = hashlib.sha256(images.encode())
        for array in labels:
            whole.update(array.tobytes())
        return whole.hexdigest()


def _find(root: Path | None) -> _Found:
    if root is None or not root.exists():
        raise UserError(f"celeba is not at {str(root) if root else 'any known place'}: {CelebA.card.obtain}")
    if not root.is_dir():
        raise UserError(
            f"celeba: {str(root)!r} is a file; --data-dir must be the folder that holds {', '.join(ATTRIBUTES)}"
        )
    homes = [root, *sorted(p for p in root.iterdir() if p.name.casefold() == "celeba" and p.is_dir())]
    home = next((h for h in homes if _one_of(h, ATTRIBUTES) or (h / IMAGES).is_dir()), None)
    if home is None:
        raise UserError(f"celeba: neither {str(root)!r} nor its celeba/ holds {ATTRIBUTES[0]}: {CelebA.card.obtain}")
    table, announced = _read(_need(home, ATTRIBUTES), n_values=len(NAMES))
    lower = {str(column).casefold(): i for i, column in enumerate(table.columns)}
    missing = [name for name in NAMES if name not in lower]
    if missing:
        raise UserError(f"{str(_need(home, ATTRIBUTES))!r} has no column {missing[0]!r}; it needs CelebA's forty")
    raw = table.to_numpy()[:, [lower[name] for name in NAMES]]
    if not np.isin(raw, (-1, 1)).all():
        wrong = raw[~np.isin(raw, (-1, 1))][0]
        raise UserError(f"{str(_need(home, ATTRIBUTES))!r} holds the value {wrong}; attributes are -1 or 1")
    images = _images(home)
    index = table.index
    row = index.get_indexer([posixpath.basename(name) for name in images.names])
    notes = []
    if announced is not None and announced != len(table):
        notes.append(f"{_need(home, ATTRIBUTES).name} announces {announced:,} rows and holds {len(table):,}")
    here = row >= 0
    if not here.any():
        raise UserError(f"celeba: no image in {str(images.root)!r} is listed in {str(_need(home, ATTRIBUTES))!r}")
    if here.sum() < len(table):
        notes.append(f"missing: {len(table) - here.sum():,} of the {len(table):,} images listed are not there")
    if not here.all():
        notes.append(
            f"unlisted: {int((~here).sum()):,} images have no labels and are left out: {images.names[~here][0]}, ..."
        )
    names, row = images.names[here], row[here]
    listed = table.index.to_numpy()[row]
    part = _column(_need(home, PARTITION), listed, len(PARTS))
    if (part > len(PARTS)).any() or (part < 0).any():
        raise UserError(f"{str(_need(home, PARTITION))!r} holds a value other than 0, 1 and 2")
    who = _one_of(home, IDENTITY)
    identity = _column(who, listed, -1) if who else None
    return _Found(images, names, (raw[row] > 0).astype(np.int8), part, identity, tuple(notes))


def _one_of(home: Path, names: Sequence[str]) -> Path | None:
    return next((home / name for name in names if (home / name).is_file()), None)


def _need(home: Path, names: Sequence[str]) -> Path:
    path = _one_of(home, names)
    if path is None:
        raise UserError(f"celeba: {str(home)!r} holds neither {' nor '.join(names)}: {CelebA.card.obtain}")
    return path


def _images(home: Path) -> ImageFiles:
    """Unpacked, unpacked twice as on Kaggle, or still in the zip."""
    for folder in (home / IMAGES / IMAGES, home / IMAGES):
        if folder.is_dir():
            files = ImageFiles(folder, depth=0)
            if len(files):
                return files
    archive = home / f"{IMAGES}.zip"
    if archive.is_file():
        files = ImageFiles(archive)
        if len(files):
            return files
    raise UserError(f"celeba: {str(home / IMAGES)!r} holds no images: {CelebA.card.obtain}")


def _read(path: Path, n_values: int) -> tuple[pd.DataFrame, int | None]:
    """File name -> integers, one row per image; and the number of rows that the file's first line announces, if any.

    Read are a CSV with a heading, and text in columns with or without the line of the count and the heading, with
    line ends of any kind.
    """
    import pandas as pd  # half a second, which listing datasets need not pay

    try:
        with path.open(encoding="utf-8-sig", newline=None) as file:
            head = [file.readline(), file.readline()]
        separator = "," if "," in head[0] else r"\s+"
        cells = [line.replace(",", " ").split() for line in head]
        skip, announced = 0, None
        if len(cells[0]) == 1 and cells[0][0].isdigit():
            skip, announced, cells = 1, int(cells[0][0]), cells[1:]
        columns = [str(i) for i in range(n_values)]
        if not cells[0][0].lower().endswith(SUFFIXES):
            skip += 1
            columns = cells[0][-n_values:]
        table = pd.read_csv(
            path,
            sep=separator,
            skiprows=skip,
            header=None,
            names=["image", *columns],
            index_col="image",
            dtype={"image": str, **dict.fromkeys(columns, np.int64 if n_values == 1 else np.int8)},
            encoding="utf-8-sig",
        )
        if not len(table) or not str(table.index[0]).lower().endswith(SUFFIXES):
            raise ValueError("no file names in the first column")
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except (ValueError, IndexError) as error:  # pandas' parser errors and Unicode errors are ValueErrors
        raise download_fault(path, f"a CelebA list (a file name and {n_values} numbers a row)") from error
    if table.index.has_duplicates:
        raise UserError(f"{str(path)!r} lists {table.index[table.index.duplicated()][0]!r} twice; download it again")
    return table, announced


def _column(path: Path, names: np.ndarray, absent: int) -> np.ndarray:
    """int64 (N,): the one number that the file has for each name."""
    table, _ = _read(path, n_values=1)
    return table.iloc[:, 0].reindex(names).fillna(absent).to_numpy().astype(np.int64)


def _parts(found: _Found, ids: Sequence[str], seed: int) -> tuple[np.ndarray, list[str]]:
    """int64 (N,): 0 train, 1 val, 2 test, 3 none; and what was done."""
    n = len(found.names)
    present = np.bincount(found.part, minlength=4)
    notes = []
    if present[3]:
        notes.append(f"unlisted: {present[3]:,} images are not in the partition file")
    if present[:3].all():
        if present[3]:
            notes[0] += " and are left out"
        return found.part, [*notes, "the official partition: " + _sizes(present)]
    empty = " and ".join(name for name, count in zip(PARTS, present[:3], strict=True) if not count)
    keys: Sequence[str] = ids
    by = "image"
    if found.identity is not None and (found.identity >= 0).all():
        keys, by = [str(person) for person in found.identity], "identity"
    units, unit, counts = np.unique(np.array(keys), return_inverse=True, return_counts=True)
    if len(units) < 3:
        raise UserError(f"celeba: {n} images of {len(units)} {by}(s) cannot be split in three; add images")
    order = hashed_order([str(u) for u in units], seed)
    ends = np.cumsum(counts[order])
    n_val = min(int(np.searchsorted(ends, n / 10)) + 1, len(units) - 2)
    n_test = min(int(np.searchsorted(ends, ends[n_val - 1] + n / 10)) + 1 - n_val, len(units) - 1 - n_val)
    part_of = np.zeros(len(units), dtype=np.int64)
    part_of[order[:n_val]] = 1
    part_of[order[n_val : n_val + n_test]] = 2
    part = part_of[unit.ravel()]
    notes.append(
        f"the images present leave {empty} of the official partition empty; split 80/10/10 by {by} instead: "
        + _sizes(np.bincount(part, minlength=4))
    )
    return part, notes


def _sizes(counts: np.ndarray) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in zip(PARTS, counts[:3], strict=True))
