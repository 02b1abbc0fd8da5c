"""`fairssl data`: which datasets are here, decode one beforehand, check one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairssl.cli._paths import parse_path
from fairssl.progress import reporter
from fairssl.registry import did_you_mean
from fairssl.types import Progress, UserError

if TYPE_CHECKING:
    import numpy as np

    from fairssl.interfaces import Dataset
    from fairssl.types import Split, Splits

app = typer.Typer(help="Datasets: list them, prepare one, verify one.", no_args_is_help=True)

DATA_DIR = typer.Option(
    None, "--data-dir", parser=parse_path, help="Folder or zip; else FAIRSSL_DATA, else the per-user folder."
)
TARGET = typer.Option(None, "--target", help="Default: the dataset's card.")
ATTRIBUTE = typer.Option(None, "--attr", help="Sensitive attribute. Default: the dataset's card.")
IMAGE_SIZE = typer.Option(None, "--image-size", help="Pixels. Default: the dataset's card, at most the stored size.")
JSON = typer.Option(False, "--json", help="Print JSON.")
PARTS = ("train", "val", "test")


# --------------------------------------------------------------------------- commands


@app.command("list")
def list_(data_dir: Path | None = DATA_DIR, as_json: bool = JSON) -> None:
    """Every dataset with its licence, and whether it was found."""
    from fairssl import kinds

    rows = []
    for name in kinds.datasets.where():
        dataset = kinds.datasets.build(name, {})
        card = dataset.card
        row: dict[str, Any] = {
            "name": name,
            "title": card.title,
            "licence": card.licence,
            "source": card.source,
            "citation": card.citation,
            "embedded": card.embedded,
            "targets": list(card.targets),
            "attributes": {attribute: list(groups) for attribute, groups in card.attributes.items()},
            "found": True,
            "root": None,
            "images": None,
            "missing": None,
        }
        try:
            root = _root(dataset, data_dir)
            row["images"] = dataset.inspect(root).n_images
            row["root"] = str(root) if root else None
        except UserError as error:
            row["found"], row["missing"] = False, str(error)
        rows.append(row)
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        where = "embedded" if row["embedded"] else f"in {row['root']}"
        state = f"{row['images']:,} images, {where}" if row["found"] else f"not found: {row['missing']}"
        typer.echo(f"{row['name']}: {row['title']}\n  licence     {row['licence']}")
        typer.echo(f"  targets     {_shorten(row['targets'])}\n  attributes  {_shorten(row['attributes'])}\n  {state}")


@app.command()
def prepare(
    name: str,
    data_dir: Path | None = DATA_DIR,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    image_size: int | None = IMAGE_SIZE,
    as_json: bool = JSON,
) -> None:
    """Decode a dataset's images once, and print its splits and how its labels go together."""
    from fairssl import kinds

    dataset = kinds.datasets.build(name, {})
    target, attr = _choose(name, dataset, target, attr)
    root = _root(dataset, data_dir)
    size = _size(name, dataset, root, image_size)
    with _progress() as progress:
        splits = dataset.load(root, target, attr, size, progress=progress)
        scope, phi = _correlations(dataset, root, size, target)
    if as_json:
        _print_json(
            {
                "name": name,
                "target": target,
                "attribute": attr,
                "image_size": size,
                "splits": {part: _counts(getattr(splits, part), splits.groups) for part in PARTS},
                "notes": list(splits.notes),
                "correlation": {"over": scope, **phi},
            }
        )
        return
    typer.echo(f"{name}: {dataset.card.title}, {size} px, target {target}, attribute {attr}")
    typer.echo(_cells(splits, target))
    typer.echo(f"correlation with the target {target} over {scope} (phi; Cramér's V for more than two groups)")
    column = phi[target]
    for attribute in sorted(column, key=lambda a: (-abs(column[a] or 0), a)):
        value = column[attribute]
        typer.echo(f"  {attribute:<20} {'undefined: one value' if value is None else f'{value:+.3f}'}")
    for note in splits.notes:
        typer.echo(f"note: {note}")


@app.command()
def verify(
    name: str,
    data_dir: Path | None = DATA_DIR,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    image_size: int | None = IMAGE_SIZE,
    as_json: bool = JSON,
) -> None:
    """Read and decode everything anew; look for images in two splits, corrupt files and a cache that is out of date.

    Exit code 1 if any of these is found. Malformed names are listed; that they are skipped is not a fault.
    """
    from fairssl import kinds
    from fairssl.data.files import fresh_cache

    dataset = kinds.datasets.build(name, {})
    target, attr = _choose(name, dataset, target, attr)
    root = _root(dataset, data_dir)
    size = _size(name, dataset, root, image_size)
    with _progress() as progress:
        used = dataset.inspect(root).fingerprint
        before, _, _ = _examine(dataset.load(root, target, attr, size, progress=progress))
        with fresh_cache():
            fingerprint = dataset.inspect(root).fingerprint
            after, shared, notes = _examine(dataset.load(root, target, attr, size, progress=progress))
    corrupt = [note for note in notes if note.startswith("corrupt:")]
    faults = list(corrupt)
    if fingerprint != used:
        faults.append("cache: a file changed without a change of size or time; delete the cache folder")
    elif before != after:
        faults.append("cache: the cached images or splits differ from the files; delete the cache folder")
    for pair, groups in shared.items():
        counts = ", ".join(f"{group} {n}" for group, n in groups["n"].items())
        same = ", ".join(" = ".join(ids) for ids in groups["examples"])
        faults.append(f"duplicates: {sum(groups['n'].values())} images are in {pair} ({counts}): {same}")
    if as_json:
        _print_json(
            {
                "name": name,
                "fingerprint": fingerprint,
                "splits": after,
                "cross_split_duplicates": shared,
                "notes": notes,
                "faults": faults,
            }
        )
    else:
        typer.echo(
            f"{name}: {size} px, target {target}, attribute {attr}\nfingerprint {fingerprint}\nsplits      {after}"
        )
        for note in notes:
            if note not in corrupt:
                typer.echo(f"note: {note}")
        for fault in faults:
            typer.echo(f"fault: {fault}")
        typer.echo("faults found: " + str(len(faults)) if faults else "no fault: no image in two splits, none corrupt")
    if faults:
        raise typer.Exit(1)


# --------------------------------------------------------------------------- what they do


def _root(dataset: Dataset, data_dir: Path | None) -> Path | None:
    from fairssl.data.files import data_root

    return None if dataset.card.embedded else data_root(data_dir, dataset.name)


def _choose(name: str, dataset: Dataset, target: str | None, attribute: str | None) -> tuple[str, str]:
    """Target and attribute, from the card where not given; a name that the card lacks is a `UserError`."""

    card = dataset.card
    target, attribute = target or card.defaults.target, attribute or card.defaults.attribute
    for flag, value, known in (("--target", target, card.targets), ("--attr", attribute, card.attributes)):
        if value not in known:
            raise UserError(f"{flag} {value!r}: {name} does not have it{did_you_mean(value, known)}")
    return target, attribute


def _size(name: str, dataset: Dataset, root: Path | None, asked: int | None) -> int:
    """Pixels: as asked, never above the stored size; the card's, lowered to it."""
    stored = dataset.inspect(root).max_image_size
    if asked is None:
        default = dataset.card.defaults.image_size
        return default if stored is None else min(default, stored)
    if asked < 8:
        raise UserError(f"--image-size {asked}: must be at least 8")
    if stored is not None and asked > stored:
        raise UserError(f"--image-size {asked}: the images of {name} are stored at {stored} px; at most that")
    return asked


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A `Progress` that shows on stderr."""
    with reporter() as log:
        yield log.stage


def _counts(split: Split, groups: tuple[str, ...]) -> dict[str, Any]:
    """Images in all, and by target and group: {"n": 8, "cells": {"0": {"Caucasian": 2, ...}, "1": ...}}."""
    cells = {
        str(y): {label: int(((split.target == y) & (split.group == a)).sum()) for a, label in enumerate(groups)}
        for y in (0, 1)
    }
    return {"n": len(split), "cells": cells}


def _cells(splits: Splits, target: str) -> str:
    """A table of counts, one row per split and target."""
    rows = [["split", target, *splits.groups, "all"]]
    for part in PARTS:
        for y, cells in _counts(getattr(splits, part), splits.groups)["cells"].items():
            rows.append([part, y, *(f"{n:,}" for n in cells.values()), f"{sum(cells.values()):,}"])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  " + "  ".join(text.rjust(w) for text, w in zip(row, widths, strict=True)) for row in rows)


def _correlations(
    dataset: Dataset, root: Path | None, size: int, target: str
) -> tuple[str, dict[str, dict[str, float | None]]]:
    """Over which images, and target -> attribute -> association. Every target if labels are at hand, else `target`."""
    card = dataset.card
    codes = dataset.labels(root)
    if codes is not None:
        n = len(next(iter(codes.values())))
        pairs = {t: {a: association(codes[t], codes[a]) for a in card.attributes if a != t} for t in card.targets}
        return f"all {n:,} images", pairs
    column: dict[str, float | None] = {}
    n = 0
    for attribute in card.attributes:
        if attribute != target:
            train = dataset.load(root, target, attribute, size).train
            column[attribute], n = association(train.target, train.group), len(train)
    return f"the {n:,} training images", {target: column}


def association(target: np.ndarray, group: np.ndarray) -> float | None:
    """Phi, in [-1, 1], of a binary target (N,) and a binary group (N,); Cramér's V, in [0, 1], for more groups.

    Images whose group is unknown (-1) do not count. None if either has a single value: there is nothing to correlate.
    """
    import numpy as np

    known = group >= 0
    _, rows = np.unique(target[known], return_inverse=True)
    values, columns = np.unique(group[known], return_inverse=True)
    table = np.zeros((rows.max(initial=-1) + 1, len(values)))
    np.add.at(table, (rows, columns), 1)
    if min(table.shape) < 2:
        return None
    if table.shape == (2, 2):
        margins = table.sum(0).prod() * table.sum(1).prod()
        return float((table[0, 0] * table[1, 1] - table[0, 1] * table[1, 0]) / np.sqrt(margins))
    expected = np.outer(table.sum(1), table.sum(0)) / table.sum()
    chi2 = ((table - expected) ** 2 / expected).sum()
    return float(np.sqrt(chi2 / table.sum() / (min(table.shape) - 1)))


def _examine(splits: Splits) -> tuple[str, dict[str, Any], list[str]]:
    """A hash of the splits' ids, labels and pixels; what two splits share; the notes. Keeps no image.

    Shared: "train and test" -> {"n": {group: images of the later split}, "examples": at most 3 pairs of ids}.
    """
    import hashlib

    whole = hashlib.sha256()
    seen: dict[bytes, dict[str, str]] = {}
    shared: dict[str, Any] = {}
    for part in PARTS:
        split: Split = getattr(splits, part)
        whole.update("\0".join((part, *split.ids)).encode() + split.target.tobytes() + split.group.tobytes())
        for i, image in enumerate(split.images):
            content = hashlib.blake2b(image.tobytes(), digest_size=16).digest()
            whole.update(content)
            owners = seen.setdefault(content, {})
            for other, name in owners.items():
                if other != part:
                    entry = shared.setdefault(
                        f"{other} and {part}", {"n": dict.fromkeys(splits.groups, 0), "examples": []}
                    )
                    entry["n"][splits.groups[split.group[i]]] += 1
                    if len(entry["examples"]) < 3:
                        entry["examples"].append([name, split.ids[i]])
            owners.setdefault(part, split.ids[i])
    return whole.hexdigest(), shared, list(splits.notes)


def _shorten(names: list[str] | Mapping[str, Any]) -> str:
    shown = list(names)
    return ", ".join(shown[:6]) + (f", ... ({len(shown)})" if len(shown) > 6 else "")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
