"""What a table holds: columns, rows, statistics over seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fairssl.store.record import State


@dataclass(frozen=True)
class Column:
    """A metric as a table shows it, as the metric declares itself in the records. Fractions come in; `percent` ones are
    printed x 100. A `diagnostic` is no metric: it has no version and none is best."""

    symbol: str
    heading: str
    better: Literal["higher", "lower"]
    percent: bool
    headline: bool = True
    order: int = 100
    version: int | None = None
    diagnostic: bool = False

    def show(self, value: float) -> str:
        return f"{value * 100:.2f}" if self.percent else f"{value:.4f}"


# Balanced accuracy of a fresh classifier that looks for the group in the frozen features.
LEAK = Column("Leak", "Leak", "lower", True, order=1000, diagnostic=True)


@dataclass(frozen=True)
class Value:
    """A metric over seeds: mean and sample standard deviation (n - 1), None for one seed.

    `mean` is None, with the reason, if any seed that ended well has no value.
    """

    mean: float | None
    sd: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One composition with its settings. `failed` has the seeds that failed or diverged; values are over the others."""

    label: str
    values: Mapping[str, Value]  # symbol -> value
    seeds: tuple[int, ...]
    failed: Mapping[int, tuple[State, str]]  # seed -> how it ended, and the error in one line
    target_seen: str  # none, annotated, all
    group_seen: str
    spec: Mapping[str, Any] = field(repr=False)  # of any of its seeds
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    identity: str = ""  # hash of the spec without seed and name

    @property
    def verdict(self) -> str:
        """Which seeds did not end well, as `failed (2 of 3 seeds)`; empty if all did."""
        counts = Counter(state for state, _ in self.failed.values())
        return ", ".join(
            f"{state} ({n} of {len(self.seeds)} seeds)" for state, n in sorted(counts.items(), reverse=True)
        )

    @property
    def all_failed(self) -> bool:
        return len(self.failed) == len(self.seeds)

    @property
    def n_ok(self) -> str:
        """How many seeds the values are over, as `3`, or `2 of 3`."""
        n = len(self.seeds)
        return f"{n - len(self.failed)} of {n}" if self.failed else str(n)


@dataclass(frozen=True)
class Table:
    """Rows that may be compared, in order of their labels.

    `differs` tells this table from another of the same dataset, target and attribute, by what sets them apart.
    """

    dataset: str
    target: str
    attribute: str
    rows: tuple[Row, ...]
    heading: tuple[str, ...]  # sentences: what the numbers are of
    notes: tuple[str, ...]  # what a reader of the cells must know
    differs: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()

    @property
    def title(self) -> str:
        apart = "".join(f", {name} {value}" for name, value in self.differs.items())
        return f"{self.dataset}: target {self.target}, attribute {self.attribute}{apart}"

    @cached_property
    def best(self) -> frozenset[tuple[int, str]]:
        """(index of the row, symbol) of the best values; equal as printed is equal.

        A row with failed seeds does not compete: its mean is over the seeds that survived.
        """
        found = set()
        for column in self.columns:
            if column.diagnostic:
                continue
            means = {i: row.values[column.symbol].mean for i, row in enumerate(self.rows) if not row.failed}
            printed = {i: float(column.show(mean)) for i, mean in means.items() if mean is not None}
            if printed:
                top = (max if column.better == "higher" else min)(printed.values())
                found |= {(i, column.symbol) for i, value in printed.items() if value == top}
        return frozenset(found)

    @cached_property
    def body(self) -> list[list[tuple[str, bool]]]:
        """What each row prints, and whether in bold: label, a cell per column, target seen, group seen, seeds."""
        lines = []
        for i, row in enumerate(self.rows):
            cells = [(self._cell(row, column), (i, column.symbol) in self.best) for column in self.columns]
            if row.all_failed:
                cells[0] = (row.verdict, False)
            ends = [(text, False) for text in (row.target_seen, row.group_seen, row.n_ok)]
            lines.append([(row.label, False), *cells, *ends])
        return lines

    @property
    def head(self) -> list[str]:
        return ["Method", *(column.heading for column in self.columns), "Target seen", "Group seen", "Seeds"]

    @staticmethod
    def _cell(row: Row, column: Column) -> str:
        value = row.values[column.symbol]
        if value.mean is None:
            return "-"
        return column.show(value.mean) + ("" if value.sd is None else f" ± {column.show(value.sd)}")
