"""The tables of a folder, whether `bench` or `board build` wrote it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fairssl import scoring
from fairssl.board.files import open_source, predictions_name, read_manifest, read_predictions, read_records
from fairssl.board.recompute import brought_up_to_date, outdated
from fairssl.board.rows import Board
from fairssl.board.runs import BoardRuns
from fairssl.board.table import Table
from fairssl.store.record import Predictions
from fairssl.store.runs import RunStore
from fairssl.types import UserError


def is_runs_folder(folder: Path) -> bool:
    """Whether it holds runs as `bench` keeps them, not only a board of them."""
    return (folder / "results").is_dir()


def predictions_of(folder: Path) -> Callable[[str], Predictions | None]:
    """Predictions by the run's key, of a runs folder or a board; None where it has none."""
    if is_runs_folder(folder):
        return RunStore(folder).read_predictions
    source = open_source(folder)
    names = set(source.names())
    return lambda key: read_predictions(source, key) if predictions_name(key) in names else None


def tables_of(folder: Path) -> list[Table]:
    """Tables of a runs folder or of a board, every metric at the installed version. Neither: `UserError`.

    Runs that a search tried and did not choose are left out.
    """
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; name a board, or the folder that `fairssl bench` wrote to")
    board, metrics, n = Board(), scoring.columns(), 0
    if is_runs_folder(folder):
        store = RunStore(folder)
        for record, _ in BoardRuns(store):
            if outdated(record, metrics) and (kept := store.read_predictions(record.key)) is not None:
                record = brought_up_to_date(record, kept, metrics)
            board.add(record)
            n += 1
    elif (folder / "records.jsonl").is_file():
        source = open_source(folder)
        names = set(source.names())
        runs = read_manifest(source)["runs"] if "manifest.json" in names else {}
        for record in read_records(source):
            if outdated(record, metrics) and predictions_name(record.key) in names:
                record = brought_up_to_date(record, read_predictions(source, record.key), metrics)
            label = runs.get(record.key, {}).get("label")  # as its own tables call it
            board.add(record, label if isinstance(label, str) else None)
            n += 1
    if not n:
        raise UserError(f"{folder} holds no results; run `fairssl bench --out {folder}` first")
    return board.tables()
