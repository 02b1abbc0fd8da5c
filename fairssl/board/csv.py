"""Tables as CSV."""

from __future__ import annotations

import csv
import io
from typing import Any

from fairssl.board.json import to_long_rows
from fairssl.board.table import Table


def to_csv(*tables: Table) -> str:
    """All tables in one CSV, a line per row and metric: numbers as fractions that round-trip, nothing where undefined.

    Text that a spreadsheet would take for a formula has an apostrophe before it.
    """
    rows = to_long_rows(*tables)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LONG_COLUMNS)
    for row in rows:
        writer.writerow([_written(row[name]) for name in LONG_COLUMNS])
    return text.getvalue()


LONG_COLUMNS = (
    *("dataset", "target", "attr", "differs", "method", "metric", "version", "better"),
    *("mean", "sd", "low", "high", "n", "undefined", "floor_mean", "floor_high", "inside_floor", "best", "rank"),
    *("competes", "n_seeds", "failed", "missing", "target_seen", "group_seen", "images_per_step", "tier", "command"),
)


def _written(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value)
    return safe(str(value))


def safe(text: str) -> str:
    """One line, and no formula: `=1+1` -> `'=1+1`."""
    text = " ".join(text.split())
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text
