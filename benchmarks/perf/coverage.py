"""How often the bootstrap intervals of every metric hold the truth, on simulated data whose truth is known.

    python benchmarks/perf/coverage.py [--sizes 200,1000,3200] [--sets 200] [--json coverage.json] [--markdown coverage.md]

Scores are logistic functions of normal logits, one normal distribution per cell of target and group, so that the true
value of each metric is known to four digits: it is that of a fine grid of the distributions' quantiles. Rows are drawn
within the cells, all of one size, as in a balanced test set; `iid` draws them from the population instead. Beside the
intervals of fairssl stand the percentile intervals of the same replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from outcome import Outcome as Report
from outcome import arguments, count, numbers, script, words

from fairssl import scoring
from fairssl.scoring.groups import Pairs
from fairssl.types import Outcome, Undefined, UserError

GRID = 100_000  # quantiles per cell


@dataclass(frozen=True)
class Population:
    """Where the logits of each cell (group, target) lie, with standard deviation 1, and how large the cells are."""

    centre: Mapping[tuple[int, int], float]
    share: Mapping[tuple[int, int], float] | None = None  # None: all cells alike
    iid: bool = False
    pairs: Pairs = "adjacent"

    @property
    def groups(self) -> tuple[str, ...]:
        return tuple(str(g) for g in sorted({g for g, _ in self.centre}))

    def shares(self) -> dict[tuple[int, int], float]:
        return dict(self.share or dict.fromkeys(self.centre, 1 / len(self.centre)))


def _shifted(*shifts: float, pairs: Pairs = "adjacent") -> Population:
    """Two classes two standard deviations apart, every group's logits shifted as a whole."""
    centre = {(g, y): 2.0 * y - 1 + shift for g, shift in enumerate(shifts) for y in (0, 1)}
    return Population(centre, pairs=pairs)


POPULATIONS = {
    "fair": _shifted(0, 0),
    "slight": _shifted(0, 0.1),
    "moderate": _shifted(0, 0.3),
    "large": _shifted(0, 1),
    "unlike": Population({(0, 0): -1, (0, 1): 1, (1, 0): -0.6, (1, 1): 0.6}),  # one group is told apart worse
    "fair-4": _shifted(0, 0, 0, 0),
    "moderate-4": _shifted(0, 0.2, 0.4, 0.6),
    "fair-4-max": _shifted(0, 0, 0, 0, pairs="max"),
    "moderate-4-max": _shifted(0, 0.2, 0.4, 0.6, pairs="max"),
    "fair-7": _shifted(*[0] * 7, pairs="all"),
    "mixed-7": _shifted(0, 0.1, -0.2, 0.3, 0, 0.15, -0.1, pairs="all"),
    "iid": Population(
        {(0, 0): -1, (0, 1): 1, (1, 0): -0.7, (1, 1): 1.3},
        share={(0, 0): 0.23, (0, 1): 0.38, (1, 0): 0.28, (1, 1): 0.11},
        iid=True,
    ),
}


def truth(population: Population) -> dict[str, float]:
    """The value of each metric on the population itself, undefined nowhere."""
    from scipy.special import ndtri

    columns: list[tuple[np.ndarray, int, int]] = []
    for (g, y), share in population.shares().items():
        n = round(GRID * share * len(population.centre))
        columns.append((ndtri((np.arange(n) + 0.5) / n) + population.centre[g, y], y, g))
    found = scoring.evaluate(_outcome(columns, population.groups), pairs=population.pairs)
    return {symbol: round(value, 6) for symbol, value in found.items() if isinstance(value, float)}


def drawn(population: Population, n: int, rng: np.random.Generator) -> Outcome:
    """N rows of the population."""
    shares = population.shares()
    if population.iid:
        sizes = rng.multinomial(n, list(shares.values()))
    else:
        sizes = np.array([round(n * share) for share in shares.values()])
    cells = [
        (rng.normal(size=m) + population.centre[cell], cell[1], cell[0])
        for cell, m in zip(shares, sizes.tolist(), strict=True)
    ]
    return _outcome(cells, population.groups)


def _outcome(cells: list[tuple[np.ndarray, int, int]], groups: tuple[str, ...]) -> Outcome:
    logit = np.concatenate([z for z, _, _ in cells])
    target = np.repeat([y for _, y, _ in cells], [len(z) for z, _, _ in cells])
    group = np.repeat([g for _, _, g in cells], [len(z) for z, _, _ in cells])
    return Outcome(1 / (1 + np.exp(-logit)), target, group, groups)


def measure(population: Population, n: int, n_sets: int, n_replicates: int, report: Report, name: str) -> None:
    """A row per metric: how many of `n_sets` intervals hold the truth, in %, and how wide they are on average."""
    true = truth(population)
    rng = np.random.default_rng([n, 20])
    ours: dict[str, list[tuple[bool, float]]] = {symbol: [] for symbol in true}
    percentile: dict[str, list[tuple[bool, float]]] = {symbol: [] for symbol in true}
    for seed in range(n_sets):
        outcome = drawn(population, n, rng)
        replicates = scoring.replicates(outcome, n_replicates, seed, pairs=population.pairs)
        intervals = scoring.intervals(outcome, replicates, seed, pairs=population.pairs)
        for symbol, value in true.items():
            low, high = intervals[symbol].low, intervals[symbol].high
            if not isinstance(low, Undefined) and not isinstance(high, Undefined):
                ours[symbol].append((low - 1e-12 <= value <= high + 1e-12, high - low))
            defined = [v for v in replicates[symbol] if not isinstance(v, Undefined)]
            low, high = np.quantile(defined, (0.025, 0.975))
            percentile[symbol].append((low - 1e-12 <= value <= high + 1e-12, high - low))
    for symbol, value in true.items():
        held, width = _means(ours[symbol])
        held_by_percentile, width_of_percentile = _means(percentile[symbol])
        report.add(
            population=name,
            n=n,
            metric=symbol,
            truth=value,
            coverage=held,
            width=width,
            none=100 * (1 - len(ours[symbol]) / n_sets),
            percentile_coverage=held_by_percentile,
            percentile_width=width_of_percentile,
        )


def _means(found: list[tuple[bool, float]]) -> tuple[float | None, float | None]:
    """(share in %, mean width); None where there was no interval at all."""
    if not found:
        return None, None
    return 100 * float(np.mean([held for held, _ in found])), float(np.mean([width for _, width in found]))


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", type=numbers, default=[200, 1000, 3200], help="rows of a test set")
    parser.add_argument("--sets", type=count, default=200, help="simulated test sets of each population and size")
    parser.add_argument("--replicates", type=count, default=300, help="of the bootstrap")
    parser.add_argument("--populations", type=words, default=list(POPULATIONS), help="some of their names")
    parser.add_argument("--markdown", type=Path, help="write the table over all populations there")
    options = parser.parse_args()
    for name in options.populations:
        if name not in POPULATIONS:
            raise UserError(f"--populations {name!r}: known are {', '.join(POPULATIONS)}")
    report = Report(__file__, options, torch.device("cpu"))
    for name in options.populations:
        for n in options.sizes:
            measure(POPULATIONS[name], n, options.sets, options.replicates, report, name)
    if options.markdown is not None:
        options.markdown.write_text(markdown(report), encoding="utf-8")


def markdown(report: Report) -> str:
    """Dated tables: the range over the populations of one kind, and every population by itself."""
    config, hardware, versions = (report.content[name] for name in ("config", "hardware", "versions"))
    lines = [
        "# What the bootstrap intervals cover",
        "",
        f"{report.content['date']} UTC, `python benchmarks/perf/coverage.py --sets {config['sets']}`: simulated test sets of "
        f"each population and size, {config['replicates']} replicates, 95 % intervals; fairssl {versions['fairssl']}, "
        f"Python {versions['python']}, {hardware['cpu']}. A coverage of 95 % is measured within "
        f"{196 * (0.95 * 0.05 / config['sets']) ** 0.5:.1f} points in 19 of 20 cases.",
        "",
        "An interval covers if it holds the true value of the population. `percentile` is what the percentile interval of "
        "the same replicates covers. What each kind of interval is stands at the head of `fairssl/scoring/resampling.py`; "
        "the populations are defined in the script.",
    ]
    kinds = {"Test sets of equal cells": False, "Rows drawn from the population (its cells vary in size)": True}
    for title, iid in kinds.items():
        rows = [row for row in report.rows if POPULATIONS[row["population"]].iid is iid]
        if rows:
            lines += ["", f"## {title}: lowest to highest over the populations, in %", "", *_over_populations(rows)]
    for name in config["populations"]:
        rows = [row for row in report.rows if row["population"] == name]
        lines += ["", f"## {name}", "", *_of_population(rows)]
    return "\n".join(lines) + "\n"


def _over_populations(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    sizes = sorted({row["n"] for row in rows})
    head = [f"n = {n:,}" for n in sizes] + [f"percentile, n = {n:,}" for n in sizes]
    lines = [f"| metric | {' | '.join(head)} |", f"| --- |{' ---: |' * len(head)}"]
    for symbol in dict.fromkeys(row["metric"] for row in rows):
        cells = []
        for key in ("coverage", "percentile_coverage"):
            for n in sizes:
                found = [row[key] for row in rows if (row["metric"], row["n"]) == (symbol, n)]
                held = [value for value in found if value is not None]
                cells.append(f"{min(held):.0f} to {max(held):.0f}" if held else "none")
        lines.append(f"| {symbol} | {' | '.join(cells)} |")
    return lines


def _of_population(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "| n | metric | truth | coverage, % | mean width | no interval, % | percentile, % | its mean width |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        covers, width = ("-" if row[key] is None else f"{row[key]:{form}}" for key, form in _OWN)
        lines.append(
            f"| {row['n']:,} | {row['metric']} | {row['truth']:.4f} | {covers} | {width} | {row['none']:.0f} | "
            f"{row['percentile_coverage']:.1f} | {row['percentile_width']:.4f} |"
        )
    return lines


_OWN = (("coverage", ".1f"), ("width", ".4f"))


if __name__ == "__main__":
    script(main)
