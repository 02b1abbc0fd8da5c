"""All files of a board from a runs folder."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from fairssl.board.csv import to_csv
from fairssl.board.latex import to_latex
from fairssl.board.markdown import to_markdown
from fairssl.board.rows import Board
from fairssl.board.table import Table
from fairssl.store.files import StoreError, whole_file
from fairssl.store.runs import RunStore
from fairssl.types import UserError


@dataclass(frozen=True)
class Built:
    """What `build_folder` made."""

    tables: list[Table]
    n_records: int
    files: tuple[Path, ...]


def build_folder(runs: Path, out: Path) -> Built:
    """Write table.md, table.csv, table.tex and records.jsonl (a record a line, by key) of a runs folder, whole or not.

    Nothing there, a damaged record, a folder that cannot be written: `UserError`; then the old files stay.
    """
    if not runs.is_dir():
        raise UserError(f"no folder {runs}; name the one that `fairssl bench` wrote to")
    board, n_records = Board(), 0
    paths = [out / name for name in ("records.jsonl", "table.md", "table.csv", "table.tex")]
    first = next(RunStore(runs).records(), None)
    if first is None:
        raise UserError(f"{runs} holds no results; run `fairssl bench --out {runs}` first")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(out, error) from error
    with ExitStack() as files:  # all are written before the first takes its place
        records, *others = [files.enter_context(whole_file(path)) for path in paths]
        for record, line in RunStore(runs).records_and_lines():
            records.write(line)
            board.add(record)
            n_records += 1
        tables = board.tables()
        for file, text in zip(others, (to_markdown(*tables), to_csv(*tables), to_latex(*tables)), strict=True):
            file.write(text.encode())
            file.flush()
    return Built(tables, n_records, tuple(paths))
