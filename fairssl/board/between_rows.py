"""Two rows of a table beside each other: is their difference more than chance, over the seeds and over the test samples?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fairssl.board.names import seeds_named
from fairssl.board.table import Column, Row, Table
from fairssl.registry import did_you_mean
from fairssl.scoring import check_outcome
from fairssl.scoring.comparison import SampleTest, compare_predictions
from fairssl.scoring.statistics import holm, paired_t_test
from fairssl.store.record import Predictions
from fairssl.types import Outcome, Progress, Undefined, UserError, Value, silent


@dataclass(frozen=True)
class RowTest:
    """A metric of the rows `a` and `b` over the seeds that both have, in the units that are printed.

    `difference`, a - b, with its 95 % interval and `p`: a two-sided paired t test over the seeds. `p_holm`: the same corrected
    by Holm for the metrics of the table. `p_samples`: seed -> p of a permutation test over the test samples of that seed's two
    models, where it was asked for. What is undefined is None, and `reason` says why.
    """

    dataset: str
    target: str
    attribute: str
    a: str
    b: str
    metric: str
    seeds: tuple[int, ...]
    mean_a: float | None
    mean_b: float | None
    difference: float | None
    low: float | None
    high: float | None
    p: float | None
    p_holm: float | None
    p_samples: Mapping[int, float | None] = field(default_factory=dict)
    reason: str = ""


def compare_rows(
    tables: Sequence[Table],
    names: Sequence[str],
    predictions: Callable[[str], Predictions | None],
    n_exchanges: int = 0,
    progress: Progress = silent,
) -> list[RowTest]:
    """Every metric of two rows, in each table that has both. `names`: their labels, or their methods where one row has it.

    Exchanging the two names changes the signs of the differences and nothing else. `n_exchanges`: of the permutation test over
    the samples, 0 for none. Errors, `UserError`: not two different names, a name that no table has, no table with both.
    """
    if len(names) != 2 or names[0] == names[1]:
        raise UserError(
            f"--row: name two different rows, as --row simclr --row sofclr (not {', '.join(names) or 'none'})"
        )
    known = sorted({row.label for table in tables for row in table.rows})
    pairs = []
    for table in tables:
        a, b = (_row_of(table, name) for name in names)
        if a is not None and b is not None:
            pairs.append((table, a, b))
    if not pairs:
        for name in names:
            if not any(_row_of(table, name) for table in tables):
                raise UserError(f"--row {name!r} is in no table{did_you_mean(name, known)}")
        raise UserError(f"no table has both {names[0]} and {names[1]}")
    return [
        one
        for table, a, b in pairs
        for one in _tests(table, a, b, _by_samples(a, b, predictions, n_exchanges, progress))
    ]


def _row_of(table: Table, name: str) -> Row | None:
    found = [row for row in table.rows if row.label == name] or [row for row in table.rows if row.name == name]
    if len(found) > 1:
        raise UserError(f"--row {name!r} may be {' or '.join(row.label for row in found)}; name one as the table does")
    return found[0] if found else None


def _by_samples(
    a: Row, b: Row, predictions: Callable[[str], Predictions | None], n_exchanges: int, progress: Progress
) -> dict[int, dict[str, SampleTest]]:
    """seed -> symbol -> test over the samples, of the seeds that both rows have."""
    found = {}
    for seed in sorted(set(a.keys) & set(b.keys)) if n_exchanges else ():
        kept = [None if seed in row.failed else predictions(row.keys[seed]) for row in (a, b)]
        if kept[0] is None or kept[1] is None:
            continue
        if sorted(kept[0].ids) != sorted(kept[1].ids):
            raise UserError(
                f"{a.label} and {b.label} were judged on different test images with seed {seed}; leave --samples out"
            )
        ours, theirs = (_outcome(one, a.facts["groups"]) for one in (kept[0], kept[1]))
        pairs: Any = a.facts.get("pairs") or "adjacent"  # as a record has it
        found[seed] = compare_predictions(ours, theirs, n_exchanges, pairs=pairs, progress=progress)
    return found


def _outcome(kept: Predictions, groups: Sequence[str]) -> Outcome:
    """The test predictions in order of their ids."""
    order = np.argsort(np.asarray(kept.ids), kind="stable")
    return check_outcome(kept.score[order], kept.target[order], kept.group[order], groups)


def _tests(table: Table, a: Row, b: Row, by_samples: Mapping[int, Mapping[str, SampleTest]]) -> list[RowTest]:
    columns = [column for column in table.columns if not column.diagnostic]
    tests = {c.symbol: paired_t_test(a.values[c.symbol].by_seed, b.values[c.symbol].by_seed) for c in columns}
    corrected = holm({symbol: test.p for symbol, test in tests.items()})
    found = []
    for column in columns:
        test = tests[column.symbol]
        of_a, of_b = a.values[column.symbol].by_seed, b.values[column.symbol].by_seed
        seeds = tuple(s for s in sorted(set(of_a) & set(of_b)) if None not in (of_a[s], of_b[s]))
        found.append(
            RowTest(
                dataset=table.dataset,
                target=table.target,
                attribute=table.attribute,
                a=a.label,
                b=b.label,
                metric=column.symbol,
                seeds=seeds,
                mean_a=_mean(of_a, seeds, column),
                mean_b=_mean(of_b, seeds, column),
                difference=_printed(test.difference, column),
                low=_printed(test.low, column),
                high=_printed(test.high, column),
                p=_number(test.p),
                p_holm=_number(corrected[column.symbol]),
                p_samples={seed: _number(of[column.symbol].p) for seed, of in by_samples.items()},
                reason=test.p.reason if isinstance(test.p, Undefined) else "",
            )
        )
    return found


def _mean(values: Mapping[int, float | None], seeds: Sequence[int], column: Column) -> float | None:
    numbers = [values[seed] or 0.0 for seed in seeds]
    return _printed(math.fsum(numbers) / len(numbers), column) if numbers else None


def _printed(value: Value, column: Column) -> float | None:
    number = _number(value)
    return None if number is None else number * column.scale


def _number(value: Value) -> float | None:
    return None if isinstance(value, Undefined) else float(value)


def to_markdown_tests(found: Sequence[RowTest], tables: Sequence[Table]) -> str:
    """A table per (dataset, target, attribute), with what the columns are above it."""
    from fairssl.board.markdown import markdown_text, table_line, text_line

    columns = {column.symbol: column for table in tables for column in table.columns}
    parts = []
    for place in dict.fromkeys((one.dataset, one.target, one.attribute, one.a, one.b) for one in found):
        here = [one for one in found if (one.dataset, one.target, one.attribute, one.a, one.b) == place]
        dataset, target, attribute, a, b = place
        by_samples = list(here[0].p_samples)
        head = ["Metric", a, b, "Difference", "95 % interval", "p", "p (Holm)"]
        head += ["p by samples"] if by_samples else []
        rows = [[*_cells(one, columns[one.metric]), *([_samples(one)] if by_samples else [])] for one in here]
        lines = [
            f"## {markdown_text(f'{dataset}: target {target}, attribute {attribute}: {a} and {b}')}",
            "",
            markdown_text(" ".join(_sentences(here, by_samples))),
            "",
            text_line(head),
            table_line(["---", *("---:" for _ in head[1:])]),
            *map(text_line, rows),
        ]
        reasons = {one.reason: None for one in here if one.reason}
        lines += ["", *(f"- {markdown_text(reason)}." for reason in reasons)] if reasons else []
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _sentences(found: Sequence[RowTest], by_samples: Sequence[int]) -> Iterator[str]:
    one = found[0]
    seeds = {test.seeds for test in found}
    over = f"over {seeds_named(one.seeds)}" if len(seeds) == 1 and one.seeds else "over the seeds that both have"
    yield f"Difference: {one.a} less {one.b}, {over}, with a t interval."
    yield f"p: two-sided paired t test over the seeds; Holm: corrected for the {len(found)} metrics."
    if by_samples:
        yield (
            f"p by samples, of {seeds_named(by_samples)}: the scores of a random half of the test images exchanged; it is about "
            "the two trained models of a seed, not about the methods."
        )


def _cells(one: RowTest, column: Column) -> list[str]:
    def text(value: float | None, sign: str = "") -> str:
        return "-" if value is None else f"{value:{sign}.{column.digits}f}"

    interval = "-" if one.low is None or one.high is None else f"{text(one.low, '+')} to {text(one.high, '+')}"
    difference = text(one.difference, "+")
    return [column.heading, text(one.mean_a), text(one.mean_b), difference, interval, _p(one.p), _p(one.p_holm)]


def _samples(one: RowTest) -> str:
    return ", ".join(_p(value) for value in one.p_samples.values())


def _p(value: float | None) -> str:
    return "-" if value is None else "under 0.001" if value < 0.001 else f"{value:.3f}"
