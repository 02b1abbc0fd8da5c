"""UTKFace: faces from 0 to 116 years, labelled with age, gender and race in their file names.

Zhang, Song, Qi: "Age Progression/Regression by Conditional Adversarial Autoencoder", CVPR 2017. Splits follow the
SoFCLR paper: gender as the target, a training set in which gender and the group go together (4 : 1 for ethnicity,
13 : 7 for age), validation and test with as many of each gender x group.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
    archives_in,
    contents_of,
    counted,
    decoded_images,
    first_few,
    hashed_order,
    printable,
    short_id,
    silent,
)

NAME = re.compile(
    r"(\d{1,3})_([01])_([0-4])_\d+"
)  # age, gender (1 female), race, time; the tails vary and do not matter
TARGETS = ("female", "male")
ATTRIBUTES = {
    "ethnicity": ("Caucasian", "others"),
    "age": ("<=35", ">35"),
    "ethnicity5": ("White", "Black", "Asian", "Indian", "Others"),
    "age4": ("<=20", "21-35", "36-60", ">60"),
}
N_TRAIN, N_EVAL = 10_000, 800  # the paper's training images, and those of each gender x group in validation and test
SplitBy = Literal["ethnicity", "age", "ethnicity5", "age4"]
SKEW = {  # thousandths of the training images by (female, male) x group: the paper's 1000, 4000, 4000, 1000 and so on
    "ethnicity": ((100, 400), (400, 100)),
    "age": ((325, 175), (175, 325)),
}


class UTKFace(Dataset):
    """UTKFace with gender as target; age or ethnicity as attribute, in two groups or in more."""

    version = 1
    card = Card(
        title="UTKFace, aligned and cropped faces",
        licence="non-commercial research purposes only; the copyright of the images belongs to their original owners",
        source="https://susanqq.github.io/UTKFace/",
        citation='Zhang, Song, Qi: "Age Progression/Regression by Conditional Adversarial Autoencoder", CVPR 2017',
        targets=("gender",),
        attributes=ATTRIBUTES,
        defaults=Defaults(target="gender", attribute="ethnicity", image_size=64, batch_size=64, epochs=100),
        positive={"gender": "male"},
        ordered=frozenset({"age", "age4"}),
        synonyms={"sex": "gender", "male": "gender", "race": "ethnicity", "race5": "ethnicity5", "old": "age"},
        obtain=(
            "download the aligned and cropped faces (UTKFace.tar.gz or a zip; non-commercial research only) from "
            "https://susanqq.github.io/UTKFace/ and point --data-dir at the folder of images, at the archive, or at a "
            "folder that holds UTKFace/ or the archive"
        ),
        train_depends_on=frozenset({"target", "attribute"}),
    )

    class Config(DatasetConfig):
        n_train: int = Field(N_TRAIN, ge=10)
        """Training images, where the attribute has two groups."""
        n_eval: int = Field(N_EVAL, ge=1)
        """Images per gender x group in validation, and as many in test."""
        split_by: SplitBy | None = None
        """Attribute by whose groups images go to the splits; None: the one that is asked for."""

    def inspect(self, root: Path | None) -> DataFacts:
        """The images found at `root` and their fingerprint. `UserError` if none is there, or none has labels."""
        files, said = _find(root)
        with files:
            people = _people(files, said)
            return DataFacts(
                fingerprint=files.fingerprint(),
                n_images=len(people.names),
                max_image_size=files.shorter_side(),
                notes=people.notes,
            )

    def labels(self, root: Path | None) -> Mapping[str, np.ndarray]:
        """Codes int64 (N,) of the target and of every attribute, over all images whose names can be read."""
        files, said = _find(root)
        with files:
            people = _people(files, said)
        return {"gender": people.gender, **{name: people.group(name) for name in ATTRIBUTES}}

    def load(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        image_size: int,
        split_seed: int = 0,
        progress: Progress = silent,
    ) -> Splits:
        """The three splits, images uint8 (N, 3, S, S), made of distinct images, each once.

        Two groups: training holds `n_train` images in the paper's proportions; validation and test hold as many of each
        gender x group, `n_eval` if the images suffice. If that would leave less than half of `n_eval`, as with a part
        of the images, all three shrink in proportion. More groups: validation and test take a fifth of the smallest
        gender x group from each, at most `n_eval`, and training all the rest.
        With `split_by` the groups of that attribute decide all this, and the images have the groups of `attribute`.
        The splits depend on `split_seed` and the images' names, not on where they lie or in which order. Counts that are not
        the paper's, shrunken or asked for, are departures. Errors: `UserError` if a gender x group is too small to be in
        every split.
        """
        files, said = _find(root)
        with files:
            people = _people(files, said)
            packed = decoded_images(files, people.names, image_size, files.fingerprint(progress), progress)
        distinct, notes = _distinct(people.take(packed.kept), packed.sha256)
        people = people.take(packed.kept[distinct])
        ids = [short_id(name) for name in people.names]
        order = hashed_order(ids, split_seed)
        group, by = people.group(attribute), self.config.split_by or attribute
        cell, n_groups = people.group(by)[order], len(ATTRIBUTES[by])
        members = [[order[(people.gender[order] == y) & (cell == a)] for a in range(n_groups)] for y in (0, 1)]
        sizes = np.array([[len(m) for m in row] for row in members])
        plan = _plan(sizes, by, self.config.n_train, self.config.n_eval, "group" if by == attribute else by)
        n_eval = plan.n_eval
        parts: dict[str, list[np.ndarray]] = {"val": [], "test": [], "train": []}
        for y, a in np.ndindex(sizes.shape):
            images = members[y][a]
            parts["val"].append(images[:n_eval])
            parts["test"].append(images[n_eval : 2 * n_eval])
            parts["train"].append(images[2 * n_eval : 2 * n_eval + plan.n_train[y, a]])
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))

        def split(part: str) -> Split:
            chosen = np.concatenate(parts[part])
            chosen = chosen[np.argsort(place[chosen])]  # cells mixed
            images = packed.images[distinct[chosen]]  # a copy, of the images of one split
            codes = {name: people.group(name)[chosen] for name in ATTRIBUTES}
            return Split(images, people.gender[chosen], group[chosen], tuple(ids[i] for i in chosen), codes)

        return Splits(
            train=split("train"),
            val=split("val"),
            test=split("test"),
            groups=ATTRIBUTES[attribute],
            notes=(*people.notes, *packed.notes, *notes, plan.note),
            departures=plan.departures,
        )


@dataclass(frozen=True)
class _People:
    """What N names say. `names` str (N,), sorted; `age` in years, `gender` 1 male, `race` 0..4: int64 (N,)."""

    names: np.ndarray
    age: np.ndarray
    gender: np.ndarray
    race: np.ndarray
    notes: tuple[str, ...] = ()

    def take(self, index: np.ndarray) -> _People:
        return _People(self.names[index], self.age[index], self.gender[index], self.race[index], self.notes)

    def group(self, attribute: str) -> np.ndarray:
        """int64 (N,): code of each person's group."""
        if attribute == "ethnicity":
            return (self.race > 0).astype(np.int64)
        if attribute == "age":
            return (self.age > 35).astype(np.int64)
        if attribute == "ethnicity5":
            return self.race
        return np.searchsorted([20, 35, 60], self.age).astype(np.int64)


def _find(root: Path | None) -> tuple[ImageFiles, tuple[str, ...]]:
    """The images: of an archive, of a folder, or of the archive in it, whichever has more with labels; what to say of it."""
    if root is None or not root.exists():
        raise UserError(f"utkface is not at {str(root) if root else 'any known place'}: {UTKFace.card.obtain}")
    files = ImageFiles(root, within="UTKFace")
    if not root.is_dir():
        if not len(files):
            raise UserError(f"utkface: {str(root)!r} holds no images; {UTKFace.card.obtain}")
        return files, ()
    n_here = _n_labelled(files)
    beside = [path for path in archives_in(root) if path.name.lower().startswith("utkface")]
    if not beside and not n_here:  # a zip of another name: its directory is quickly read
        beside = [path for path in archives_in(root) if path.suffix.lower() == ".zip"]
    archives: dict[Path, ImageFiles] = {}
    faults: dict[Path, UserError] = {}
    for path in beside:
        try:
            archive = ImageFiles(path, within="UTKFace")
        except UserError as error:
            faults[path] = error
            continue
        if _n_labelled(archive):
            archives[path] = archive
    fuller = {path: archive for path, archive in archives.items() if _n_labelled(archive) > n_here}
    if len(fuller) > 1 or (len(faults) > 1 and not n_here and not fuller):
        names = " and ".join(printable(path.name) for path in fuller or faults)
        raise UserError(f"{str(root)!r} holds {names}; point --data-dir at one of them")
    if not fuller and not n_here and faults:
        raise next(iter(faults.values()))
    used, other = files, [f"{printable(path.name)} cannot be read and is not used" for path in faults]
    for path, archive in archives.items():
        name, n = printable(path.name), _n_labelled(archive)
        if path in fuller:
            used = archive
            if n_here:
                other.append(
                    f"{name} is used, which holds {counted(n, 'image')} with labels; {str(files.root)!r} has {n_here:,}"
                )
            continue
        archive.close()
        if n != n_here:
            other.append(
                f"{name} holds {counted(n, 'image')} with labels and is not used; {str(files.root)!r} has {n_here:,}"
            )
    if not len(used):
        raise UserError(f"utkface: {str(files.root)!r} holds no images ({contents_of(root)}); {UTKFace.card.obtain}")
    return used, tuple(f"beside the images: {text}" for text in other)


def _n_labelled(files: ImageFiles) -> int:
    return sum(NAME.match(posixpath.basename(name)) is not None for name in files.names)


def _people(files: ImageFiles, said: tuple[str, ...]) -> _People:
    """Labels from the names; those that do not have all three are left out and listed. `said`: what else to note."""
    index, labels, malformed = [], [], []
    for i, name in enumerate(files.names):
        match = NAME.match(posixpath.basename(name))
        if match:
            index.append(i)
            labels.append([int(text) for text in match.groups()])
        else:
            malformed.append(posixpath.basename(name))
    if not index:
        raise UserError(
            f"utkface: no image in {str(files.root)!r} has a name like [age]_[gender]_[race]_[time].jpg "
            f"(as {printable(malformed[0])!r}); {UTKFace.card.obtain}"
        )
    notes = (*said, *files.notes)
    if malformed:
        shown = first_few(malformed, 5)
        without = "without an age, gender and race"
        skipped = counted(len(malformed), f"name {without} is", f"names {without} are")
        notes = (f"malformed: {skipped} skipped: {shown}", *notes)
    age, gender, race = np.array(labels, dtype=np.int64).T
    return _People(files.names[index], age, 1 - gender, race, notes)


def _distinct(people: _People, sha256: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Positions int64 (M,) of the images to keep of `people`, whose files have hashes uint8 (N, 32); what was dropped.

    Of byte-identical files the first name is kept if all their names agree, none if they do not.
    """
    _, code, n_same = np.unique(sha256.view("V32").ravel(), return_inverse=True, return_counts=True)
    code = code.ravel()
    person = people.age * 10 + people.gender * 5 + people.race
    low, high = np.full(len(n_same), np.iinfo(np.int64).max), np.full(len(n_same), -1)
    np.minimum.at(low, code, person)
    np.maximum.at(high, code, person)
    first = np.full(len(n_same), len(code))
    np.minimum.at(first, code, np.arange(len(code)))
    keep = np.sort(first[low == high])
    notes = []
    n_groups, n_conflicts = int((n_same > 1).sum()), int((low != high).sum())
    if n_groups:
        notes.append(
            f"duplicates: {counted(n_groups, 'group')} of byte-identical images; the {n_conflicts} whose names disagree are "
            f"dropped whole, of each other one the first name is kept; {len(keep):,} of {len(code):,} images remain"
        )
    base = np.array([posixpath.basename(name) for name in people.names[keep]])
    _, once = np.unique(base, return_index=True)
    if len(once) < len(keep):
        again = counted(len(keep) - len(once), "name occurs", "names occur")
        notes.append(f"duplicates: {again} in two folders with other content; the first is kept")
    return keep[np.sort(once)], notes


@dataclass(frozen=True)
class _Plan:
    """Training images int64 (2, G) and validation or test images, per gender x group; what to say of them."""

    n_train: np.ndarray
    n_eval: int
    note: str
    departures: tuple[str, ...]


def _plan(sizes: np.ndarray, attribute: str, n_train: int, n_eval: int, group: str = "group") -> _Plan:
    """Counts out of `sizes` (2, G), the images of each gender x group; `group`: what these are called."""
    groups = ATTRIBUTES[attribute]
    each = f"of each gender x {group}"
    short = np.unravel_index(int(sizes.argmin()), sizes.shape)
    departures = []
    if attribute not in SKEW:
        n = min(n_eval, int(sizes.min()) // 5)
        train = sizes - 2 * n
        if n < n_eval:
            has = f"a fifth of {_cell(short, groups)}, which has {counted(sizes.min(), 'image')}"
            departures = [f"validation and test: {n} {each}, {has}, instead of {n_eval}"]
    else:
        wanted = np.array(SKEW[attribute]) * n_train // 1000
        spare = (sizes - wanted) // 2
        short = np.unravel_index(int(spare.argmin()), sizes.shape)
        n, train = min(n_eval, int(spare.min())), wanted
        if n < n_eval:
            has = f"{_cell(short, groups)} has {counted(sizes[short], 'different image')}"
            if 2 * n >= n_eval:
                departures = [f"validation and test: {n} {each} instead of {n_eval}: {has}"]
            else:
                needed = wanted + 2 * n_eval
                short = min(np.ndindex(sizes.shape), key=lambda c: sizes[c] / needed[c])
                have, need = int(sizes[short]), int(needed[short])
                n = max(1, n_eval * have // need)
                train = np.minimum(wanted * have // need, sizes - 2 * n)
                departures = [
                    f"validation and test: {n} {each} instead of {n_eval}, and training "
                    f"{train.sum():,} images instead of {wanted.sum():,}, all scaled by {have / need:.3f}: "
                    f"{_cell(short, groups)} has {have:,} different images of {need:,}"
                ]
        if n_train != N_TRAIN:
            departures.append(f"training: data.n_train={n_train} asks for {n_train:,} images instead of {N_TRAIN:,}")
    if n_eval != N_EVAL:
        departures.append(f"validation and test: data.n_eval={n_eval} asks for {n_eval} {each} instead of {N_EVAL}")
    if n < 1 or train.min() < 1:
        raise UserError(
            f"utkface: {_cell(short, groups)} has {counted(sizes[short], 'different image')}, too few for training, validation "
            f"and test by {attribute}; add images, or choose another --attr"
        )
    counts = ", ".join(f"{_cell(c, groups)} {train[c]:,}" for c in np.ndindex(sizes.shape))
    return _Plan(train, n, f"training: {counts}; validation and test: {n} {each}", tuple(departures))


def _cell(place: Sequence[Any], groups: Sequence[str]) -> str:
    return f"{TARGETS[place[0]]}/{groups[place[1]]}"
