"""Which rows a figure shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fairssl.board.table import Row, Table
from fairssl.registry import did_you_mean
from fairssl.types import UserError


@dataclass(frozen=True)
class Choice:
    """What a user asked to see; None or empty: all."""

    dataset: str | None = None
    target: str | None = None
    attribute: str | None = None
    methods: Sequence[str] = ()  # labels of rows, or the names in them

    def tables(self, tables: Sequence[Table]) -> list[Table]:
        """Tables and rows that were asked for; nothing left is a `UserError` with what there is."""
        for flag, asked, known in (
            ("--dataset", self.dataset, {t.dataset for t in tables}),
            ("--target", self.target, {t.target for t in tables}),
            ("--attr", self.attribute, {t.attribute for t in tables}),
        ):
            if asked is not None and asked not in known:
                raise UserError(f"{flag} {asked!r} has no runs here{did_you_mean(asked, sorted(known))}")
        names = {name for table in tables for row in table.rows for name in (row.name, row.label)}
        for name in self.methods:
            if name not in names:
                raise UserError(f"--method {name!r} has no runs here{did_you_mean(name, sorted(names))}")
        found = []
        for table in tables:
            asked_for = (self.dataset or table.dataset, self.target or table.target, self.attribute or table.attribute)
            if asked_for != (table.dataset, table.target, table.attribute):
                continue
            rows = tuple(row for row in table.rows if not self.methods or {row.name, row.label} & set(self.methods))
            if rows:
                found.append(replace(table, rows=rows))
        if not found:
            raise UserError("no run is of that dataset, target, attribute and method together")
        return found


def first_seed(row: Row, asked: int | None = None) -> int | None:
    """The seed asked for, or the first, if it ended well."""
    ok = [seed for seed in row.seeds if seed not in row.failed]
    return next((seed for seed in ok if asked is None or seed == asked), None)
