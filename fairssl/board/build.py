"""All files of a board from a runs folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairssl import scoring
from fairssl.board.command import command_of
from fairssl.board.csv import to_csv
from fairssl.board.files import PREDICTIONS, predictions_name, sha256
from fairssl.board.html import to_html
from fairssl.board.latex import to_latex
from fairssl.board.markdown import to_markdown
from fairssl.board.recompute import brought_up_to_date, disagreements, with_one_class
from fairssl.board.reported import impossible
from fairssl.board.rows import Board
from fairssl.board.runs import BoardRuns, left_out, only_trials
from fairssl.board.table import Table
from fairssl.board.tradeoff import to_tradeoff_markdown
from fairssl.board.wanted import Wanted, identity_of, wanted_of_grid
from fairssl.interfaces import Metric
from fairssl.store.files import StoreError, make_temporary, remove_path, sweep_temporaries, whole_file
from fairssl.store.record import Predictions, Record, to_json
from fairssl.store.runs import RunStore
from fairssl.types import UserError

MANIFEST_VERSION = 1
TABLES = ("index.html", "table.md", "table.csv", "table.tex", "tradeoff.md")
FILES = (*TABLES, "records.jsonl", "manifest.json")


@dataclass(frozen=True)
class Built:
    """What `build_folder` made."""

    tables: list[Table]
    n_records: int
    files: tuple[Path, ...]
    missing: tuple[str, ...] = ()  # runs of the grid that are not there, by name
    n_trials: int = 0  # runs left out: tried by `fairssl tune` and not chosen

    @property
    def left_out(self) -> str:
        """How many runs are left out and how to have them, in one line; empty where none is."""
        return left_out(self.n_trials, "board build --trials has such runs too")


def build_folder(runs: Path, out: Path, grid: str | None = None, trials: bool = False) -> Built:
    """Write the board of a runs folder, or of a grid's runs in it, whole or not: `FILES` and predictions/.

    Runs that a search tried and did not choose are left out unless the grid has them, or `trials` asks for them.

    records.jsonl has a record a line, by key. Every metric of every run is computed again from its predictions; one that
    disagrees with its record is a `UserError`, as are nothing there, a damaged record, a folder that cannot be written: then
    the old files stay.
    """
    if not runs.is_dir():
        raise UserError(f"no folder {runs}; name the one that `fairssl bench` wrote to")
    store = RunStore(runs)
    if next(store.records(), None) is None:
        raise UserError(f"{runs} holds no results; run `fairssl bench --out {runs}` first")
    wanted = None if grid is None else wanted_of_grid(grid)
    shown = BoardRuns(store, wanted, trials)
    maker = BoardMaker(wanted)
    with _folder(out), _staged(out) as staged, ExitStack() as files:  # all are written before the first takes its place
        records = files.enter_context(whole_file(out / "records.jsonl"))
        for record, line in shown:
            predictions = _packed(store, record)
            maker.add(record, predictions)
            maker.hashed(line)
            records.write(line)
            if predictions is not None:
                path = out / predictions_name(record.key)
                if not path.is_file() or path.read_bytes() != predictions:
                    with whole_file(staged / path.name) as file:
                        file.write(predictions)
        if shown.n_left_out and not maker.n_records:
            raise UserError(only_trials(runs, "let it end, or build with --trials"))
        if not maker.n_records:
            raise UserError(f"{runs} holds no run of the grid {grid}; run `fairssl bench --grid {grid} --out {runs}`")
        texts = maker.texts()
        for name, text in texts.items():
            file = files.enter_context(whole_file(out / name))
            file.write(text)
            file.flush()
        try:
            for path in staged.iterdir():
                os.replace(path, out / PREDICTIONS / path.name)
        except OSError as error:
            raise StoreError(out / PREDICTIONS, error) from error
    for path in (out / PREDICTIONS).iterdir():  # of an earlier board
        if path.name.endswith(".csv.gz") and f"{PREDICTIONS}/{path.name}" not in maker.files:
            remove_path(path)
    paths = [out / name for name in FILES]
    return Built(
        maker.tables(), maker.n_records, (*paths, out / PREDICTIONS), tuple(maker.missing.values()), shown.n_left_out
    )


class BoardMaker:
    """Records and their predictions in, the files' text out; a pure function of these and of the metrics.

    `versions`: symbol -> version of the metrics of a board that is made again; default: those that are installed. Of these
    the installed ones are computed for runs whose record lacks them.
    """

    def __init__(self, wanted: Wanted | None = None, versions: Mapping[str, int] | None = None) -> None:
        installed = scoring.columns()
        self._installed = installed
        self.versions = {m.symbol: m.version for m in installed} if versions is None else versions
        self.metrics: Sequence[Metric] = [m for m in installed if self.versions.get(m.symbol) == m.version]
        self.wanted = wanted
        self.n_records = 0
        self.files: dict[str, str] = {}  # name -> SHA-256
        self._board = Board(order=wanted.labels if wanted else ())
        self._runs: dict[str, dict[str, Any]] = {}
        self._there: set[str] = set()  # of the grid's runs
        self._hash = hashlib.sha256()  # of records.jsonl
        self._tables: list[Table] | None = None

    def add(self, record: Record, predictions: bytes | None) -> None:
        """Take a run in; one that disagrees with its predictions, or reports what cannot be, is a `UserError`."""
        label = None if self.wanted is None else self.wanted.label_of(record.spec)
        wrong = impossible(record, self.metrics)
        if wrong:
            raise UserError(f"record {record.key} holds what cannot be: {wrong[0]}; run it again with --force")
        shown, tier = record, None
        if record.state == "ok" and predictions is None:
            tier = "reported"
        elif predictions is not None:
            tier = "recomputed"
            try:
                kept = Predictions.from_csv_gz(predictions)
            except (ValueError, OverflowError) as error:
                raise UserError(f"the predictions of {record.key} are damaged ({error})") from error
            try:
                wrong = disagreements(record, kept, self._installed)
            except UserError as error:  # no outcome: a score that is not finite, say
                raise UserError(f"{predictions_name(record.key)}: {error}; run it again with --force") from error
            if wrong:
                raise UserError(f"record {record.key} is not what its predictions give: {wrong[0]}; run it again")
            shown = with_one_class(brought_up_to_date(record, kept, self.metrics), kept)
            self.files[predictions_name(record.key)] = sha256(predictions)
        self._board.add(shown, label, tier)  # type: ignore[arg-type]
        self._runs[record.key] = _outline(record, label)
        if self.wanted is not None:
            self._there.add(identity_of(record.spec))
        self.n_records += 1
        self._tables = None

    def hashed(self, line: bytes) -> None:
        """Take a line of records.jsonl into its hash."""
        self._hash.update(line)

    def tables(self) -> list[Table]:
        """The tables, each row with the command that trains it again."""
        if self._tables is None:
            self._tables = [
                replace(
                    t,
                    rows=tuple(replace(row, command=command_of(row.spec, row.name, row.seeds)) for row in t.rows),
                    notes=(*self._not_run(t), *t.notes),
                )
                for t in self._board.tables()
            ]
        return self._tables

    def _not_run(self, table: Table) -> Iterator[str]:
        """How much of the grid is not there yet: for the table's dataset, target and attribute, and in all."""
        n_missing = len(self.missing)
        if self.wanted is None or not n_missing:
            return
        place = (table.dataset, table.target, table.attribute)
        n_here, n_all = self.wanted.n_runs(place), self.wanted.n_runs()
        n = len(self.wanted.missing(self._there, place)) or "none"
        text = f"{n} of the grid's {n_here} runs with target {table.target} and attribute {table.attribute}"
        yield f"Not run yet: {text}{f', {n_missing} of its {n_all} in all' if n_all > n_here else ''}."

    @property
    def missing(self) -> dict[str, str]:
        """Runs of the grid that are not there: identity -> name."""
        return {} if self.wanted is None else self.wanted.missing(self._there)

    def texts(self) -> dict[str, bytes]:
        """File name -> content, the manifest last."""
        tables = self.tables()
        renders: dict[str, Callable[..., str]] = {
            "table.md": to_markdown,
            "tradeoff.md": to_tradeoff_markdown,
            "table.csv": to_csv,
            "table.tex": to_latex,
            "index.html": to_html,
        }
        texts = {name: render(*tables).encode() for name, render in renders.items()}
        hashes = {name: sha256(text) for name, text in texts.items()} | {"records.jsonl": self._hash.hexdigest()}
        content = {
            "version": MANIFEST_VERSION,
            "grid": None if self.wanted is None else self.wanted.grid,
            "metrics": dict(self.versions),
            "runs": {**self._runs, **{key: {"state": "missing", "name": name} for key, name in self.missing.items()}},
            "files": {**self.files, **hashes},
        }
        return {**texts, "manifest.json": to_json(content, indent=1).encode() + b"\n"}


def _outline(record: Record, label: str | None) -> dict[str, Any]:
    """What a manifest says of a run."""
    spec = record.spec
    data, method = spec["data"], spec["method"]
    name = label or method["name"]
    return {
        "state": record.state,
        "name": f"{name} {data['dataset']}/{data['target']}/{data['attribute']} seed {spec['seed']}",
        "label": label,
        "protocol": protocol_of(spec),
    }


def protocol_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The versions that a spec was made by: of the loop, the probe and the dataset."""
    return {
        "loop": (spec.get("train") or {}).get("loop"),
        "probe": (spec.get("probe") or {}).get("version"),
        "dataset": (spec.get("data") or {}).get("version"),
    }


def _packed(store: RunStore, record: Record) -> bytes | None:
    """The run's predictions as they lie; None for a run without, or whose file is gone."""
    if record.state != "ok":
        return None
    try:
        return (store.result_dir(record.key) / "predictions.csv.gz").read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"cannot read the predictions of {record.key}: {error.strerror}; make them readable") from error


@contextmanager
def _folder(out: Path) -> Iterator[None]:
    """Make the board's folders; where the block fails, those that were not there before go again."""
    new: list[Path] = []
    try:
        try:
            new += [path for path in (out / PREDICTIONS, out, *out.parents) if not path.exists()]
            (out / PREDICTIONS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(out, error) from error
        yield
    except BaseException:
        for path in new:  # from the deepest upwards
            with suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def _staged(out: Path) -> Iterator[Path]:
    """A folder in `out` for files that are to take their places together, gone at the end of the block."""
    try:
        sweep_temporaries(out)
        fd, path = make_temporary(out, PREDICTIONS, is_dir=True)
    except OSError as error:
        raise StoreError(out, error) from error
    try:
        yield path
    finally:
        remove_path(path)
        os.close(fd)
