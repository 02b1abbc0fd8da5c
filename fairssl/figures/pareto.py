"""Accuracy against a gap: one point per row, one line per method over its weight."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairssl.board.describe import composition
from fairssl.board.names import printed_name
from fairssl.board.table import Column, Row, SeedStats, Table
from fairssl.figures.style import colour, figures, file_name, marker, plain, save
from fairssl.registry import did_you_mean
from fairssl.scoring.tradeoff import pareto_front
from fairssl.types import UserError


def pareto(tables: Sequence[Table], folder: Path, metric: str = "ED", accuracy: str = "Acc") -> list[Path]:
    """A figure per table: `accuracy` against `metric`, with 95 % intervals over seeds, and the Pareto front.

    Rows of one method that differ in a head's weight (alpha) are joined in its order, each point with its weight.
    """
    paths: list[Path] = []
    for table in tables:
        up, across = column_of(table, accuracy), column_of(table, metric)
        points = [
            (row, x, y)
            for row in table.rows
            if (x := row.values[across.symbol]).mean is not None and (y := row.values[up.symbol]).mean is not None
        ]
        if points:
            paths += _draw(table, points, up, across, folder, file_name(f"pareto_{metric}", table, tables))
    if not paths:
        raise UserError(f"no row has both {accuracy} and {metric}; nothing to draw")
    return paths


def column_of(table: Table, symbol: str) -> Column:
    """A metric of the table by its symbol; an unknown one is a `UserError`."""
    columns = {c.symbol: c for c in (*table.columns, *table.hidden)}
    if symbol not in columns:
        raise UserError(f"--metric {symbol!r} is not in the table{did_you_mean(symbol, columns)}")
    return columns[symbol]


def _draw(
    table: Table,
    points: Sequence[tuple[Row, SeedStats, SeedStats]],
    up: Column,
    across: Column,
    folder: Path,
    name: str,
) -> list[Path]:
    with figures() as figure_of:
        figure = figure_of(figsize=(5.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        names = list(dict.fromkeys(row.name for row, _, _ in points))
        for at, method in enumerate(names):
            mine = sorted(
                (p for p in points if p[0].name == method), key=lambda p: (weight_of(p[0]) or 0.0, p[0].label)
            )
            xs, ys = [_printed(x, across) for _, x, _ in mine], [_printed(y, up) for _, _, y in mine]
            axes.errorbar(
                xs,
                ys,
                xerr=_errors([x for _, x, _ in mine], across),
                yerr=_errors([y for _, _, y in mine], up),
                fmt=f"{marker(at)}-" if len(mine) > 1 else marker(at),
                color=colour(at),
                elinewidth=0.8,
                capsize=2,
                markersize=5,
                label=plain(printed_name(method)),
            )
            weights = [weight_of(row) for row, _, _ in mine]
            if len(set(weights)) > 1:
                for x, y, weight in zip(xs, ys, weights, strict=True):
                    axes.annotate("" if weight is None else f"{weight:g}", (x, y), (4, 4), textcoords="offset points")
        best = pareto_front([(y.mean or 0.0, x.mean or 0.0) for _, x, y in points])
        edge = sorted((_printed(points[i][1], across), _printed(points[i][2], up)) for i in best)
        axes.plot(
            [x for x, _ in edge],
            [y for _, y in edge],
            color="#666666",
            linestyle=":",
            marker="o",  # a ring around each point, which alone shows a front of one
            markersize=11,
            markerfacecolor="none",
            zorder=1,
            label="Pareto front",
        )
        _keep_possible(axes, across, up)
        axes.set_xlabel(plain(_label(across)))
        axes.set_ylabel(plain(_label(up)))
        axes.set_title(plain(table.title), fontsize=9)
        axes.legend(fontsize=8)
        return save(figure, folder, name)


def _keep_possible(axes: Any, across: Column, up: Column) -> None:
    """No axis of a percentage goes beyond 0 and 100, whatever its intervals do: of few seeds they are very long."""
    for limits, set_limits, column in ((axes.get_xlim(), axes.set_xlim, across), (axes.get_ylim(), axes.set_ylim, up)):
        if column.percent:
            set_limits(max(limits[0], -2.0), min(limits[1], 102.0))


def weight_of(row: Row) -> float | None:
    """The weight of the row's head, 0 where it has none, None where it has several."""
    weights = [value for name, value in composition(row).items() if name.endswith(".weight")]
    return 0.0 if not weights else float(weights[0]) if len(weights) == 1 else None


def _printed(value: SeedStats, column: Column) -> float:
    return (value.mean or 0.0) * column.scale


def _errors(values: Sequence[SeedStats], column: Column) -> list[list[float]]:
    """Distances to the ends of the intervals, or the standard deviation where there is none."""
    scale, low, high = column.scale, [], []
    for v in values:
        mean, spread = v.mean or 0.0, v.sd or 0.0
        low.append(scale * (spread if v.low is None else max(0.0, mean - v.low)))
        high.append(scale * (spread if v.high is None else max(0.0, v.high - mean)))
    return [low, high]


def _label(column: Column) -> str:
    return f"{column.heading}{' (x 100)' if column.percent else ''}, {column.better} is better"
