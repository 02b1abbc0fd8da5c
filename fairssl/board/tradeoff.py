"""Accuracy against each gap over a whole table: the front, the area it dominates, the best accuracy at a given gap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fairssl.board.markdown import markdown_text, text_line
from fairssl.board.table import DOES_NOT_COMPETE, Column, Row, Table
from fairssl.scoring.statistics import SeedSummary
from fairssl.scoring.tradeoff import BestWithin, Point, best_within, hypervolume_over_seeds, pareto_front
from fairssl.types import Undefined

LIMITS = {True: (0.02, 0.05, 0.10, 0.15, 0.20, 0.25), False: (0.01, 0.02, 0.05, 0.10, 0.20, 0.30)}  # percent or not


@dataclass(frozen=True)
class TradeOff:
    """Of the rows whose seeds are all there. `area`: hypervolume over the seeds, each seed's from all rows, with the
    reference point (majority share, largest gap of any of these rows and seeds)."""

    gap: Column
    accuracy: Column
    front: tuple[str, ...]  # labels, by ascending gap; one that does not compete for fairness is marked
    left_out: tuple[str, ...]  # labels of rows that lack a seed or a value, or whose features have collapsed
    reference: Point
    area: SeedSummary
    best: tuple[BestWithin, ...]


def trade_offs(table: Table) -> list[TradeOff]:
    """One for each gap column that two rows have beside an accuracy."""
    accuracy = next((c for c in table.columns if c.better == "higher" and not c.diagnostic), None)
    if accuracy is None:
        return []
    found = (_of(table, accuracy, gap) for gap in table.columns if gap.is_gap)
    return [one for one in found if one is not None]


def _of(table: Table, accuracy: Column, gap: Column) -> TradeOff | None:
    rows = [
        row
        for row in table.rows
        if row.is_complete and not row.collapsed and None not in (_mean(row, accuracy), _mean(row, gap))
    ]
    if len(rows) < 2:
        return None
    labels = [f"{row.label} {DOES_NOT_COMPETE}" if row.below_majority else row.label for row in rows]
    points = {
        label: ((_mean(row, accuracy) or 0.0), (_mean(row, gap) or 0.0))
        for label, row in zip(labels, rows, strict=True)
    }
    by_seed = {seed: [_at(row, seed, accuracy, gap) for row in rows] for seed in table.seeds}
    reference = _majority(rows[0].facts), max(g for found in by_seed.values() for _, g in found)
    return TradeOff(
        gap=gap,
        accuracy=accuracy,
        front=tuple(labels[i] for i in pareto_front(list(points.values()))),
        left_out=tuple(row.label for row in table.rows if not any(row is one for one in rows)),
        reference=reference,
        area=hypervolume_over_seeds(by_seed, reference),
        best=tuple(best_within(points, LIMITS[gap.percent])),
    )


def _mean(row: Row, column: Column) -> float | None:
    return row.values[column.symbol].mean


def _at(row: Row, seed: int, accuracy: Column, gap: Column) -> Point:
    found = (row.values[c.symbol].by_seed.get(seed) for c in (accuracy, gap))
    a, g = (0.0 if x is None else x for x in found)
    return a, g


def _majority(facts: Mapping[str, object]) -> float:
    cells = facts.get("cells")
    sizes = [sum(groups.values()) for groups in cells.values()] if isinstance(cells, Mapping) else []
    return max(sizes) / sum(sizes) if sum(sizes) else 0.0


def sentences(one: TradeOff) -> list[str]:
    """What is said of a trade-off in words."""
    a, g = one.reference
    area = one.area
    spread = "" if isinstance(area.low, Undefined) else f", 95 % interval {area.low:.4f} to {area.high:.4f}"
    mean = "undefined" if isinstance(area.mean, Undefined) else f"{area.mean:.4f}"
    found = [f"Pareto front, by ascending {one.gap.heading}: {', '.join(one.front)}."]
    if one.left_out:
        found.append(f"Left out, for want of a seed or a value or as collapsed: {', '.join(one.left_out)}.")
    if any(label.endswith(DOES_NOT_COMPETE) for label in (*one.front, *(best.name or "" for best in one.best))):
        found.append(f"{DOES_NOT_COMPETE}: no more accurate than always saying the larger class.")
    return [
        *found,
        f"Hypervolume {mean}{spread} over the seeds; reference point {one.accuracy.heading} {one.accuracy.show(a)} (the "
        f"larger class), {one.gap.heading} {one.gap.show(g)} (the largest of any run of these rows).",
    ]


def best_rows_of(one: TradeOff) -> list[tuple[str, str, str, str]]:
    """Limit, method, accuracy and gap as printed; what no row keeps is `-`."""
    found = []
    for best in one.best:
        limit = one.gap.show(best.limit)
        if best.name is None or isinstance(best.accuracy, Undefined) or isinstance(best.gap, Undefined):
            found.append((limit, "-", "-", "-"))
        else:
            found.append((limit, best.name, one.accuracy.show(best.accuracy), one.gap.show(best.gap)))
    return found


def to_tradeoff_markdown(*tables: Table) -> str:
    """For each table and gap: front, hypervolume, and the best accuracy with a gap of at most k."""
    parts = []
    for table in tables:
        found = trade_offs(table)
        if not found:
            continue
        parts.append(f"## {markdown_text(table.title)}\n")
        for one in found:
            lines = [f"### {one.accuracy.heading} against {markdown_text(one.gap.heading)}", ""]
            lines += [markdown_text(sentence) for sentence in sentences(one)]
            gap = markdown_text(one.gap.heading)
            lines += [
                "",
                f"| {gap} at most | Method | {one.accuracy.heading} | {gap} |",
                "| ---: | --- | ---: | ---: |",
            ]
            lines += map(text_line, best_rows_of(one))
            parts.append("\n".join(lines) + "\n")
    return "\n".join(parts) or "No table has two complete rows.\n"
