"""Datasets that are any images with a table of labels: a folder or an archive, and a CSV or Parquet file, a row per image."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field, field_validator

from fairssl.data.archives import archives_in, contents_of, is_archive, open_archive
from fairssl.data.columns import Column, Target, make_column, make_target
from fairssl.data.decoded import decoded_images
from fairssl.data.files import ImageFiles, is_image_name, random_parts, short_id
from fairssl.data.tables import is_table, match, plain, read_table, table_bytes
from fairssl.interfaces import Dataset, DatasetConfig
from fairssl.registry import configure, did_you_mean
from fairssl.types import Card, DataFacts, Progress, Split, Splits, UserError, counted, first_few, printable, silent

if TYPE_CHECKING:
    import pandas as pd

FILE_COLUMNS = (
    "file",
    "file_name",
    "filename",
    "image",
    "image_id",
    "image_name",
    "img",
    "path",
    "image_path",
    "filepath",
)
SPLIT_COLUMNS = ("split", "partition")
IDENTITY_COLUMNS = ("identity", "identity_id", "person", "person_id", "subject", "subject_id")
PART_NAMES = {
    **dict.fromkeys(("train", "training", "0"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev", "1"), 1),
    **dict.fromkeys(("test", "testing", "2"), 2),
}
PARTS = ("train", "val", "test")
DRAWN = "drawn"  # data.split=drawn: whatever splits are given, draw them


def _added(default: Any) -> Any:
    """A parameter that is no part of a key, and of no caption, where nothing is said."""
    return Field(default_factory=default, json_schema_extra={"added": True})


class TableConfig(DatasetConfig):
    """How to read a table of labels. Columns are named as in its heading. Several columns are parted by semicolons, several
    values of one by plus signs, as `age:35+60;height:170`; or all is written as JSON, as `{"age": [35, 60]}`."""

    table: str = _added(str)
    """File below the data folder, or in or beside the archive; by default the only one there."""
    images: str = _added(str)
    """Folder or archive below the data folder; by default whichever holds the table's images."""
    file: str = _added(str)
    """Column of file names; by default one called file, image, path or alike, or the first with some."""
    split: str = _added(str)
    """Column of train, val and test; by default one called split or partition, if any. `drawn`: draw the splits, whatever
    ones are given."""
    identity: str = _added(str)
    """Column of who is on an image, so that nobody is in two splits; by default identity, person or alike."""
    positive: dict[str, tuple[str, ...]] = _added(dict)
    """Column -> its values that are y = 1, as race:White+Asian."""
    bin: dict[str, tuple[float, ...]] = _added(dict)
    """Column of numbers -> upper ends of all groups but the last, as age:35+60."""
    ordered: dict[str, tuple[str, ...]] = _added(dict)
    """Column whose groups have an order -> it, or nothing: by their numbers."""
    val: float = Field(0.1, gt=0, lt=1)
    """Share of the images, where the table has no validation split."""
    test: float = Field(0.1, gt=0, lt=1)
    """Share of the images, where the table has no splits."""

    @field_validator("positive", "bin", "ordered", mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        """`age:35+60;height:170` -> {"age": ("35", "60"), "height": ("170",)}; the values of `positive` stay one text, since
        a value may have a plus sign of its own."""
        if not isinstance(value, str):
            return value
        columns = {}
        for piece in value.split(";"):
            name, _, values = piece.partition(":")
            if not name.strip():
                raise ValueError("a column has no name; write column:value, as age:35+60")
            columns[name.strip()] = tuple(part.strip() for part in values.split("+")) if values.strip() else ()
        return columns

    @field_validator("bin")
    @classmethod
    def _ascending(cls, value: dict[str, tuple[float, ...]]) -> dict[str, tuple[float, ...]]:
        for name, cuts in value.items():
            if not cuts or list(cuts) != sorted(set(cuts)):
                raise ValueError(f"the ends of the groups of {name!r} must be there and ascend, as {name}:35+60")
        return value


@dataclass(frozen=True)
class Found:
    """N images that have a row. `names` str (N,) in `files`; `paths` str (N,) as the table has them, sorted; `values` of the
    table's other columns, str (N,) objects, None where missing; `n_rows` of the table; notes on what is left out."""

    files: ImageFiles
    tables: tuple[str, ...]
    names: np.ndarray
    paths: np.ndarray
    values: dict[str, np.ndarray]
    n_rows: int
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Assigned:
    """Which of N images go where: their `ids`, objects (N,), what is said of duplicates, `part` int64 (N,): 0 train, 1 val,
    2 test, -1 none, departures from the official splits, and what is said of the splits."""

    ids: np.ndarray
    duplicates: tuple[str, ...]
    part: np.ndarray
    departures: tuple[str, ...]
    said: tuple[str, ...]


class TableDataset(Dataset):
    """Base of a dataset that is images with a table of labels.

    A subclass states its `card`; what it leaves empty there (targets, attributes) is taken from the table. It may override
    `Config` with other defaults, `tables` and `official_parts` where files have fixed names and splits.
    """

    hidden: ClassVar[frozenset[str]] = frozenset()  # columns that are no labels
    official: ClassVar[tuple[int, int, int] | None] = None  # images of train, val, test that the authors publish

    class Config(TableConfig):
        pass

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._kept: tuple[Path, Found] | None = None
        self._assigned: tuple[Found, int, _Assigned] | None = None

    def varied(self, **params: Any) -> TableDataset:
        """The same data with other parameters that say nothing of where the table and the images are."""
        other = type(self)(configure(type(self.config), self.name, {**self.config.params(), **params}))
        other._kept = self._kept
        return other

    def home(self, root: Path) -> Path:
        """The folder that names are seen from: the data folder, or the one in which the archive or the table lies."""
        return root if root.is_dir() else root.parent

    def tables(self, home: Path, root: Path) -> list[str]:
        """The names of the tables to read, below the data folder or in or beside the archive; their rows are joined."""
        if self.config.table:
            return [self.config.table]
        if root.is_file() and is_table(root.name):
            return [root.name]
        here = sorted(path.name for path in home.iterdir() if is_table(path.name) and path.is_file())
        if root.is_file():
            with contextlib.closing(open_archive(root, is_table)) as source:
                here = [name for name, _, _ in source.found] or here
        if len(here) != 1:
            what = f"{len(here)} tables ({', '.join(here[:5])})" if here else "no CSV or Parquet table"
            raise UserError(
                f"{self.name}: {str(root)!r} holds {what}; name one with --set data.table=FILE, a name below that folder"
            )
        return here

    def official_parts(self, found: Found) -> np.ndarray | None:
        """int64 (N,): 0 train, 1 val, 2 test, -1 none, as the table says; None: it says nothing."""
        name = self._split_column(found)
        if not name:
            return None
        values = found.values[name]
        parts = np.array([-1 if v is None else PART_NAMES.get(v.casefold(), 3) for v in values], dtype=np.int64)
        if (parts == 3).any():
            odd = sorted({str(v) for v in values[parts == 3]})
            raise UserError(
                f"{self.name}: the split column {printable(name)!r} holds {printable(odd[0])!r}; it may hold train, val and "
                f"test (or 0, 1, 2); name another with --set data.split=COLUMN, or have them drawn: --set data.split={DRAWN}"
            )
        return parts

    def lacking(self, found: Found, empty: Sequence[str]) -> str:
        """What is missing where the given splits have no image of `empty`, "train" or "test", and how to get it."""
        name = printable(self._split_column(found))
        values = " or ".join(["val", "test"] if empty[0] == "test" else empty)
        return (
            f"none of the {len(found.names):,} images there has {values} in the split column {name!r}: complete it, or name "
            "another with --set data.split=COLUMN"
        )

    def _given_parts(self, found: Found, keep: np.ndarray | None = None) -> np.ndarray | None:
        """`official_parts` where they are used: None where the user has them drawn. Training images, and others to judge by,
        must be among those to `keep`, by default all."""
        parts = None if self._drawn(found) else self.official_parts(found)
        if parts is None:
            return None
        here = parts if keep is None else parts[keep]
        empty = [name for name, there in (("train", here == 0), ("test", here > 0)) if not there.any()]
        if empty:
            raise UserError(
                f"{self.name}: {self.lacking(found, empty)}; or have splits drawn from what is there: --set data.split={DRAWN}"
            )
        return parts

    def splits_are_drawn(self, found: Found) -> bool:
        """Whether no split is given, or the user wants none of them."""
        return self._drawn(found) or self.official_parts(found) is None

    def _drawn(self, found: Found) -> bool:
        return self.config.split == DRAWN and DRAWN not in found.values

    def _split_column(self, found: Found) -> str:
        """The column of splits, also where they are drawn; empty if there is none."""
        if self._drawn(found):
            lower = {column.strip().casefold(): column for column in found.values}
            return next((lower[one] for one in SPLIT_COLUMNS if one in lower), "")
        return self._column("split", found, SPLIT_COLUMNS)

    def inspect(self, root: Path | None) -> DataFacts:
        """The images that have a row, and a fingerprint of their content and of the table's."""
        found = self.found(root)
        self._given_parts(found)  # or what they lack
        whole = hashlib.sha256(found.files.fingerprint().encode())
        for name, values in sorted(found.values.items()):
            text = "\0".join([name, *("\1" if value is None else value for value in values)])
            whole.update(text.encode("utf-8", "surrogateescape") + b"\n")
        whole.update("\0".join(found.paths).encode("utf-8", "surrogateescape"))
        return DataFacts(
            fingerprint=whole.hexdigest(),
            n_images=len(found.names),
            max_image_size=found.files.shorter_side(),
            notes=tuple(found.notes),
        )

    def card_for(self, root: Path | None) -> Card:
        """The card with the labels that the table has: every column of two values is a target, or has one made of it by
        `positive`; every column of a few values, or of numbers in bins, is an attribute."""
        columns, targets, why = self.columns(self.found(root))
        attributes = {name: column.labels for name, column in columns.items() if not column.refused}
        known = {**targets, **attributes}
        wanted = dict.fromkeys([*self.card.targets, *self.config.positive]) if self.card.targets else targets
        return replace(
            self.card,
            targets=tuple(name for name in wanted if name in targets),
            attributes={name: attributes[name] for name in self.card.attributes or attributes if name in attributes},
            positive={name: target.positive for name, target in targets.items()},
            ordered=frozenset(name for name, column in columns.items() if column.ordered and name in attributes),
            synonyms={other: name for other, name in self.card.synonyms.items() if name in known},
            refused={
                "target": {name: reason for name, reason in why.items() if reason},
                "attribute": {name: column.refused for name, column in columns.items() if column.refused},
            },
        )

    def labels(self, root: Path | None) -> Mapping[str, np.ndarray] | None:
        """Codes int64 (N,) of every target and attribute over the images that have a row; -1 where missing. None where one
        column is a target by two classes and an attribute by others."""
        columns, targets, _ = self.columns(self.found(root))
        card = self.card_for(root)
        if any(
            not np.array_equal(targets[name].codes, columns[name].codes)
            for name in {*card.targets} & {*card.attributes}
        ):
            return None
        return {name: (targets[name] if name in card.targets else columns[name]).codes for name in known_names(card)}

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

        As the table says, or drawn by `split_seed`; by identity where the table has it. Images without the target are left
        out, those without the attribute have the group -1. Of files with the same bytes one is kept, in the last split that
        has it; none where their rows differ.
        """
        found = self.found(root)
        columns, targets, _ = self.columns(found)
        y, group = targets[target].codes, columns[attribute]
        with found.files as files:
            assigned = self._assign(found, split_seed, progress)
            departures = assigned.departures
            self._kept = self._assigned = None
            rows = self._rows(assigned, target, y)
            packed = decoded_images(files, found.names[rows], image_size, files.fingerprint(progress), progress)
        rows = rows[packed.kept]
        train, val, test = self._three(packed.images, assigned, columns, rows, y, group.codes)
        counts = [len(train), len(val), len(test)]
        if self.official is not None and not departures and tuple(counts) != self.official:
            shares = (f"{name} {n:,} of {all_:,}" for name, n, all_ in zip(PARTS, counts, self.official, strict=True))
            departures = (f"not all images of the official splits: {', '.join(shares)}",)
        missing = [*_missing(target, y, "left out"), *_missing(attribute, group.codes, "of unknown group")]
        return Splits(
            train=train,
            val=val,
            test=test,
            groups=group.labels,
            notes=(*found.notes, *missing, *assigned.duplicates, *packed.notes, *assigned.said),
            departures=departures,
        )

    def outline(
        self,
        root: Path | None,
        target: str,
        attribute: str,
        split_seed: int = 0,
        unreadable: Collection[str] = (),
        progress: Progress = silent,
    ) -> Splits:
        """As `Dataset.outline`; `unreadable` are names in `Found.files`."""
        found = self.found(root)
        columns, targets, _ = self.columns(found)
        y, group = targets[target].codes, columns[attribute]
        assigned = self._assign(found, split_seed, progress)
        rows = self._rows(assigned, target, y)
        if unreadable:
            rows = rows[~np.isin(found.names[rows], list(unreadable))]
        images = np.zeros((len(rows), 0), dtype=np.uint8)
        train, val, test = self._three(images, assigned, columns, rows, y, group.codes)
        return Splits(
            train=train,
            val=val,
            test=test,
            groups=group.labels,
            notes=assigned.said,
            departures=assigned.departures,
        )

    def _assign(self, found: Found, seed: int, progress: Progress) -> _Assigned:
        """Which images go where. Kept, since planning asks for every target and attribute."""
        if self._assigned is None or self._assigned[0] is not found or self._assigned[1] != seed:
            keep, duplicates = self._distinct(found, progress)
            ids = np.array([short_id(path, folders=True) for path in found.paths], dtype=object)
            self._assigned = (found, seed, _Assigned(ids, tuple(duplicates), *self._parts(found, keep, seed)))
        return self._assigned[2]

    def _rows(self, assigned: _Assigned, target: str, y: np.ndarray) -> np.ndarray:
        """int64 (M,): the images that are used, training first: a split is then a slice of the pack, and no copy."""
        rows = np.flatnonzero((assigned.part >= 0) & (y >= 0))
        if not len(rows):
            raise UserError(f"{self.name}: no image has {printable(target)!r} and a split; choose another --target")
        return rows[np.argsort(assigned.part[rows], kind="stable")]

    def _three(
        self,
        images: np.ndarray,
        assigned: _Assigned,
        columns: Mapping[str, Column],
        rows: np.ndarray,
        target: np.ndarray,
        group: np.ndarray,
    ) -> list[Split]:
        """Training, validation and test: the images (M, ...) of `rows` (M,), which are in that order."""
        ends = np.searchsorted(assigned.part[rows], np.arange(len(PARTS) + 1))
        splits = []
        for i in range(len(PARTS)):
            here = rows[ends[i] : ends[i + 1]]
            ids = tuple(assigned.ids[here])
            codes = {name: column.codes[here] for name, column in columns.items() if not column.refused}
            splits.append(Split(images[ends[i] : ends[i + 1]], target[here], group[here], ids, codes))
        return splits

    def found(self, root: Path | None) -> Found:
        """The images that have a row. Kept until they are loaded, since planning asks several times."""
        if root is None or not root.exists():
            raise UserError(f"{self.name} is not at {str(root) if root else 'any known place'}: {self.card.obtain}")
        if self._kept is None or self._kept[0] != root:
            self._kept = (root, self._find(root))
        return self._kept[1]

    def _find(self, root: Path) -> Found:
        if root.is_file() and not is_table(root.name):
            open_archive(root, is_image_name).close()  # or says what it is instead
        home = self.home(root)
        names = self.tables(home, root)
        tables = [read_table(*table_bytes(self.name, home, root, name)) for name in names]
        files_of = [self._file_column(name, table) for name, table in zip(names, tables, strict=True)]
        given = [path for table, column in zip(tables, files_of, strict=True) for path in table[column]]
        paths = np.array([plain(path) for path in given], dtype=str)
        files, place, notes = self._images(home, root, paths)
        there = np.flatnonzero(place >= 0)
        if not len(there):
            one = (
                f"; one of its {counted(len(files), 'image')} is {printable(files.paths[0])!r}"
                if len(files)
                else f": {contents_of(home)}"
            )
            raise UserError(
                f"{self.name}: none of the {len(given):,} files that column {files_of[0]!r} of {names[0]!r} names (as "
                f"{printable(given[0])!r}) is in {str(files.root)!r}{one}"
            )
        used, count = np.unique(place[there], return_counts=True)
        if (count > 1).any():
            twice = printable(files.paths[used[count > 1][0]])
            raise UserError(f"{self.name}: {names[0]!r} has more than one row for {twice!r}; keep one row per image")
        if len(there) < len(given):
            lost = [given[i] for i in np.flatnonzero(place < 0)[:2]]
            of = f"of the {counted(len(given), 'file')} listed"
            notes.append(f"missing: {len(given) - len(there):,} {of} are not there: {first_few(lost, 1)}")
        if len(there) < len(files):
            other = np.setdiff1d(np.arange(len(files)), used)
            shown = first_few([files.paths[i] for i in other[:2]], 1)
            left_out = counted(len(other), "image has no row and is", "images have no row and are")
            notes.append(f"unlisted: {left_out} left out: {shown}")
        values = {}
        for name in dict.fromkeys(c for t, file in zip(tables, files_of, strict=True) for c in t.columns if c != file):
            parts = [t[name].to_numpy(object) if name in t.columns else np.full(len(t), None) for t in tables]
            values[name] = np.concatenate(parts)
        order = there[np.argsort(paths[there], kind="stable")]
        return Found(
            files=files,
            tables=tuple(names),
            names=files.names[place[order]],
            paths=paths[order],
            values={name: column[order] for name, column in values.items()},
            n_rows=len(given),
            notes=(*notes, *files.notes),
        )

    def _file_column(self, table: str, rows: pd.DataFrame) -> str:
        """The column of file names."""
        if self.config.file:
            if self.config.file not in rows.columns:
                hint = did_you_mean(self.config.file, map(str, rows.columns))
                raise UserError(f"{self.name}: {table!r} has no column {self.config.file!r} (data.file){hint}")
            chosen = self.config.file
        else:
            lower = {str(column).strip().casefold(): str(column) for column in rows.columns}
            by_name = [lower[name] for name in FILE_COLUMNS if name in lower]
            by_value = [
                str(c) for c in rows.columns if any(is_image_name(str(v)) for v in rows[c].head(20) if v is not None)
            ]
            both = [name for name in by_name if name in by_value] or by_value or by_name
            if not both:
                raise UserError(
                    f"{self.name}: no column of {table!r} holds names of image files; say which does with "
                    f"--set data.file=COLUMN; it has {', '.join(map(str, rows.columns))}"
                )
            chosen = both[0]
        empty = np.flatnonzero(rows[chosen].isna())
        if len(empty):
            raise UserError(f"{self.name}: row {empty[0] + 1} of {table!r} names no file (column {chosen!r})")
        return chosen

    def _images(self, home: Path, root: Path, given: np.ndarray) -> tuple[ImageFiles, np.ndarray, list[str]]:
        """The folder or archive that holds the images, the place in it of each file given (-1: none), and what to note."""
        if self.config.images:
            files = ImageFiles(home / self.config.images, depth=None)
            return files, match(given, files.paths, self.config.images), []
        if root.is_file() and is_archive(root.name):
            files = ImageFiles(root)
            return files, match(given, files.paths), []
        best = ImageFiles(home, depth=None)
        place = match(given, best.paths)
        notes = []
        if (place < 0).any():  # an archive beside may hold more
            for path in archives_in(home):
                other = ImageFiles(path)
                found = match(given, other.paths)
                n, n_other = int((place >= 0).sum()), int((found >= 0).sum())
                if n_other > n:
                    if n:
                        notes.append(
                            f"{str(path)!r} is used, which holds {n_other:,} of the files; {str(best.root)!r} has {n:,}"
                        )
                    best.close()
                    best, place = other, found
                else:
                    other.close()
        return best, place, notes

    def _column(self, what: str, found: Found, usual: Sequence[str]) -> str:
        """The column that `data.split` or `data.identity` names, or that has a usual name; empty if there is none."""
        name: str = getattr(self.config, what)
        if name and name not in found.values:
            raise UserError(f"{self.name}: no column {name!r} (data.{what}){did_you_mean(name, found.values)}")
        lower = {column.strip().casefold(): column for column in found.values}
        return name or next((lower[one] for one in usual if one in lower), "")

    def columns(self, found: Found) -> tuple[dict[str, Column], dict[str, Target], dict[str, str]]:
        """Every column that may be a label; every target; and for the columns that are no target, why."""
        apart = {self._split_column(found), self._column("identity", found, IDENTITY_COLUMNS)}
        names = [name for name in found.values if name not in apart | self.hidden]
        for what in ("positive", "bin", "ordered"):
            for name in getattr(self.config, what):
                if name not in names:
                    raise UserError(f"{self.name}: no column {name!r} (data.{what}){did_you_mean(name, names)}")
        columns = {
            name: make_column(name, found.values[name], self.config.bin.get(name), self.config.ordered.get(name))
            for name in names
        }
        targets, why = {}, {}
        for name, column in columns.items():
            made, reason = make_target(column, self.config.positive.get(name))
            why[name] = reason
            if made is not None:
                targets[name] = made
        return columns, targets, why

    def _distinct(self, found: Found, progress: Progress) -> tuple[np.ndarray, list[str]]:
        """bool (N,): the images to keep of those with the same bytes; what was dropped."""
        keep = np.ones(len(found.names), dtype=bool)
        row_of = {str(name): row for row, name in enumerate(found.names)}
        same: dict[int, list[int]] = {}  # first file of those bytes -> rows
        first = found.files.same_content(progress)
        for i in np.flatnonzero(np.bincount(first, minlength=len(first))[first] > 1):
            row = row_of.get(str(found.files.names[i]))
            if row is not None:
                same.setdefault(int(first[i]), []).append(row)
        groups = [rows for rows in same.values() if len(rows) > 1]
        if not groups:
            return keep, []
        parts = self._given_parts(found)
        apart = {self._split_column(found), *self.hidden}
        labels = [values for name, values in found.values.items() if name not in apart]
        n_conflicts = 0
        for rows in groups:
            keep[rows] = False
            if any(len({values[row] for row in rows}) > 1 for values in labels):
                n_conflicts += 1
            else:  # in the last split that has it, so that nothing judged has been trained on
                keep[max(rows, key=lambda row: (0 if parts is None else parts[row], -row))] = True
        return keep, [
            f"duplicates: {counted(len(groups), 'group')} of byte-identical images; the {n_conflicts:,} whose rows differ are "
            f"dropped whole, of each other one is kept; {int(keep.sum()):,} of {len(keep):,} images remain"
        ]

    def _parts(self, found: Found, keep: np.ndarray, seed: int) -> tuple[np.ndarray, tuple[str, ...], tuple[str, ...]]:
        """int64 (N,): 0 train, 1 val, 2 test, -1 none; departures from the official splits; notes."""
        parts = self._given_parts(found, keep)
        name = self._column("identity", found, IDENTITY_COLUMNS)
        by = f"by {name}" if name else "by image"
        # An image whose person is unknown is a unit of its own.
        units = np.array(
            [
                str(path) if not name or found.values[name][i] is None else f"{name} {found.values[name][i]}"
                for i, path in enumerate(found.paths)
            ],
            dtype=str,
        )
        if parts is None:
            drawn = np.full(len(units), -1, dtype=np.int64)
            drawn[keep] = random_parts(units[keep], seed, self.config.val, self.config.test)
            sizes = _sizes(drawn)
            if self.official is not None:
                return drawn, (f"not the official splits: data.split={DRAWN}, drawn {by}: {sizes}",), ()
            return drawn, (), (f"splits: {sizes}, drawn {by}",)
        parts = np.where(keep, parts, -1)
        n_without = int((keep & (parts < 0)).sum())
        notes = (
            [f"splits: {counted(n_without, 'row has none and is', 'rows have none and are')} left out"]
            if n_without
            else []
        )
        if not (parts == 2).any():  # what is called validation is what is judged by
            parts[parts == 1] = 2
            notes.append("splits: the table's validation split is the test split")
        if not (parts == 1).any():
            train = np.flatnonzero(parts == 0)
            part = random_parts(units[train], seed, self.config.val, 0)
            parts[train[part == 1]] = 1
            n_val = int((part == 1).sum())
            notes.append(
                f"splits: {counted(n_val, 'training image')}, drawn {by}, {'is' if n_val == 1 else 'are'} the validation split"
            )
        shared = {u for u in units[parts == 0]} & {u for u in units[parts > 0]} if name else set()
        if shared:
            notes.append(
                f"identity: {counted(len(shared), 'person is', 'people are')} in training and in another split, as the table "
                "has it"
            )
        notes.append(f"splits: {_sizes(parts)}")
        if self.official is not None and self.config.split:
            return parts, (f"not the official splits: those of the column {self.config.split!r}",), tuple(notes)
        return parts, (), tuple(notes)


def known_names(card: Card) -> list[str]:
    """Every target and attribute, once."""
    return [*dict.fromkeys([*card.targets, *card.attributes])]


def _sizes(parts: np.ndarray) -> str:
    return ", ".join(f"{name} {int((parts == i).sum()):,}" for i, name in enumerate(PARTS))


def _missing(name: str, codes: np.ndarray, what: str) -> list[str]:
    n = int((codes < 0).sum())
    return [f"missing values: {n:,} of {len(codes):,} images have no {name} and are {what}"] if n else []
