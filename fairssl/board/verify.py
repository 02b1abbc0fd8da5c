"""Whether a published board is what its records and predictions say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fairssl import scoring
from fairssl.board.build import TABLES, BoardMaker, protocol_of
from fairssl.board.files import (
    MAX_JSONL,
    MAX_PACKED,
    PREDICTIONS,
    Source,
    open_source,
    parse_predictions,
    parse_record,
    predictions_name,
    read_lines,
    read_manifest,
    sha256,
)
from fairssl.board.recompute import TOLERANCE, disagreements, judged_anew, outdated
from fairssl.board.wanted import not_run, wanted_of_grid
from fairssl.spec.keys import digest
from fairssl.spec.run import key_of
from fairssl.store.record import Predictions, Record
from fairssl.types import UserError


@dataclass
class Verified:
    """What was found. `faults`: what is not as it should be; `notes`: what could not be looked at, and what is missing."""

    n_records: int = 0
    n_cells: int = 0  # metrics that were computed again
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def verify(folder: Path, resample: bool = False) -> Verified:
    """Compute every cell of a board again from the predictions, and every key from the specs; compare with what is there.

    Against manifest.json: a run that is missing or not expected, one of another protocol version, a file whose content
    changed. All tables are made anew and compared byte for byte. `resample`: also noise floors and bootstrap intervals,
    about a second per run. Leakage and validation need the encoder and are as the runs reported them.
    """
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; name one that `fairssl board build` wrote")
    source = open_source(folder)
    manifest = read_manifest(source)
    found = Verified()
    runs: Mapping[str, Mapping[str, Any]] = manifest["runs"]
    files: Mapping[str, Any] = manifest["files"]
    check = _Check(source, runs, files, manifest["metrics"], found, resample)
    for number, line in read_lines(source):
        try:
            record = parse_record(source, number, line)
        except UserError as error:
            found.faults.append(str(error))
            continue
        check.record(record, line + b"\n")
    found.notes += not_run(str(run.get("name", key)) for key, run in runs.items() if run.get("state") == "missing")
    found.faults += lacking(runs, check.records)
    for name in source.names():
        if name.startswith(f"{PREDICTIONS}/") and name not in files:
            found.faults.append(f"{name} is not in the manifest")
    if sha256(source.read("records.jsonl", MAX_JSONL)) != files.get("records.jsonl"):
        found.faults.append("records.jsonl is not the file that the manifest was made with")
    _say_metrics(manifest["metrics"], check, found)
    _same_tests(check.tests, found)
    _same_files(source, manifest, check, found)
    return found


class _Check:
    """Records one by one, each with its predictions."""

    def __init__(
        self,
        source: Source,
        runs: Mapping[str, Mapping[str, Any]],
        files: Mapping[str, Any],
        versions: Mapping[str, int],
        found: Verified,
        resample: bool,
    ) -> None:
        self.source, self.runs, self.files, self.found, self.resample = source, runs, files, found, resample
        self.installed = scoring.columns()
        self.metrics = [m for m in self.installed if versions.get(m.symbol) == m.version]  # the board's
        self.elsewhere = {s: v for s, v in versions.items() if s not in {m.symbol for m in self.metrics}}
        self.not_computed: set[str] = set()  # symbols of `elsewhere` that a record lacks
        self.records: dict[str, Record] = {}
        self.packed: dict[str, bytes] = {}
        self.lines: list[bytes] = []
        self.tests: dict[str, dict[str, list[str]]] = {}  # digest of the data's spec -> hash of the labels -> runs

    def record(self, record: Record, line: bytes) -> None:
        key, found = record.key, self.found
        if key in self.records:
            found.faults.append(f"the record {key} is there twice")
            return
        self.records[key] = record
        self.lines.append(line)
        found.n_records += 1
        name = name_of(record)
        if key_of(record.spec) != key:
            found.faults.append(f"{name}: its key is {key}, its spec has the key {key_of(record.spec)}")
        found.faults += against_manifest(record, self.runs)
        if record.state == "ok":
            self._predictions(record, name)

    def _predictions(self, record: Record, name: str) -> None:
        file = predictions_name(record.key)
        if file not in self.files:
            self.found.notes.append(f"{name}: as reported, without predictions")
            return
        try:
            data = self.source.read(file, MAX_PACKED)
            self.packed[record.key] = data
            if sha256(data) != self.files[file]:
                self.found.faults.append(f"{name}: {file} is not the file that the manifest was made with")
            predictions = parse_predictions(data, file)
            self.found.faults += [f"{name}: {wrong}" for wrong in disagreements(record, predictions, self.installed)]
            self.found.n_cells += len(record.metrics)
            if self.resample:
                self.found.faults += [f"{name}: {wrong}" for wrong in _resampled(record, predictions)]
        except UserError as error:
            self.found.faults.append(f"{name}: {error}")
            return
        self.not_computed |= {
            symbol
            for symbol, version in self.elsewhere.items()
            if symbol not in record.columns or record.columns[symbol].version < version
        }
        late = outdated(record, self.metrics)
        if late:
            symbols = ", ".join(m.symbol for m in late)
            self.found.notes.append(f"{name}: {symbols} computed by the installed versions, which its record lacks")
        self.tests.setdefault(data_of(record), {}).setdefault(labels_of(predictions), []).append(name)


def against_manifest(record: Record, runs: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """In words, where a record is another run than the manifest's `runs` tell of."""
    name, expected = name_of(record), runs.get(record.key)
    if expected is None:
        yield f"{name} ({record.key}) is not in the manifest"
    elif expected.get("protocol") != protocol_of(record.spec):
        versions = (_versions(protocol_of(record.spec)), _versions(expected.get("protocol")))
        yield f"{name}: made by {versions[0]}; the manifest has {versions[1]}"
    elif expected.get("state") != record.state:
        yield f"{name}: is {record.state}, the manifest has {expected.get('state')}"


def lacking(runs: Mapping[str, Mapping[str, Any]], keys: Collection[str]) -> Iterator[str]:
    """In words, the runs of a manifest that must be there and are not among the keys."""
    for key, run in runs.items():
        if run.get("state") != "missing" and key not in keys:
            yield f"{run.get('name', key)} ({key}) is expected, but not among the records"


def data_of(record: Record) -> str:
    """A digest of what is judged: runs that share it must have the same test images and labels."""
    return digest(record.spec.get("data"))


def labels_of(predictions: Predictions) -> str:
    """A hash of the test images with their targets and groups, in order."""
    columns = (predictions.target.astype("<i8").tobytes(), predictions.group.astype("<i8").tobytes())
    return sha256("\0".join(predictions.ids).encode() + b"\0\0" + b"".join(columns))


def _same_tests(tests: Mapping[str, Mapping[str, list[str]]], found: Verified) -> None:
    for labels in tests.values():
        if len(labels) > 1:
            odd = min(labels.values(), key=lambda names: (len(names), names))
            found.faults.append(f"{', '.join(odd)}: other test images or labels than the other runs on the same data")


def _resampled(record: Record, predictions: Predictions) -> Iterator[str]:
    """In words, noise floors and intervals that are not what the predictions give."""
    anew = judged_anew(record, predictions, scoring.columns())
    for what in ("noise_floor", "intervals"):
        theirs, ours = getattr(record, what) or {}, getattr(anew, what) or {}
        for symbol in sorted(set(theirs) & set(ours)):
            if not alike(theirs[symbol], ours[symbol]):
                yield f"{what} of {symbol} is {theirs[symbol]}, its predictions give {ours[symbol]}"


def alike(a: Any, b: Any) -> bool:
    """Whether two values of a record are equal, floats up to `TOLERANCE`; of objects what both have."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return all(alike(a[name], b[name]) for name in set(a) & set(b))
    if isinstance(a, float) and isinstance(b, float | int):
        return bool(np.isclose(a, b, rtol=0, atol=TOLERANCE))
    return bool(a == b)


def _say_metrics(versions: Mapping[str, int], check: _Check, found: Verified) -> None:
    """In notes, where the metrics that are installed are not the board's."""
    installed = {m.symbol: m.version for m in check.installed}
    for symbol, version in sorted(check.elsewhere.items()):
        here = f"version {installed[symbol]} is" if symbol in installed else "none is"
        found.notes.append(f"{symbol} is of version {version}, here {here} installed: its values are as reported")
    more = sorted(set(installed) - set(versions))
    if more:
        found.notes.append(f"{', '.join(more)}: installed here, no part of this board")


def _same_files(source: Source, manifest: Mapping[str, Any], check: _Check, found: Verified) -> None:
    """The tables made anew from the records and predictions, against those that are there."""
    grid = manifest.get("grid")
    if check.not_computed:
        symbols = ", ".join(f"{s} of version {check.elsewhere[s]}" for s in sorted(check.not_computed))
        found.faults.append(f"the tables cannot be made anew: {symbols} is not installed here and not in every record")
        return
    try:
        maker = BoardMaker(wanted_of_grid(str(grid)) if grid is not None else None, manifest["metrics"])
        for record, line in zip(check.records.values(), check.lines, strict=True):
            maker.add(record, check.packed.get(record.key))
            maker.hashed(line)
        texts = maker.texts()
    except UserError as error:
        found.faults.append(f"the tables cannot be made anew: {error}")
        return
    for name in (*TABLES, "manifest.json"):
        try:
            there = source.read(name, MAX_JSONL)
        except UserError as error:
            found.faults.append(str(error))
            continue
        if there != texts[name]:
            found.faults.append(f"{name} is not what its records give: {_first_difference(there, texts[name])}")


def _first_difference(there: bytes, anew: bytes) -> str:
    a, b = there.decode(errors="replace").splitlines(), anew.decode(errors="replace").splitlines()
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    old, new = (lines[at] if at < len(lines) else "nothing" for lines in (a, b))
    from_ = next((i for i, (x, y) in enumerate(zip(old, new, strict=False)) if x != y), 0)
    cut = slice(max(0, from_ - 20), from_ + 40)
    return f"line {at + 1} has {old[cut]!r} for {new[cut]!r}"


def _versions(protocol: Any) -> str:
    """`dataset 2, loop 2, probe 2`."""
    if not isinstance(protocol, Mapping):
        return "nothing"
    return ", ".join(f"{name} {value}" for name, value in sorted(protocol.items()))


def name_of(record: Record) -> str:
    """What a run is called in messages, of whatever its spec holds."""
    spec = record.spec

    def part(name: str) -> Mapping[str, Any]:
        found = spec.get(name)
        return found if isinstance(found, Mapping) else {}

    place = "/".join(str(part("data").get(name)) for name in ("dataset", "target", "attribute"))
    return f"{part('method').get('name')} {place} seed {spec.get('seed')}"
