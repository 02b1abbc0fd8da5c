"""Tables as CSV."""

from __future__ import annotations

import csv
import io

from fairssl.board.table import Table, Value


def to_csv(*tables: Table) -> str:
    """All tables in one CSV: a line per row, numbers as fractions that round-trip, nothing where undefined."""
    columns = max((table.columns for table in tables), key=len, default=())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [f"{column.symbol}_{what}" for column in columns for what in ("mean", "sd")]
    first = ("method", "dataset", "target", "attr", "differs", "n_seeds", "failed", "target_seen", "group_seen")
    writer.writerow((*first, *numbers, "undefined"))
    for table in tables:
        differs = " ".join(f"{name}={value}" for name, value in table.differs.items())
        for row in table.rows:
            place = (row.label, table.dataset, table.target, table.attribute, differs)
            counts = (len(row.seeds), len(row.failed), row.target_seen, row.group_seen)
            values = [row.values.get(column.symbol, Value(None)) for column in columns]
            shown = ("" if x is None else repr(x) for value in values for x in (value.mean, value.sd))
            reasons = "; ".join(f"{s}: {v.reason}" for s, v in row.values.items() if v.mean is None)
            writer.writerow((*place, *counts, *shown, reasons))
    return text.getvalue()
