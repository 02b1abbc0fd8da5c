"""Tables as plain objects."""

from __future__ import annotations

from typing import Any

from fairssl.board.describe import WAY_OUT, record_path
from fairssl.board.table import Table


def to_json_rows(*tables: Table) -> list[dict[str, Any]]:
    """A flat object per row: method, dataset, target, attr, n_seeds, failed, and mean and sd by symbol, as fractions.

    sd is None for one seed. mean is None, with a reason under "undefined", if any seed is undefined. "failures" is there
    only where runs failed or diverged: seed, state, reason and path of the record of each, and "way_out" with it;
    "missing", the seeds that only other rows of the table have, and "differs", where one dataset, target and attribute
    stand in more than one table, likewise.
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
            if row.failed:
                one["failures"] = [
                    {"seed": seed, "state": state, "reason": error, "path": record_path(row, seed)}
                    for seed, (state, error) in row.failed.items()
                ]
                one["way_out"] = WAY_OUT
            if row.missing:
                one["missing"] = list(row.missing)
            if table.differs:
                one["differs"] = dict(table.differs)
            rows.append(one)
    return rows


def to_long_rows(*tables: Table) -> list[dict[str, Any]]:
    """A flat object per row and metric, so that nobody parses a printed number.

    dataset, target, attr, differs (what sets the table apart from a sibling), method, metric (its symbol), version, better;
    mean, sd (n - 1), low and high (95 % interval of the mean, t over seeds) as fractions, n (seeds that the mean is over),
    undefined (the reason where there is no mean); floor_mean, floor_high and inside_floor (the noise floor); best, rank
    and competes; n_seeds, failed, missing; target_seen, group_seen, images_per_step; tier (Leak is never recomputed: that
    needs the encoder) and the command that trains it.
    """
    return [
        {
            "dataset": table.dataset,
            "target": table.target,
            "attr": table.attribute,
            "differs": " ".join(f"{name}={value}" for name, value in table.differs.items()),
            "method": row.label,
            "metric": column.symbol,
            "version": column.version,
            "better": None if column.diagnostic else column.better,
            "mean": value.mean,
            "sd": value.sd,
            "low": value.low,
            "high": value.high,
            "n": value.n,
            "n_seeds": len(row.seeds),
            "failed": len(row.failed),
            "missing": len(row.missing),
            "undefined": value.reason or None,
            "floor_mean": None if value.floor is None else value.floor[0],
            "floor_high": None if value.floor is None else value.floor[1],
            "inside_floor": None if value.floor is None else value.inside_floor,
            "best": (i, column.symbol) in table.best,
            "rank": table.ranks.get((i, column.symbol)),
            "competes": row.competes_in(column),
            "target_seen": row.target_seen,
            "group_seen": row.group_seen,
            "images_per_step": row.images_per_step,
            "tier": "reported" if column.diagnostic and row.tier else row.tier,
            "command": row.command or None,
        }
        for table in tables
        for i, row in enumerate(table.rows)
        for column in (*table.columns, *table.hidden)
        for value in [row.values[column.symbol]]
    ]
