"""Our numbers beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fairssl.board.names import paper_method
from fairssl.board.paper import PaperCell, PaperRow, paper_rows
from fairssl.board.table import Column, Row, SeedStats, Table

Verdict = Literal["agree", "better", "worse", "not comparable"]
LEAST = {True: 1.0, False: 0.01}  # tolerance at least: points of percent metrics, and units of the others
DEVIATIONS = 2.0


@dataclass(frozen=True)
class Comparison:
    """A cell of ours beside the paper's, both in the units that are printed. `tolerance` is what still counts as agreeing:
    two standard deviations of the difference, sqrt(sd^2 + sd_paper^2), and at least 1 point, or 0.01."""

    dataset: str
    target: str
    attribute: str
    paper_table: str
    method: str  # as in our row
    metric: str
    ours: float | None
    ours_sd: float | None
    n_seeds: int
    paper: float
    paper_sd: float | None
    difference: float | None  # ours - paper
    tolerance: float | None
    verdict: Verdict
    reason: str = ""  # why it cannot be compared


def compare_with_paper(tables: Sequence[Table]) -> list[Comparison]:
    """Every cell of the tables that the paper prints too, in the tables' order."""
    return [one for table in tables for one in _of_table(table)]


def _of_table(table: Table) -> Iterator[Comparison]:
    for row in table.rows:
        for theirs in _rows_of(table, row):
            for symbol, cell in theirs.cells.items():
                column = next((c for c in (*table.columns, *table.hidden) if c.symbol == symbol), None)
                if column is not None:
                    yield _compared(table, row, theirs, column, cell)


def _rows_of(table: Table, row: Row) -> Iterator[PaperRow]:
    place = (table.dataset, table.target, table.attribute, paper_method(row.name))
    transferred = row.spec.get("pretrain") is not None
    for theirs in paper_rows():
        same = (theirs.dataset, theirs.target, theirs.attribute, theirs.method) == place
        if same and (theirs.table == "transfer") == transferred:
            yield theirs


def _compared(table: Table, row: Row, theirs: PaperRow, column: Column, cell: PaperCell) -> Comparison:
    value, scale = row.values[column.symbol], 100 if column.percent else 1
    ours = None if value.mean is None else value.mean * scale
    sd = None if value.sd is None else value.sd * scale
    tolerance = max(LEAST[column.percent], DEVIATIONS * math.hypot(sd or 0.0, cell.sd or 0.0))
    reason = _not_comparable(row, column, value, cell)
    difference = None if ours is None else ours - cell.mean
    if reason or difference is None:
        verdict: Verdict = "not comparable"
    elif abs(difference) <= tolerance:
        verdict = "agree"
    else:
        verdict = "better" if (difference > 0) == (column.better == "higher") else "worse"
    return Comparison(
        dataset=table.dataset,
        target=table.target,
        attribute=table.attribute,
        paper_table=theirs.table,
        method=row.label,
        metric=column.symbol,
        ours=ours,
        ours_sd=sd,
        n_seeds=value.n,
        paper=cell.mean,
        paper_sd=cell.sd,
        difference=difference,
        tolerance=None if reason else tolerance,
        verdict=verdict,
        reason=reason,
    )


def _not_comparable(row: Row, column: Column, value: SeedStats, cell: PaperCell) -> str:
    if cell.inconsistent:
        return f"the paper's value is inconsistent: {cell.inconsistent}"
    if value.mean is None:
        return f"ours is undefined: {value.reason}"
    departures = row.facts.get("departures", ())
    if column.symbol == "KL" and departures:  # it grows as the test set shrinks
        return f"KL depends on the size of the test set, and ours is another: {departures[0]}"
    return ""


def to_markdown_comparison(found: Sequence[Comparison]) -> str:
    """A table per (dataset, target, attribute) and table of the paper's, with a count of the verdicts."""
    from fairssl.board.markdown import markdown_text

    parts = []
    places = dict.fromkeys((c.dataset, c.target, c.attribute, c.paper_table) for c in found)
    for place in places:
        here = [c for c in found if (c.dataset, c.target, c.attribute, c.paper_table) == place]
        dataset, target, attribute, name = place
        counts = ", ".join(f"{sum(c.verdict == v for c in here)} {v}" for v in _VERDICTS)
        lines = [
            f"## {markdown_text(f'{dataset}: target {target}, attribute {attribute}, against the table {name}')}",
            "",
            f"{counts}. Tolerance: two standard deviations of the difference, at least 1 point or 0.01.",
            "",
            "| Method | Metric | Ours | Seeds | Paper | Difference | Tolerance | Verdict |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
        ]
        lines += [f"| {' | '.join(markdown_text(text) for text in _cells(c))} |" for c in here]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


_VERDICTS: tuple[Verdict, ...] = ("agree", "better", "worse", "not comparable")


def _cells(c: Comparison) -> Iterator[str]:
    yield c.method
    yield c.metric
    yield _shown(c, c.ours, c.ours_sd)
    yield str(c.n_seeds)
    yield _shown(c, c.paper, c.paper_sd)
    yield "-" if c.difference is None else f"{c.difference:+.{_digits(c)}f}"
    yield "-" if c.tolerance is None else f"{c.tolerance:.{_digits(c)}f}"
    yield c.verdict + (f": {c.reason}" if c.reason else "")


def _digits(c: Comparison) -> int:
    return 4 if c.metric in ("IntraAUC", "InterAUC", "GAUC", "WD", "KL") else 2


def _shown(c: Comparison, mean: float | None, sd: float | None) -> str:
    if mean is None:
        return "-"
    return f"{mean:.{_digits(c)}f}" + ("" if sd is None else f" ± {sd:.{_digits(c)}f}")
