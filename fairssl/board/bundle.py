"""Runs as one file for others, and a stranger's runs into a folder of one's own."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fairssl import scoring
from fairssl.board.build import MANIFEST_VERSION, BoardMaker
from fairssl.board.files import (
    MAX_JSONL,
    MAX_PACKED,
    PREDICTIONS,
    Source,
    check_names,
    open_source,
    predictions_name,
    read_manifest,
    read_predictions,
    read_records,
    sha256,
)
from fairssl.board.html import to_html
from fairssl.board.latex import to_latex
from fairssl.board.markdown import to_markdown
from fairssl.board.recompute import disagreements, judged_anew
from fairssl.board.reported import impossible
from fairssl.board.rows import build
from fairssl.board.runs import BoardRuns, left_out, only_trials
from fairssl.board.verify import against_manifest, alike, data_of, labels_of, lacking
from fairssl.board.wanted import wanted_of_grid
from fairssl.spec.run import key_of
from fairssl.store.files import StoreError, whole_file
from fairssl.store.record import ColumnFacts, Predictions, Record
from fairssl.store.runs import RunStore
from fairssl.types import UserError, printable

REPORTED = (
    "from a bundle: metrics, counts, noise floors and intervals computed from its predictions; the rest as reported"
)


@dataclass(frozen=True)
class Added:
    """What `add` did."""

    n_new: int
    n_known: int  # runs that were there already with the same results, and stay as they are
    kept: tuple[str, ...] = ()  # keys of runs that ended well here and not there: ours stay


@dataclass(frozen=True)
class Exported:
    """What `export` wrote."""

    n_records: int
    n_trials: int  # runs left out: tried by `fairssl tune` and not chosen

    @property
    def left_out(self) -> str:
        """How many runs are left out and how to have them, in one line; empty where none is."""
        return left_out(self.n_trials, "a --grid that names such runs exports them")


def export(runs: Path, out: Path, grid: str | None = None) -> Exported:
    """Write the runs of a folder, or a grid's, as one zip file. Equal runs, equal bytes. Runs that a search
    tried and did not choose are left out unless the grid has them.

    It holds records.jsonl, predictions/<key>.csv.gz and manifest.json.
    """
    if out.is_dir():
        raise UserError(f"{out} is a folder; name the file to write, as --out {out / 'bundle.zip'}")
    store = RunStore(runs)
    wanted = None if grid is None else wanted_of_grid(grid)
    shown = BoardRuns(store, wanted)
    maker = BoardMaker(wanted)
    lines: list[bytes] = []
    packed: dict[str, bytes] = {}
    for record, line in shown:
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
    if shown.n_left_out and not lines:
        raise UserError(only_trials(runs, "let it end"))
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
    return Exported(len(lines), shown.n_left_out)


def add(bundle: Path, runs: Path) -> Added:
    """Take a stranger's runs into a runs folder: all, or none and the reason as a `UserError`.

    `bundle`: a zip file of `export`, or a folder with the same files: those that its manifest tells of, whole and no others.
    Everything that predictions tell is computed from them and must be what the record says; what they cannot tell must lie
    in its range; each key must be that of its spec; the test labels must be those of our own runs on the same data. A run
    that is there already must have the same results, see `different_results`. Nothing is executed or unpickled, no name
    leads out of the bundle, and sizes are bounded.
    """
    source = open_source(bundle)
    check_names(source)
    store = RunStore(runs)
    metrics = scoring.columns()
    ours = {data_of(r): r.key for r in store.records() if r.state == "ok"} if runs.is_dir() else {}
    taken: list[tuple[Record, Predictions | None]] = []
    records = read_records(source)
    if not records:
        raise UserError(f"{source.name} holds no records")
    _check_manifest(source, records)
    for record in records:
        what = f"{source.name}: run {record.key}"
        if key_of(record.spec) != record.key:
            raise UserError(f"{what}: its spec has the key {key_of(record.spec)}; the spec or the key was changed")
        wrong = impossible(record, metrics)
        if wrong:
            raise UserError(f"{what}: {wrong[0]}")
        unknown = sorted({*record.metrics, *record.columns} - {m.symbol for m in metrics})
        if unknown:
            raise UserError(f"{what}: {', '.join(unknown)} cannot be computed here; install the package it comes from")
        predictions = read_predictions(source, record.key) if record.state == "ok" else None
        if predictions is not None:
            try:
                wrong = disagreements(record, predictions, metrics)
            except UserError as error:  # no outcome: a score that is not finite, say
                raise UserError(f"{what}: {predictions_name(record.key)}: {error}") from error
            if wrong:
                raise UserError(f"{what}: {wrong[0]}")
            mine = store.read_predictions(ours[data_of(record)]) if data_of(record) in ours else None
            if mine is not None and labels_of(mine) != labels_of(predictions):
                raise UserError(f"{what}: other test images or labels than {ours[data_of(record)]} on the same data")
            record = judged_anew(record, predictions, metrics)
            record = record.model_copy(update={"notes": [*record.notes, REPORTED]})
        else:  # nothing was computed, so that the columns are whatever is installed here
            record = record.model_copy(update={"columns": {m.symbol: ColumnFacts.of(m) for m in metrics}})
        _check_shown(record, what)
        taken.append((record, predictions))
    known = {record.key for record, _ in taken if store.state(record.key) == "ok"} if runs.is_dir() else set()
    kept = tuple(record.key for record, _ in taken if record.key in known and record.state != "ok")
    _check_known(source, [(r, p) for r, p in taken if r.key in known and p is not None], store)
    new = [(record, predictions) for record, predictions in taken if record.key not in known]
    if new:
        store.create()
    for record, predictions in new:
        store.write_result(record, predictions)
    return Added(len(new), len(known) - len(kept), kept)


def _check_manifest(source: Source, records: list[Record]) -> None:
    """Refuse a bundle that is not what its manifest tells of. A run that the manifest calls missing, one of a grid's that was
    not run, need not be there."""
    manifest = read_manifest(source)
    for fault in _manifest_faults(source, manifest, records):
        raise UserError(f"{source.name}: {printable(fault)}; nothing was taken from it")


def _manifest_faults(source: Source, manifest: Mapping[str, Any], records: list[Record]) -> Iterator[str]:
    if manifest.get("version") != MANIFEST_VERSION:
        yield f"its manifest has version {manifest.get('version')!r}, this fairssl reads {MANIFEST_VERSION}"
    runs, files = manifest["runs"], manifest["files"]
    yield from lacking(runs, {record.key for record in records})
    for record in records:
        yield from against_manifest(record, runs)
    expected = {predictions_name(record.key) for record in records if record.state == "ok"}
    there = {name for name in source.names() if name.startswith(f"{PREDICTIONS}/")}
    told = {name for name in files if name.startswith(f"{PREDICTIONS}/")}
    for name in sorted(there - expected):
        yield f"it holds {name}, which no record names"
    for name in sorted(expected | told):
        if name not in there:
            yield f"it has no {name}"
        elif name not in files:
            yield f"{name} is not in the manifest"
    for name, limit in (("records.jsonl", MAX_JSONL), *((name, MAX_PACKED) for name in sorted(expected))):
        if sha256(source.read(name, limit)) != files.get(name):
            yield f"{name} is not the file that the manifest was made with"


def _check_known(source: Source, taken: list[tuple[Record, Predictions]], store: RunStore) -> None:
    """Refuse runs that are there already with other results, and say which and in what."""
    odd = []
    for record, predictions in taken:
        mine, kept = store.read_record(record.key), store.read_predictions(record.key)
        if mine is not None and kept is not None and (what := different_results(mine, kept, record, predictions)):
            odd.append(f"{record.key} ({', '.join(what)})")
    if odd:
        more = f" and {len(odd) - 5} more" if len(odd) > 5 else ""
        raise UserError(
            f"{source.name}: {len(odd)} of its runs are in {store.root} with other results: {', '.join(odd[:5])}{more}; "
            "nothing was taken from it; take it into a folder of its own with --runs"
        )


def different_results(
    ours: Record, our_predictions: Predictions, theirs: Record, predictions: Predictions
) -> list[str]:
    """In what two results of one run differ: predictions (and so every metric), leakage, validation, facts.

    Scores are compared exactly, other numbers up to 1e-9, of what both records have. No results are timings, environment,
    hashes of sources, notes, versions of metrics, and by which rule the settings were chosen.
    """
    found = []
    if labels_of(our_predictions) != labels_of(predictions):
        found.append("test images or labels")
    elif not np.array_equal(our_predictions.score, predictions.score):
        n = int(np.count_nonzero(our_predictions.score != predictions.score))
        found.append(f"scores of {n} of {len(predictions.score)} images")
    if not alike(ours.leakage, theirs.leakage):
        found.append("leakage")
    same = [
        s for s, column in ours.columns.items() if s in theirs.columns and theirs.columns[s].version == column.version
    ]
    a, b = ((r.validation.metrics if r.validation is not None else {}) for r in (ours, theirs))
    if any(not alike(a[s], b[s]) for s in same if s in a and s in b):
        found.append("validation")
    names = sorted((set(ours.facts) & set(theirs.facts)) - _NO_RESULT)
    return found + [f"facts.{name}" for name in names if not alike(ours.facts[name], theirs.facts[name])]


# Facts that later versions of fairssl may tell otherwise of the same run.
_NO_RESULT = {"selection", "computed_later", "one_class", "path", "augmentation", "unread"}


def _check_shown(record: Record, what: str) -> None:
    """Refuse a record whose free-form facts no table can be made of."""
    try:
        tables = build([record])
        for render in (to_markdown, to_latex, to_html):
            render(*tables).encode()
    except UserError:
        raise
    except Exception as error:  # whatever a stranger wrote where text or numbers belong
        raise UserError(
            f"{what}: its spec or facts hold another type of value than fairssl writes there, so that no table can be made "
            f"of it; the bundle must be exported anew with `fairssl board export`"
        ) from error
