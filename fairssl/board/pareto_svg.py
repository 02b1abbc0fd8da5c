"""Accuracy against a gap, as an SVG that a page holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from fairssl.board.names import printed_name
from fairssl.board.table import Column, Table
from fairssl.scoring.tradeoff import pareto_front

WIDTH, HEIGHT = 640, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 16, 48
LABELLED = 14  # points; more would cover each other
RADIUS = 6  # of a point
LETTER = 7.2  # width of a letter of 13 px, a little more than the mean


def pareto_svg(table: Table, accuracy: Column, gap: Column) -> str:
    """A point per row that has both, with its spread over seeds; empty for fewer than two.

    The gap grows to the right, so good is top left. A point can have the focus, and its tip tells its setting.
    """
    found = []
    for row in table.rows:
        across_it, up_it = row.values[gap.symbol], row.values[accuracy.symbol]
        if across_it.mean is not None and up_it.mean is not None:
            found.append((row, across_it.mean, across_it.sd or 0.0, up_it.mean, up_it.sd or 0.0))
    if len(found) < 2:
        return ""
    across = _Axis([m - s for _, m, s, _, _ in found] + [m + s for _, m, s, _, _ in found], LEFT, WIDTH - RIGHT)
    up = _Axis([m - s for *_, m, s in found] + [m + s for *_, m, s in found], HEIGHT - BOTTOM, TOP)
    best = pareto_front([(y, x) for _, x, _, y, _ in found])
    parts = [*_axes(across, up, accuracy, gap)]
    line = " ".join(f"{across(found[i][1]):.1f},{up(found[i][3]):.1f}" for i in best)
    parts.append(f'<polyline class="front" points="{line}"/>')
    for i, (row, x, x_sd, y, y_sd) in enumerate(found):
        tip = [
            printed_name(row.label),
            f"{accuracy.heading} {accuracy.show(y)}" + (f" ± {accuracy.show(y_sd)}" if y_sd else ""),
            f"{gap.heading} {gap.show(x)}" + (f" ± {gap.show(x_sd)}" if x_sd else ""),
            f"target seen: {row.target_seen}, group seen: {row.group_seen}",
            "on the Pareto front" if i in best else "another row is better in both or equal",
        ]
        told = "&#10;".join(escape(" ".join(part.split()), quote=True) for part in tip)
        cx, cy = across(x), up(y)
        parts.append(
            f'<g class="point{" on-front" if i in best else ""}" tabindex="0" role="img" aria-label="{told}" data-tip="{told}">'
            f'<line x1="{across(x - x_sd):.1f}" y1="{cy:.1f}" x2="{across(x + x_sd):.1f}" y2="{cy:.1f}"/>'
            f'<line x1="{cx:.1f}" y1="{up(y - y_sd):.1f}" x2="{cx:.1f}" y2="{up(y + y_sd):.1f}"/>'
            f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{RADIUS}"/></g>'
        )
    if len(found) <= LABELLED:
        parts += _labels([(across(x), up(y), printed_name(row.name)[:24]) for row, x, _, y, _ in found])
    name = escape(f"{accuracy.heading} against {gap.heading}, {table.title}", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="group" aria-label="{name}">{"".join(parts)}</svg>'


def _labels(points: Sequence[tuple[float, float, str]]) -> list[str]:
    """A name beside each point, where it covers no other point and no other name if there is such a place."""
    taken = [(x - RADIUS, y - RADIUS, x + RADIUS, y + RADIUS) for x, y, _ in points]
    parts = []
    for x, y, name in points:
        wide = LETTER * len(name)
        right, left = x + RADIUS + 4, x - RADIUS - 4 - wide
        boxes = [(at, y + down - 11, at + wide, y + down + 3) for down in (-8, 16, 4, -20, 28) for at in (right, left)]
        inside = [box for box in boxes if box[0] > LEFT and box[2] < WIDTH and box[1] > 0] or boxes[:1]
        box = min(inside, key=lambda one: sum(_overlap(one, other) for other in taken))  # the first of the best
        taken.append(box)
        parts.append(f'<text aria-hidden="true" x="{box[0]:.1f}" y="{box[3] - 3:.1f}">{escape(name)}</text>')
    return parts


def _overlap(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The area that two boxes (left, top, right, bottom) share."""
    return max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))


class _Axis:
    """From values to pixels, with a margin and round ticks."""

    def __init__(self, values: Sequence[float], start: float, stop: float) -> None:
        low, high = min(values), max(values)
        margin = (high - low) * 0.08 or max(abs(high) * 0.05, 0.01)
        self.low, self.high, self.start, self.stop = low - margin, high + margin, start, stop

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[float]:
        raw = (self.high - self.low) / 5
        size = 10 ** math.floor(math.log10(raw))
        step = next(size * m for m in (1, 2, 5, 10) if raw <= size * m)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, math.floor(self.high / step) + 1)]


def _axes(across: _Axis, up: _Axis, accuracy: Column, gap: Column) -> list[str]:
    parts = []
    for tick in across.ticks():
        x = across(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(
            f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}" text-anchor="middle">{_tick(tick, gap)}</text>'
        )
    for tick in up.ticks():
        y = up(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick, accuracy)}</text>'
        )
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{HEIGHT - BOTTOM}" x2="{WIDTH - RIGHT}" y2="{HEIGHT - BOTTOM}"/>')
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{TOP}" x2="{LEFT}" y2="{HEIGHT - BOTTOM}"/>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(gap.heading)} (lower is better)</text>'
    )
    height = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text transform="translate(16 {height:.0f}) rotate(-90)" text-anchor="middle">{escape(accuracy.heading)}</text>'
    )
    return parts


def _tick(value: float, column: Column) -> str:
    return f"{value * 100:.4g}" if column.percent else f"{value:.3g}"
