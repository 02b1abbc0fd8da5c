"""The tables of a folder, whether `bench` or `board build` wrote it."""

from __future__ import annotations

from pathlib import Path

from fairssl import scoring
from fairssl.board.files import open_source, predictions_name, read_predictions, read_records
from fairssl.board.recompute import brought_up_to_date, outdated
from fairssl.board.rows import Board
from fairssl.board.table import Table
from fairssl.store.runs import RunStore
from fairssl.types import UserError


def tables_of(folder: Path) -> list[Table]:
    """Tables of a runs folder or of a board, every metric at the installed version. Neither: `UserError`."""
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; name a board, or the folder that `fairssl bench` wrote to")
    board, metrics, n = Board(), scoring.columns(), 0
    if (folder / "results").is_dir():
        store = RunStore(folder)
        for record in store.records():
            if outdated(record, metrics) and (kept := store.read_predictions(record.key)) is not None:
                record = brought_up_to_date(record, kept, metrics)
            board.add(record)
            n += 1
    elif (folder / "records.jsonl").is_file():
        source = open_source(folder)
        names = set(source.names())
        for record in read_records(source):
            if outdated(record, metrics) and predictions_name(record.key) in names:
                record = brought_up_to_date(record, read_predictions(source, record.key), metrics)
            board.add(record)
            n += 1
    if not n:
        raise UserError(f"{folder} holds no results; run `fairssl bench --out {folder}` first")
    return board.tables()
