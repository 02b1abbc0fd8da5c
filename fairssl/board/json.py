"""Tables as plain objects."""

from __future__ import annotations

from typing import Any

from fairssl.board.table import Table


def to_json_rows(*tables: Table) -> list[dict[str, Any]]:
    """A flat object per row: method, dataset, target, attr, n_seeds, failed, and mean and sd by symbol, as fractions.

    sd is None for one seed. mean is None, with a reason under "undefined", if any seed is undefined. "differs" is there
    only where one dataset, target and attribute stand in more than one table.
    """
    rows = []
    for table in tables:
        for row in table.rows:
            one: dict[str, Any] = {
                "method": row.label,
                "dataset": table.dataset,
                "target": table.target,
                "attr": table.attribute,
                "n_seeds": len(row.seeds),
                "failed": len(row.failed),
            }
            one |= {symbol: {"mean": value.mean, "sd": value.sd} for symbol, value in row.values.items()}
            undefined = {symbol: value.reason for symbol, value in row.values.items() if value.mean is None}
            if undefined:
                one["undefined"] = undefined
            if table.differs:
                one["differs"] = dict(table.differs)
            rows.append(one)
    return rows


def to_long_rows(*tables: Table) -> list[dict[str, Any]]:
    """A flat object per row and metric, so that nobody parses a printed number: method, dataset, target, attr, metric,
    mean and sd as fractions, n_seeds, and the reason where it is undefined."""
    return [
        {
            "method": row.label,
            "dataset": table.dataset,
            "target": table.target,
            "attr": table.attribute,
            "metric": symbol,
            "mean": value.mean,
            "sd": value.sd,
            "n_seeds": len(row.seeds) - len(row.failed),
            "undefined": value.reason or None,
        }
        for table in tables
        for row in table.rows
        for symbol, value in row.values.items()
    ]
