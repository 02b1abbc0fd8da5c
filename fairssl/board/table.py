"""What a table holds: columns, rows, values over seeds, and who competes for best."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from fairssl.board.best import best_rows, ranked
from fairssl.store.record import State

Better = Literal["higher", "lower"]
Tier = Literal["recomputed", "reported"]
INSIDE_FLOOR = "°"  # behind a value that is inside its noise floor, in formats without a dimmed type
DOES_NOT_COMPETE = "†"  # behind the name of such a row


@dataclass(frozen=True)
class Column:
    """A metric as a table shows it, as the metric declares itself in the records. Fractions come in; `percent` ones are
    printed x 100. A `diagnostic` is no metric: it has no version and none is best."""

    symbol: str
    heading: str
    better: Better
    percent: bool
    headline: bool = True
    order: int = 100
    version: int | None = None
    diagnostic: bool = False

    @property
    def is_gap(self) -> bool:
        """Whether it measures a difference between groups, so that a scorer which knows nothing is at its best."""
        return self.better == "lower" and not self.diagnostic

    @property
    def arrow(self) -> str:
        return "↑" if self.better == "higher" else "↓"

    @property
    def scale(self) -> int:
        """By what a fraction is multiplied where it is printed."""
        return 100 if self.percent else 1

    @property
    def digits(self) -> int:
        """How many stand behind the point."""
        return 2 if self.percent else 4

    def show(self, value: float) -> str:
        return f"{value * self.scale:.{self.digits}f}"


# Balanced accuracy of a fresh classifier that looks for the group in the frozen features, a linear one and a perceptron.
LEAK = Column("Leak", "Leak", "lower", True, order=1000, diagnostic=True)
LEAK_MLP = Column("LeakMLP", "Leak (MLP)", "lower", True, order=1001, diagnostic=True)


@dataclass(frozen=True)
class SeedStats:
    """A metric over seeds: mean and sample standard deviation (n - 1), None for one seed.

    `mean` is None, with the reason, if any seed that ended well has no value. `low` and `high`: the 95 % interval of the
    mean, t over seeds, None for one. `by_seed` has the values themselves. `floor` is (mean, 95 % quantile), each averaged
    over the seeds, of what the metric measures where groups do not matter; `inside_floor`: the value is no more than that.
    """

    mean: float | None
    sd: float | None = None
    reason: str = ""
    by_seed: Mapping[int, float | None] = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    floor: tuple[float, float] | None = None
    inside_floor: bool = False

    @property
    def n(self) -> int:
        """How many seeds it is over."""
        return 0 if self.mean is None else len(self.by_seed)


@dataclass(frozen=True)
class Row:
    """One composition with its settings. `failed` has the seeds that failed or diverged; values are over the others."""

    label: str
    values: Mapping[str, SeedStats]  # symbol -> value
    seeds: tuple[int, ...]
    failed: Mapping[int, tuple[State, str]]  # seed -> how it ended, and the error in one line
    target_seen: str  # none, annotated, all
    group_seen: str
    spec: Mapping[str, Any] = field(repr=False)  # of any of its seeds
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    identity: str = ""  # hash of the spec without seed and name
    name: str = ""  # as the method was typed; the label may tell more
    missing: tuple[int, ...] = ()  # seeds that other rows of the table have
    below_majority: str = ""  # why it counts as no better than always saying the larger class; empty: it is better
    collapsed: str = ""  # why its features count as collapsed; empty: they do not
    keys: Mapping[int, str] = field(default_factory=dict, repr=False)  # seed -> key of the run
    environments: Mapping[str, tuple[int, ...]] = field(default_factory=dict, repr=False)  # as text -> seeds
    tier: Tier | None = None  # None: not looked at
    command: str = ""  # what trains it again

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
    def is_complete(self) -> bool:
        """Whether every seed of the table is there and ended well."""
        return not self.failed and not self.missing

    @property
    def is_marked(self) -> bool:
        """Whether it is kept from competing in some column."""
        return not self.is_complete or bool(self.below_majority) or bool(self.collapsed)

    def competes_in(self, column: Column) -> bool:
        """Whether the row may be best in a column; see the rules in `Table`."""
        if column.diagnostic or not self.is_complete or self.collapsed or self.values[column.symbol].mean is None:
            return False
        return not (column.is_gap and self.below_majority)

    @property
    def n_ok(self) -> str:
        """How many seeds the values are over, as `3`, or `2 of 3`."""
        n_ok, n = len(self.seeds) - len(self.failed), len(self.seeds) + len(self.missing)
        return str(n) if n_ok == n else f"{n_ok} of {n}"

    @property
    def images_per_step(self) -> str:
        """Images that a training step takes, each in `n_views` views: `128`, or `128 + 128` with the annotated ones."""
        batches = self.facts.get("batches")
        if batches is None:
            return "-"
        return " + ".join(str(batches[name]) for name in sorted(batches)) or "0"

    @property
    def family(self) -> tuple[bool, bool]:
        """Rows of one family stand together: which labels training saw."""
        return self.target_seen == "none", self.group_seen != "none"


@dataclass(frozen=True)
class Cell:
    """What one place of a table prints. `dim`: inside the noise floor."""

    text: str
    bold: bool = False
    dim: bool = False

    @property
    def signed(self) -> str:
        """The text with the sign that stands for dimmed type."""
        return f"{self.text} {INSIDE_FLOOR}" if self.dim else self.text


@dataclass(frozen=True)
class Table:
    """Rows that may be compared, in order of their families and labels.

    Best, and so bold, is the best mean and every row that a paired t test over the seeds does not tell apart from it. Of
    one seed none is. A row does not compete that lacks a seed of the table or whose features have collapsed; nor, for
    gaps, one no better than always saying the larger class. `differs` tells this table from another of the same dataset,
    target and attribute, by what sets them apart.
    """

    dataset: str
    target: str
    attribute: str
    rows: tuple[Row, ...]
    heading: tuple[str, ...]  # sentences: what the numbers are of
    notes: tuple[str, ...]  # what a reader of the cells must know
    differs: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()  # the printed ones
    hidden: tuple[Column, ...] = ()  # metrics that only the exports have
    seeds: tuple[int, ...] = ()  # all that any row has

    @property
    def title(self) -> str:
        apart = "".join(
            f", {name}{'=' if name.startswith('data.') else ' '}{value}" for name, value in self.differs.items()
        )
        return f"{self.dataset}: target {self.target}, attribute {self.attribute}{apart}"

    @cached_property
    def best(self) -> frozenset[tuple[int, str]]:
        """(index of the row, symbol) of the best values and those not told apart from them."""
        found = set()
        for column in (*self.columns, *self.hidden):
            values = self._competing(column)
            if len(self.seeds) > 1 and values:
                found |= {(i, column.symbol) for i in best_rows(values, column.better)}
        return frozenset(found)

    @cached_property
    def ranks(self) -> Mapping[tuple[int, str], int]:
        """(index of the row, symbol) -> rank by the mean, 1 for the best. Rows that do not compete stand after those that do,
        and rows that lack a seed after all others."""
        found: dict[tuple[int, str], int] = {}
        for column in (*self.columns, *self.hidden):
            if column.diagnostic:
                continue
            means = {i: row.values[column.symbol].mean for i, row in enumerate(self.rows)}
            defined = {i: mean for i, mean in means.items() if mean is not None}
            rows = {i: self.rows[i] for i in defined}
            tiers = {i: 0 if row.competes_in(column) else 1 if row.is_complete else 2 for i, row in rows.items()}
            found |= {(i, column.symbol): rank for i, rank in ranked(defined, tiers, column.better).items()}
        return found

    def _competing(self, column: Column) -> dict[int, dict[int, float]]:
        """Row -> its values by seed."""
        rows = ((i, row) for i, row in enumerate(self.rows) if row.competes_in(column))
        return {
            i: {seed: x for seed, x in row.values[column.symbol].by_seed.items() if x is not None} for i, row in rows
        }

    @property
    def head(self) -> list[str]:
        return ["Method", *(column.heading for column in self.columns), *TAIL]

    @cached_property
    def body(self) -> list[list[Cell]]:
        """What each row prints: label, a cell per column, target seen, group seen, images of a step, seeds."""
        lines = []
        for i, row in enumerate(self.rows):
            cells = [self._cell(i, row, column) for column in self.columns]
            if row.all_failed:
                cells[0] = Cell(row.verdict)
            label = f"{row.label} {DOES_NOT_COMPETE}" if row.is_marked else row.label
            lines.append([Cell(label), *cells, *(Cell(text) for text in ends(row))])
        return lines

    def _cell(self, i: int, row: Row, column: Column) -> Cell:
        value = row.values[column.symbol]
        if value.mean is None:
            return Cell("-")
        text = column.show(value.mean) + ("" if value.sd is None else f" ± {column.show(value.sd)}")
        return Cell(text, bold=(i, column.symbol) in self.best, dim=value.inside_floor)

    def families(self) -> list[range]:
        """The rows in runs of one family, as positions."""
        found: list[range] = []
        for i, row in enumerate(self.rows):
            if found and self.rows[i - 1].family == row.family:
                found[-1] = range(found[-1].start, i + 1)
            else:
                found.append(range(i, i + 1))
        return found


TAIL = ("Target seen", "Group seen", "Images/step", "Seeds")


def ends(row: Row) -> tuple[str, str, str, str]:
    """What stands behind the metrics, under `TAIL`."""
    return row.target_seen, row.group_seen, row.images_per_step, row.n_ok
