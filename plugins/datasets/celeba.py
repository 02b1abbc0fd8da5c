"""CelebA: celebrities' faces with forty binary attributes, in torchvision's layout or as Kaggle's CSV files.

Liu, Luo, Wang, Tang: "Deep Learning Face Attributes in the Wild", ICCV 2015. The official partition is used; every
attribute may be the target or the group.
"""

from __future__ import annotations

import csv
import hashlib
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from fairssl.api import (
    Card,
    DataFacts,
    Dataset,
    DatasetConfig,
    Defaults,
    ImageFiles,
    Progress,
    Split,
    Splits,
    UserError,
    contents_of,
    counted,
    decoded_images,
    download_fault,
    first_few,
    random_parts,
    short_id,
    silent,
    subfolders,
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
OFFICIAL = (162_770, 19_867, 19_962)  # images of the three
IMAGES = "img_align_celeba"
ARCHIVES = tuple(f"{IMAGES}.{ending}" for ending in ("zip", "tar", "tar.gz", "tgz"))
FOLDERS = ("img", "anno", "eval")  # in any case: the folders in which the authors publish the files
ATTRIBUTES = ("list_attr_celeba.txt", "list_attr_celeba.csv")
PARTITION = ("list_eval_partition.txt", "list_eval_partition.csv")
IDENTITY = ("identity_CelebA.txt", "identity_CelebA.csv")
SUFFIXES = (".jpg", ".jpeg", ".png")
SYNONYMS = {
    **dict.fromkeys(("gender", "sex", "female", "woman", "women", "man", "men"), "male"),
    **dict.fromkeys(("age", "old"), "young"),
    **dict.fromkeys(("glasses", "spectacles"), "eyeglasses"),
    **dict.fromkeys(("smile", "happy"), "smiling"),
    **dict.fromkeys(("hat",), "wearing_hat"),
    **dict.fromkeys(("lipstick",), "wearing_lipstick"),
    **dict.fromkeys(("makeup", "make_up"), "heavy_makeup"),
    **dict.fromkeys(("beard",), "no_beard"),
    **dict.fromkeys(("blond", "blonde"), "blond_hair"),
    **dict.fromkeys(("nose",), "big_nose"),
    **dict.fromkeys(("attractiveness", "beauty", "beautiful"), "attractive"),
}


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
        synonyms=SYNONYMS,
        obtain=(
            "download img_align_celeba.zip, list_attr_celeba.txt and list_eval_partition.txt (and identity_CelebA.txt; "
            "non-commercial research only) from https://mmlab.ie.cuhk.edu.hk/projects/CelebA.html, or the CSV variant "
            "from Kaggle, and point --data-dir at the folder that holds them (side by side, or in Img/, Anno/ and Eval/), "
            "or whose celeba/ does"
        ),
    )

    class Config(DatasetConfig):
        split: Literal["official", "drawn"] = Field("official", json_schema_extra={"added": True})
        """`official`: the published partition; `drawn`: 80/10/10 drawn from the images there, by identity if that is known."""

    def inspect(self, root: Path | None) -> DataFacts:
        """The images and labels found; the fingerprint is of their content, the same for every layout."""
        found = _find(root, self.config.split)
        with found.images as files:
            return DataFacts(
                fingerprint=found.fingerprint(files.fingerprint()),
                n_images=len(found.names),
                max_image_size=files.shorter_side(),
                notes=found.notes,
            )

    def labels(self, root: Path | None) -> Mapping[str, np.ndarray]:
        """Codes int64 (N,) of the forty attributes over all images found."""
        found = _find(root, self.config.split)
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

        The official partition, whatever `split_seed`; where the images present leave a part of it empty, it is refused.
        With `data.split=drawn`, 80/10/10 drawn by `split_seed`, by identity if the identity file is there and whole. That,
        and a partition of which images are missing, are departures. Labels: 0 for the file's -1, 1 for its 1.
        """
        found = _find(root, self.config.split)
        ids = [short_id(name) for name in found.names]
        part, departure = _parts(found, ids, split_seed)
        order = np.argsort(part, kind="stable")  # a split is then a slice of the pack: no copy of the images
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
            codes = {one: found.values[rows[here], k].astype(np.int64) for k, one in enumerate(NAMES)}
            names = tuple(ids[row] for row in rows[here])
            splits[name] = Split(packed.images[here], y.copy(), a.copy(), names, codes)
        counts = np.diff(ends)
        if not departure and tuple(counts) != OFFICIAL:
            shares = (f"{name} {n:,} of {all_:,}" for name, n, all_ in zip(PARTS, counts, OFFICIAL, strict=True))
            departure = f"not all images of the official partition: {', '.join(shares)}"
        note = "" if departure else f"the official partition: {_sizes(counts)}"
        return Splits(
            train=splits["train"],
            val=splits["val"],
            test=splits["test"],
            groups=self.card.attributes[attribute],
            notes=(*found.notes, *packed.notes, *([note] if note else [])),
            departures=(departure,) if departure else (),
        )


@dataclass(frozen=True)
class _Found:
    """N images that have labels. `names` str (N,), sorted, as in `images`; `values` int8 (N, 40) of 0 and 1; `part` int64
    (N,) 0 train, 1 val, 2 test. Only where splits are drawn, `drawn`, is it asked who is on the images: `identity` int64
    (N,), None where the file is not there or lacks some of them, and then `no_identity` says so."""

    images: ImageFiles
    names: np.ndarray
    values: np.ndarray
    part: np.ndarray
    drawn: bool
    identity: np.ndarray | None
    no_identity: str
    notes: tuple[str, ...]

    def fingerprint(self, images: str) -> str:
        labels = [self.values, self.part] + ([] if self.identity is None else [self.identity])
        whole = hashlib.sha256(images.encode())
        for array in labels:
            whole.update(array.tobytes())
        return whole.hexdigest()


def _find(root: Path | None, split: str) -> _Found:
    places = _places(root)
    attributes, partition = _need(places, ATTRIBUTES), _need(places, PARTITION)
    table = _read(attributes, n_values=len(NAMES))
    lower = {str(column).casefold(): i for i, column in enumerate(table.columns)}
    missing = [name for name in NAMES if name not in lower]
    if missing:
        raise UserError(f"{str(attributes)!r} has no column {missing[0]!r}; it needs CelebA's forty")
    raw = table.to_numpy()[:, [lower[name] for name in NAMES]]
    _check_values(attributes, table.index, raw, (-1, 1), "attributes are -1 or 1")
    parts = _read(partition, n_values=1)
    _check_values(partition, parts.index, parts.to_numpy(), (0, 1, 2), "parts are 0, 1 and 2")
    _check_same(attributes, table.index, partition, parts.index)
    images, notes = _images(places, table.index)
    row = _rows(table.index, images.names)
    here = row >= 0
    if not here.any():
        raise UserError(f"celeba: no image in {str(images.root)!r} is listed in {str(attributes)!r}")
    notes += images.notes
    if here.sum() < len(table):
        notes.append(f"missing: {len(table) - here.sum():,} of the {len(table):,} images listed are not there")
    if not here.all():
        shown = first_few([str(name) for name in images.names[~here][:2]], 1)
        left_out = counted(int((~here).sum()), "image has no labels and is", "images have no labels and are")
        notes.append(f"unlisted: {left_out} left out: {shown}")
    names, row = images.names[here], row[here]
    listed = table.index[row]
    part = parts.iloc[:, 0].reindex(listed).to_numpy().astype(np.int64)
    identity, no_identity = None, ""
    drawn = split == "drawn"
    if drawn:
        identity, no_identity = _identity(places, listed)
    elif len(np.unique(part)) < len(PARTS):
        images.close()
        empty = " or ".join(name for i, name in enumerate(PARTS) if not (part == i).any())
        raise UserError(
            f"celeba: none of the {len(names):,} images in {str(images.root)!r} is {empty} in {str(partition)!r}: put the "
            "others there too, or have splits drawn from those that are there: --set data.split=drawn"
        )
    return _Found(images, names, (raw[row] > 0).astype(np.int8), part, drawn, identity, no_identity, tuple(notes))


def _places(root: Path | None) -> list[Path]:
    """The folders that hold CelebA: one, or also the authors' Img/, Anno/ and Eval/ in it."""
    if root is None or not root.exists():
        raise UserError(f"celeba is not at {str(root) if root else 'any known place'}: {CelebA.card.obtain}")
    if not root.is_dir():
        raise UserError(
            f"celeba: {str(root)!r} is a file; --data-dir must be the folder that holds {', '.join(ATTRIBUTES)}"
        )
    homes = [root, *(path for path in subfolders(root) if path.name.casefold().startswith(("celeba", "archive")))]
    for home in homes:
        places = [home, *(path for path in subfolders(home) if path.name.casefold() in FOLDERS)]
        if _one_of(places, ATTRIBUTES) or any((place / IMAGES).is_dir() for place in places):
            return places
    raise UserError(
        f"celeba: neither {str(root)!r} nor its celeba/ holds {ATTRIBUTES[0]} ({contents_of(root)}): {CelebA.card.obtain}"
    )


def _one_of(places: Sequence[Path], names: Sequence[str]) -> Path | None:
    return next((place / name for name in names for place in places if (place / name).is_file()), None)


def _need(places: Sequence[Path], names: Sequence[str]) -> Path:
    path = _one_of(places, names)
    if path is None:
        there = contents_of(places[0])
        raise UserError(
            f"celeba: {str(places[0])!r} holds neither {' nor '.join(names)} ({there}): {CelebA.card.obtain}"
        )
    return path


def _is_folder(path: Path) -> bool:
    """Also of what lies in a folder that may not be read: then not, and the error is of that folder."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _images(places: Sequence[Path], listed: pd.Index) -> tuple[ImageFiles, list[str]]:
    """Unpacked, unpacked twice as on Kaggle, or still in an archive: whichever has more images listed; what to say of it."""
    candidates = [path for place in places for path in (place / IMAGES / IMAGES, place / IMAGES) if _is_folder(path)]
    archives = [place / name for place in places for name in ARCHIVES if (place / name).is_file()]
    found: list[tuple[int, ImageFiles]] = []
    notes, faults = [], []
    for path in (*candidates, *archives):
        try:
            files = ImageFiles(path, depth=0)
        except UserError as error:
            faults.append((path, error))
            continue
        if len(files):
            found.append((int((_rows(listed, files.names) >= 0).sum()), files))
    if not found and faults:
        raise faults[0][1]
    if not found:
        there = contents_of(places[0])
        raise UserError(f"celeba: {str(places[0] / IMAGES)!r} holds no images ({there}): {CelebA.card.obtain}")
    most, used = max(found, key=lambda one: one[0])  # the first of equals
    for n, files in found:
        if n != most:
            notes.append(
                f"{str(used.root)!r} is used, which holds {counted(most, 'image')} listed; {str(files.root)!r} has {n:,}"
            )
        if files is not used:
            files.close()
    notes += [f"{str(path)!r} cannot be read and is not used" for path, _ in faults]
    return used, notes


def _rows(listed: pd.Index, names: np.ndarray) -> np.ndarray:
    """int64 (N,): the row of each file among those listed, -1 where it is not there. Not by `get_indexer`: pandas' strings
    take no name whose bytes are no UTF-8."""
    at = {name: row for row, name in enumerate(listed)}
    return np.array([at.get(posixpath.basename(name), -1) for name in names], dtype=np.int64)


def _check_values(path: Path, names: pd.Index, values: np.ndarray, allowed: Sequence[int], rule: str) -> None:
    wrong = ~np.isin(values, allowed)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise UserError(f"{str(path)!r} holds the value {values[row, column]} for {names[row]!r}; {rule}")


def _check_same(first: Path, ours: pd.Index, second: Path, theirs: pd.Index) -> None:
    """Both lists must name the same images: the partition is only fixed for a whole file."""
    for path, other, lacking in ((second, first, ours.difference(theirs)), (first, second, theirs.difference(ours))):
        if len(lacking):
            raise UserError(
                f"{str(path)!r} lacks {len(lacking):,} of the images that {other.name} lists ({first_few(lacking, 1)}): it was "
                "cut off, and is to be downloaded again; or if you shortened it yourself, shorten both lists alike"
            )


def _identity(places: Sequence[Path], names: pd.Index) -> tuple[np.ndarray | None, str]:
    """int64 (N,): who is on each image; or None, and why that is not known."""
    path = _one_of(places, IDENTITY)
    if path is None:
        return None, f"there is no {IDENTITY[0]}"
    people = _read(path, n_values=1).iloc[:, 0].reindex(names)
    unknown = people.isna().to_numpy()
    if unknown.any():
        return None, f"{path.name} lacks {int(unknown.sum()):,} of the images ({first_few(names[unknown], 1)})"
    return people.to_numpy().astype(np.int64), ""


def _read(path: Path, n_values: int) -> pd.DataFrame:
    """File name -> integers, one row per image.

    Read are a CSV with or without a heading, quotes, or a column of row numbers before the names; and text in columns,
    with or without a heading and a first line that announces how many rows follow. Line ends of any kind. A file that
    holds fewer rows than it announces is refused.
    """
    import pandas as pd  # half a second, which listing datasets need not pay

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = _fields(file)
            first = next(lines, [])
            announced = int(first[0]) if len(first) == 1 and first[0].isdigit() else None
            start = first if announced is None else next(lines, [])
            heading = [] if any(_is_image(cell) for cell in start) else start
            row = next(lines, []) if heading else start
            n_fields, separated = len(row), "," in _first_line(path)
        image = next((i for i, cell in enumerate(row) if _is_image(cell)), None)
        columns = [str(i) for i in range(n_fields)]
        if heading:
            columns[-n_values:] = heading[-n_values:]
        if image is None or n_fields - image - 1 != n_values:
            raise ValueError("no file name with that many numbers after it")
        columns[image] = "image"
        table = pd.read_csv(
            path,
            sep="," if separated else r"\s+",
            skiprows=(announced is not None) + bool(heading),
            header=None,
            names=columns,
            usecols=columns[image:],
            index_col="image",
            dtype={"image": str, **dict.fromkeys(columns[image + 1 :], np.int64 if n_values == 1 else np.int8)},
            encoding="utf-8-sig",
        )
    except OSError as error:
        raise UserError(f"cannot read {str(path)!r}: {error.strerror or error}") from error
    except (ValueError, csv.Error) as error:  # pandas' parser errors and Unicode errors are ValueErrors
        expected = f"a CelebA list (a file name and {n_values} {'numbers' if n_values > 1 else 'number'} a row)"
        raise _list_fault(path, expected) from error
    if table.index.has_duplicates:
        raise UserError(f"{str(path)!r} lists {table.index[table.index.duplicated()][0]!r} twice; download it again")
    if announced is not None and announced != len(table):
        raise UserError(
            f"{str(path)!r} announces {counted(announced, 'row')} and holds {len(table):,}: it was cut off, and is to be "
            "downloaded again; or if you shortened it yourself, correct the number in its first line"
        )
    return table


def _first_line(path: Path) -> str:
    with path.open(encoding="utf-8-sig") as file:
        return file.readline()


def _fields(lines: Iterator[str]) -> Iterator[list[str]]:
    """The fields of each line that is not empty, of a CSV or of text in columns."""
    for line in lines:
        cells = next(csv.reader([line]), []) if "," in line else line.split()
        if cells:
            yield [cell.strip() for cell in cells]


def _is_image(cell: str) -> bool:
    return cell.lower().endswith(SUFFIXES)


def _list_fault(path: Path, expected: str) -> UserError:
    """The error for a list that cannot be read: the line where it goes wrong, if it begins as such a list does."""
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = ((number, cells) for number, cells in enumerate(_fields(file), start=1) if any(map(_is_image, cells)))
        first = next(rows, None)
        if first is not None:
            for number, cells in rows:
                if len(cells) != len(first[1]):
                    return UserError(
                        f"{str(path)!r} is not {expected}: line {number} has {counted(len(cells), 'field')}, and the first "
                        f"row has {len(first[1])}; if it is the last line, the download was cut off"
                    )
    return download_fault(path, expected)


def _parts(found: _Found, ids: Sequence[str], seed: int) -> tuple[np.ndarray, str]:
    """int64 (N,): 0 train, 1 val, 2 test; and where that is not the official partition, what it is instead."""
    if not found.drawn:
        return found.part, ""
    keys: Sequence[str] = ids
    by = "image"
    if found.identity is not None:
        keys, by = [str(person) for person in found.identity], "identity"
    part = random_parts(keys, seed)
    why = f" ({found.no_identity}, so one person may be in two splits)" if found.no_identity else ""
    return part, (
        f"not the official partition: data.split=drawn, 80/10/10 by {by}{why}: "
        + _sizes(np.bincount(part, minlength=len(PARTS)))
    )


def _sizes(counts: np.ndarray) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in zip(PARTS, counts, strict=True))
