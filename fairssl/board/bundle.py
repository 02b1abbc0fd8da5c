"""Runs as one file for others, and a stranger's runs into a folder of one's own."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

from fairssl import scoring
from fairssl.board.build import BoardMaker
from fairssl.board.files import check_names, open_source, predictions_name, read_predictions, read_records
from fairssl.board.html import to_html
from fairssl.board.latex import to_latex
from fairssl.board.markdown import to_markdown
from fairssl.board.recompute import disagreements, judged_anew
from fairssl.board.rows import build
from fairssl.board.verify import data_of, labels_of
from fairssl.board.wanted import wanted_of_grid
from fairssl.spec.run import key_of
from fairssl.store.files import StoreError, whole_file
from fairssl.store.record import Predictions, Record
from fairssl.store.runs import RunStore
from fairssl.types import UserError

REPORTED = (
    "from a bundle: metrics, counts, noise floors and intervals computed from its predictions; the rest as reported"
)


@dataclass(frozen=True)
class Added:
    """What `add` did."""

    n_new: int
    n_known: int  # runs that were there already, and stay as they are


def export(runs: Path, out: Path, grid: str | None = None) -> int:
    """Write the runs of a folder, or a grid's, as one zip file, and give how many. Equal runs, equal bytes.

    It holds records.jsonl, predictions/<key>.csv.gz and manifest.json.
    """
    store = RunStore(runs)
    wanted = None if grid is None else wanted_of_grid(grid)
    maker = BoardMaker(wanted)
    lines: list[bytes] = []
    packed: dict[str, bytes] = {}
    for record, line in store.records_and_lines():
        if wanted is not None and not wanted.has(record.spec):
            continue
        data = None
        if record.state == "ok":
            path = store.result_dir(record.key) / "predictions.csv.gz"
            try:
                data = packed[predictions_name(record.key)] = path.read_bytes()
            except OSError as error:
                raise UserError(f"{path} cannot be read: {error.strerror}; run the same command again") from error
        maker.add(record, data)
        maker.hashed(line)
        lines.append(line)
    if not lines:
        raise UserError(f"{runs} holds no results{f' of the grid {grid}' if grid else ''}; run `fairssl bench` first")
    content = {"manifest.json": maker.texts()["manifest.json"], "records.jsonl": b"".join(lines), **packed}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name)  # of 1980: no time goes into the bytes
            entry.compress_type = zipfile.ZIP_STORED if name.endswith(".gz") else zipfile.ZIP_DEFLATED
            entry.external_attr = 0o644 << 16
            file.writestr(entry, content[name])
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(out, error) from error
    with whole_file(out) as target:
        target.write(made.getvalue())
    return len(lines)


def add(bundle: Path, runs: Path) -> Added:
    """Take a stranger's runs into a runs folder: all, or none and the reason as a `UserError`.

    `bundle`: a zip file of `export`, or a folder with the same files. Everything that predictions tell is computed from
    them and must be what the record says; each key must be that of its spec; the test labels must be those of our own runs
    on the same data. Nothing is executed or unpickled, no name leads out of the bundle, and sizes are bounded.
    """
    source = open_source(bundle)
    check_names(source)
    store = RunStore(runs)
    metrics = scoring.columns()
    ours = {data_of(r): r.key for r in store.records() if r.state == "ok"} if runs.is_dir() else {}
    taken: list[tuple[Record, Predictions | None]] = []
    for record in read_records(source):
        what = f"{source.name}: run {record.key}"
        if key_of(record.spec) != record.key:
            raise UserError(f"{what}: its spec has the key {key_of(record.spec)}; the spec or the key was changed")
        unknown = sorted(set(record.metrics) - {m.symbol for m in metrics})
        if unknown:
            raise UserError(f"{what}: {', '.join(unknown)} cannot be computed here; install the package it comes from")
        predictions = read_predictions(source, record.key) if record.state == "ok" else None
        if predictions is not None:
            wrong = disagreements(record, predictions, metrics)
            if wrong:
                raise UserError(f"{what}: {wrong[0]}")
            mine = store.read_predictions(ours[data_of(record)]) if data_of(record) in ours else None
            if mine is not None and labels_of(mine) != labels_of(predictions):
                raise UserError(f"{what}: other test images or labels than {ours[data_of(record)]} on the same data")
            record = judged_anew(record, predictions, metrics)
            record = record.model_copy(update={"notes": [*record.notes, REPORTED]})
        _check_shown(record, what)
        taken.append((record, predictions))
    if not taken:
        raise UserError(f"{source.name} holds no records")
    known = {record.key for record, _ in taken if store.state(record.key) == "ok"} if runs.is_dir() else set()
    new = [(record, predictions) for record, predictions in taken if record.key not in known]
    if new:
        store.create()
    for record, predictions in new:
        store.write_result(record, predictions)
    return Added(len(new), len(known))


def _check_shown(record: Record, what: str) -> None:
    """Refuse a record whose free-form facts no table can be made of."""
    try:
        tables = build([record])
        for render in (to_markdown, to_latex, to_html):
            render(*tables).encode()
    except UserError:
        raise
    except Exception as error:  # whatever a stranger wrote where text or numbers belong
        raise UserError(f"{what}: no table can be made of it ({type(error).__name__}: {error})") from error
