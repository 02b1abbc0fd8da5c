"""`fairssl data`: which datasets are here, what your own hold, decode one beforehand, check one."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairssl.cli._paths import parse_path
from fairssl.cli._table import echo_hanging
from fairssl.progress import reporter
from fairssl.types import Progress, UserError, counted, printable

if TYPE_CHECKING:
    import numpy as np

    from fairssl.interfaces import Dataset
    from fairssl.spec.run import DataSpec
    from fairssl.types import Card, Split, Splits

app = typer.Typer(help="Datasets: list them, describe your own, prepare one, verify one.", no_args_is_help=True)

DATA_DIR = typer.Option(
    None,
    "--data-dir",
    metavar="PATH",
    parser=parse_path,
    help="Folder or archive; else FAIRSSL_DATA, else the per-user folder.",
)
TARGET = typer.Option(None, "--target", help="Default: the dataset's card.")
ATTRIBUTE = typer.Option(None, "--attr", help="Sensitive attribute. Default: the dataset's card.")
IMAGE_SIZE = typer.Option(None, "--image-size", help="Pixels. Default: the dataset's card, at most the stored size.")
SET = typer.Option([], "--set", help="A parameter of the dataset, as data.min_cell=1. Repeat it.")
JSON = typer.Option(False, "--json", help="Print JSON.")
PARTS = ("train", "val", "test")


@app.command("list")
def list_(data_dir: Path | None = DATA_DIR, as_json: bool = JSON) -> None:
    """Every dataset with its licence, and whether it was found.

    Example:

        fairssl data list
    """
    from fairssl.data.overview import overview

    rows: list[dict[str, Any]] = []
    for state in overview(data_dir):
        card = state.card
        about = {name: getattr(card, name, None) for name in ("title", "licence", "source", "citation", "embedded")}
        rows.append(
            {
                "name": state.name,
                **about,
                "targets": list(card.targets) if card else None,
                "attributes": {name: list(groups) for name, groups in card.attributes.items()} if card else None,
                "found": state.found,
                "root": state.where,
                "images": state.n_images,
                "missing": state.missing,
                "broken": state.fault,
            }
        )
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        if row["title"]:
            labels = [_shorten(row[kind]) or "the columns of your table" for kind in ("targets", "attributes")]
            echo_hanging("", f"{row['name']}: {row['title']}")
            for what, text in (("licence", row["licence"]), ("targets", labels[0]), ("attributes", labels[1])):
                echo_hanging(f"  {what:12}", text)
        else:
            typer.echo(f"{row['name']}:")
        where = "embedded" if row["embedded"] else f"in {row['root']}"
        not_here = f"broken: {row['broken']}" if row["broken"] else f"not found: {row['missing']}"
        echo_hanging("  ", f"{counted(row['images'], 'image')}, {where}" if row["found"] else not_here)


@app.command()
def prepare(
    name: str,
    data_dir: Path | None = DATA_DIR,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    image_size: int | None = IMAGE_SIZE,
    set_: list[str] = SET,
    as_json: bool = JSON,
) -> None:
    """Decode a dataset's images once, and print its splits and how its labels go together.

    Example:

        fairssl data prepare utkface --attr age --data-dir ~/data/UTKFace
    """
    from fairssl.data.splits import load_splits

    with _progress() as progress:
        chosen = _choose(name, data_dir, target, attr, image_size, set_, progress)
        data = chosen.data
        splits = load_splits(data, chosen.root, progress)
        scope, phi = _correlations(chosen)
    if as_json:
        _print_json(
            {
                "name": name,
                "target": data.target,
                "attribute": data.attribute,
                "image_size": data.image_size,
                "splits": _counts(splits),
                "departures": list(splits.departures),
                "notes": list(splits.notes),
                "correlation": {"over": scope, **phi},
            }
        )
        return
    echo_hanging(
        "", f"{name}: {chosen.card.title}, {data.image_size} px, target {data.target}, attribute {data.attribute}"
    )
    typer.echo(_table(_counts(splits), data.target))
    echo_hanging(
        "", f"correlation with the target {data.target} over {scope} (phi; Cramér's V for more than two groups)"
    )
    column = phi[data.target]
    for attribute in sorted(column, key=lambda a: (-abs(column[a] or 0), a)):
        value = column[attribute]
        typer.echo(f"  {attribute:<20} {'undefined: one value' if value is None else f'{value:+.3f}'}")
    _echo_notes(splits.departures, splits.notes)


@app.command()
def verify(
    name: str,
    data_dir: Path | None = DATA_DIR,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    image_size: int | None = IMAGE_SIZE,
    set_: list[str] = SET,
    as_json: bool = JSON,
) -> None:
    """Read and decode everything anew; look for images in two splits, corrupt files and a cache that is out of date.

    Exit code 1 if any of these is found. Malformed names, names that are not UTF-8, and a test split that bench would
    refuse as too small are listed; that is no fault of the files.

    Example:

        fairssl data verify celeba --data-dir ~/data/celeba
    """
    from fairssl.data.overview import inspect
    from fairssl.data.places import cache_folder, fresh_cache, fresh_start
    from fairssl.data.splits import load_splits, small_cell, smallest_cell
    from fairssl.interfaces import MIN_CELL

    with _progress() as progress:
        chosen = _choose(name, data_dir, target, attr, image_size, set_, progress)
        data, root = chosen.data, chosen.root
        before = _examine(load_splits(data, root, progress, min_cell=0)).digest
        with fresh_cache():
            fingerprint = inspect(chosen.source, root, progress).fingerprint
            splits = load_splits(data, root, progress, min_cell=0)
            found = _examine(splits)
    corrupt = [note for note in splits.notes if note.startswith("corrupt:")]
    notes = [note for note in splits.notes if note not in corrupt]
    faults = list(corrupt)
    n, y, group = smallest_cell(splits)
    min_cell = getattr(chosen.source.config, "min_cell", MIN_CELL)
    if n < min_cell:
        notes.append(f"too small to be judged: {small_cell(data, n, y, splits.groups[group], min_cell)}")
    if fingerprint != data.fingerprint:
        faults.append(f"cache: a file changed without a change of size or time; {fresh_start(cache_folder())}")
    elif before != found.digest:
        faults.append(f"cache: the cached images or splits differ from the files; {fresh_start(cache_folder())}")
    for pair, groups in found.shared.items():
        counts = ", ".join(f"{group} {n}" for group, n in groups["n"].items())
        same = ", ".join(" = ".join(ids) for ids in groups["examples"])
        faults.append(
            f"duplicates: {counted(sum(groups['n'].values()), 'image is', 'images are')} in {pair} ({counts}): {same}"
        )
    if as_json:
        _print_json(
            {
                "name": name,
                "fingerprint": fingerprint,
                "splits": found.digest,
                "cross_split_duplicates": found.shared,
                "departures": list(splits.departures),
                "notes": [*corrupt, *notes],
                "faults": faults,
            }
        )
    else:
        typer.echo(
            f"{name}: {data.image_size} px, target {data.target}, attribute {data.attribute}\n"
            f"fingerprint {fingerprint}\nsplits      {found.digest}"
        )
        _echo_notes(splits.departures, notes)
        for fault in faults:
            echo_hanging("fault: ", fault)
        typer.echo("faults found: " + str(len(faults)) if faults else "no fault: no image in two splits, none corrupt")
    if faults:
        raise typer.Exit(1)


@app.command()
def show(
    name: str,
    data_dir: Path | None = DATA_DIR,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    image_size: int | None = IMAGE_SIZE,
    set_: list[str] = SET,
    images: int = typer.Option(8, "--images", help="Of each target and group."),
    out: Path = typer.Option(Path("figures"), "--out", parser=parse_path, help="Folder for the PNG and the PDF."),
) -> None:
    """Draw training images of each target and group as the training loop sees them, plain and augmented.

    Example:

        fairssl data show synthfaces --attr young
    """
    from fairssl.data.splits import load_splits
    from fairssl.figures.sheet import show_dataset

    with _progress() as progress:
        chosen = _choose(name, data_dir, target, attr, image_size, set_, progress)
        splits = load_splits(chosen.data, chosen.root, progress, min_cell=0)
    for path in show_dataset(chosen.data, splits, out, images):
        typer.echo(path)


@app.command()
def describe(
    data_dir: Path = typer.Argument(
        ..., metavar="DIR", parser=parse_path, help="Folder or archive of images, or the table itself."
    ),
    table: str | None = typer.Option(
        None, "--table", metavar="FILE", help="CSV or Parquet. Default: the only one there."
    ),
    target: str | None = typer.Option(None, "--target", help="Count this target alone."),
    attr: str | None = typer.Option(None, "--attr", help="Count this sensitive attribute alone."),
    set_: list[str] = typer.Option([], "--set", help="How to read the table, as data.bin=age:35+60. Repeat it."),
    as_json: bool = JSON,
) -> None:
    """Look at images of your own and their table: columns, values, counts per target and group, what cannot be read, what is
    there twice, and a command to start with.

    Example:

        fairssl data describe ~/faces --table faces.csv
    """
    from fairssl import kinds
    from fairssl.data import describe as look
    from fairssl.data.places import data_root
    from fairssl.interfaces import check_label

    root = data_root(data_dir, "folder")
    params = dict(_parameters(set_))
    if table is not None:
        params["table"] = look.table_below(root, table)
    dataset = kinds.datasets.build("folder", params)
    card = dataset.card_for(root)
    if target is not None:
        check_label("--target", "folder", card, "target", target)
    if attr is not None:
        check_label("--attr", "folder", card, "attribute", attr)
    with _progress() as progress:
        found = look.describe(dataset, root, target, attr, progress)
    if as_json:
        _print_json(found)
    else:
        typer.echo(_described(found))


@dataclass(frozen=True)
class _Chosen:
    """A dataset, where it lies, its card there, and the spec of what is asked of it."""

    source: Dataset
    root: Path | None
    card: Card
    data: DataSpec


def _choose(
    name: str,
    data_dir: Path | None,
    target: str | None,
    attribute: str | None,
    image_size: int | None,
    assignments: list[str],
    progress: Progress,
) -> _Chosen:
    """What a command is about: target, attribute and size from the card where not given; what the card lacks, or an image
    size above the stored one, is a `UserError`."""
    from fairssl import kinds
    from fairssl.data.overview import card_at, inspect, root_of
    from fairssl.interfaces import check_label, in_card_order
    from fairssl.spec.run import DataSpec

    source = kinds.datasets.build(name, _parameters(assignments))

    def labels(card: Card) -> tuple[str, str]:
        chosen = target or card.defaults.target, attribute or card.defaults.attribute
        check_label("--target", name, card, "target", chosen[0])
        check_label("--attr", name, card, "attribute", chosen[1])
        return chosen[0], in_card_order(card, chosen[1])

    if source.card.targets:  # known without the data, and so is a mistake
        labels(source.card)
    root = root_of(source, data_dir)
    card = card_at(source, root)
    y, a = labels(card)
    facts = inspect(source, root, progress)
    data = DataSpec(
        dataset=source.name,
        version=source.version,
        params=source.config.params(),
        fingerprint=facts.fingerprint,
        image_size=_size(name, card, facts.max_image_size, image_size),
        target=y,
        attribute=a,
    )
    return _Chosen(source, root, card, data)


def _parameters(assignments: list[str]) -> Mapping[str, str]:
    """`["data.min_cell=1"]` -> `{"min_cell": "1"}`."""
    from fairssl.spec.method import parse_set

    values = parse_set(assignments)
    for part in values:
        if part != "data":
            raise UserError(f"--set {part}: here only the dataset's own parameters are set, as data.min_cell=1")
    return values.get("data", {})


def _size(name: str, card: Card, stored: int | None, asked: int | None) -> int:
    """Pixels: as asked, never above the stored size; the card's, lowered to it."""
    if asked is None:
        default = card.defaults.image_size
        return default if stored is None else min(default, stored)
    if asked < 8:
        raise UserError(f"--image-size {asked}: must be at least 8")
    if stored is not None and asked > stored:
        raise UserError(f"--image-size {asked}: the images of {name} are stored at {stored} px; at most that")
    return asked


def _echo_notes(departures: Sequence[str], notes: Sequence[str]) -> None:
    for departure in departures:
        echo_hanging("departure: ", departure)
    for note in notes:
        echo_hanging("note: ", note)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A `Progress` that shows on stderr."""
    with reporter() as log:
        yield log.stage


def _counts(splits: Splits) -> dict[str, Any]:
    """Of each split, images in all, and by target and group: {"train": {"n": 8, "cells": {"0": {"Caucasian": 2, ...}, ...}}}.

    A last group "unknown" is there if it is in one of the splits.
    """
    found = {part: getattr(splits, part) for part in PARTS}
    groups = dict(enumerate(splits.groups))
    if any((split.group < 0).any() for split in found.values()):
        groups[-1] = "unknown"
    return {
        part: {
            "n": len(split),
            "cells": {
                str(y): {label: int(((split.target == y) & (split.group == a)).sum()) for a, label in groups.items()}
                for y in (0, 1)
            },
        }
        for part, split in found.items()
    }


def _table(counts: Mapping[str, Any], target: str) -> str:
    """Of the counts, one row per split and target."""
    rows = []
    for part, of_part in counts.items():
        for y, cells in of_part["cells"].items():
            rows.append([part, y, *(f"{n:,}" for n in cells.values()), f"{sum(cells.values()):,}"])
            heading = ["split", target, *cells, "all"]
    return "\n".join(_aligned([heading, *rows]))


def _correlations(chosen: _Chosen) -> tuple[str, dict[str, dict[str, float | None]]]:
    """Over which images, and target -> attribute -> association. Every target if labels are at hand, else the chosen one."""
    source, card, data = chosen.source, chosen.card, chosen.data
    codes = source.labels(chosen.root)
    if codes is not None:
        n = len(next(iter(codes.values())))
        pairs = {t: {a: association(codes[t], codes[a]) for a in card.attributes if a != t} for t in card.targets}
        return f"all {n:,} images", pairs
    column: dict[str, float | None] = {}
    n = 0
    for attribute in card.attributes:
        if attribute != data.target:
            train = source.load(chosen.root, data.target, attribute, data.image_size).train
            column[attribute], n = association(train.target, train.group), len(train)
    return f"the {n:,} training images", {data.target: column}


def association(target: np.ndarray, group: np.ndarray) -> float | None:
    """Phi, in [-1, 1], of a binary target (N,) and a binary group (N,); Cramér's V, in [0, 1], for more groups.

    Images whose target or group is unknown (-1) do not count. None if either has a single value: nothing to correlate.
    """
    import numpy as np

    known = (group >= 0) & (target >= 0)
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


@dataclass(frozen=True)
class _Examined:
    """A hash of the splits' ids, labels and pixels; and what two splits share: "train and test" -> {"n": {group: images of
    the later split}, "examples": at most 3 pairs of ids}."""

    digest: str
    shared: Mapping[str, Any]


def _examine(splits: Splits) -> _Examined:
    """Look at every image, and keep none."""
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
                    entry = shared.setdefault(f"{other} and {part}", {"n": {}, "examples": []})
                    group = splits.groups[split.group[i]] if split.group[i] >= 0 else "unknown"
                    entry["n"].setdefault(group, 0)
                    entry["n"][group] += 1
                    if len(entry["examples"]) < 3:
                        entry["examples"].append([name, split.ids[i]])
            owners.setdefault(part, split.ids[i])
    order = [*splits.groups, "unknown"]
    for entry in shared.values():
        entry["n"] = {group: entry["n"].get(group, 0) for group in order if group in entry["n"] or group != "unknown"}
    return _Examined(whole.hexdigest(), shared)


def _described(found: Mapping[str, Any]) -> str:
    side = "" if found["shorter_side"] is None else f", shorter side {found['shorter_side']} px"
    lines = [
        f"{found['root']}, {', '.join(found['tables'])}: {counted(found['rows'], 'row')}, {found['images']:,} with an image{side}"
    ]
    lines += [f"  {note}" for note in found["notes"]]
    bad, same = found["unreadable"], found["duplicates"]
    if bad["n"]:
        lines.append(
            f"  unreadable: {counted(bad['n'], 'image')}: {'; '.join(bad['examples'][:5])}{'; ...' if bad['n'] > 5 else ''}"
        )
    if same["groups"]:
        examples = "; ".join(" = ".join(names) for names in same["examples"])
        lines.append(
            f"  duplicates: {same['images']:,} images in {counted(same['groups'], 'group')} of equal bytes: {examples}"
        )
    if not bad["n"] and not same["groups"]:
        lines.append("  every image decodes, none is there twice")
    lines += ["", "columns"]
    for column in found["columns"]:
        values = [f"{value} {n:,}" for value, n in column["values"].items()]
        more = ", ..." if column["n_values"] > len(values) and not column["attribute"] else ""
        missing = f"; {column['missing']:,} missing" if column["missing"] else ""
        order = " (ordered)" if column["ordered"] else ""
        lines.append(
            f"  {printable(column['name'])}{order}: {', '.join(values[:8])}{', ...' if len(values) > 8 else more}{missing}"
        )
        use = [f"target, y = 1 is {printable(column['target'])}"] if column["target"] else []
        use += ["attribute"] if column["attribute"] else []
        lines.append(f"    {'; '.join(use)}" if use else f"    {printable(column['no_attribute'])}")
        if column["no_target"] and column["attribute"]:
            lines.append(f"    {printable(column['no_target'])}")
    if found["pairs"]:
        lines += ["", "images per target and group"]
    for pair in found["pairs"]:
        name = printable(pair["target"])
        rows = [[f"{name} = {y}", *(f"{n:,}" for n in cells.values())] for y, cells in pair["cells"].items()]
        heading = [f"{printable(pair['attribute'])}:", *pair["cells"]["0"]]
        lines += _aligned([heading, *rows])
        test = pair["test_cells"]
        if test is not None:
            n, y, group = min((n, y, group) for y, cells in test.items() for group, n in cells.items())
            lines.append(f"    fewest of them in the test split: {n:,} of {name} = {y}, {group}")
        if pair["unknown"]:
            lines.append(f"    {counted(pair['unknown'], 'image lacks', 'images lack')} one of the two")
    command, note = found["command"], found["command_note"]
    said = printable(note or "")
    lines += ["", *([f"note: {said}"] if command and note else []), command or f"no command: {said}"]
    return "\n".join(lines)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(text.rjust(w) for text, w in zip(row, widths, strict=True)) for row in rows]


def _shorten(names: list[str] | Mapping[str, Any]) -> str:
    shown = list(names)
    return ", ".join(shown[:6]) + (f", ... ({len(shown)})" if len(shown) > 6 else "")


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))
