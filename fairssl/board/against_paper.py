"""Our numbers beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from fairssl.board.describe import composition, differing
from fairssl.board.names import paper_method
from fairssl.board.paper import PaperCell, PaperProtocol, PaperRow, paper_rows
from fairssl.board.settings import not_defaults
from fairssl.board.table import Column, Row, SeedStats, Table

Verdict = Literal["agree", "better", "worse", "not comparable"]
LEAST = {True: 1.0, False: 0.01}  # tolerance at least: points of percent metrics, and units of the others
DEVIATIONS = 2.0


@dataclass(frozen=True)
class Comparison:
    """A cell of ours beside the paper's, both in the units that are printed. `tolerance` is what still counts as agreeing:
    two standard deviations of the difference, sqrt(sd^2 + sd_paper^2), and at least 1 point, or 0.01. Where the paper prints no
    standard deviation, ours alone counts."""

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
    differences: tuple[str, ...] = ()  # of the row's protocol from the paper's, each with the paper's value


def compare_with_paper(tables: Sequence[Table]) -> list[Comparison]:
    """Every cell of the tables that the paper prints too, in the tables' order."""
    return [one for table in tables for one in _of_table(table)]


def _of_table(table: Table) -> Iterator[Comparison]:
    pairs = [(row, theirs) for row in table.rows for theirs in _rows_of(table, row)]
    for row, theirs in pairs:
        differences = tuple(_differences(row, theirs.protocol))
        other = _not_the_papers(row, [one for one, same in pairs if same == theirs], theirs.protocol)
        for symbol, cell in theirs.cells.items():
            column = next((c for c in (*table.columns, *table.hidden) if c.symbol == symbol), None)
            if column is not None:
                yield _compared(table, row, theirs, column, cell, differences, other)


def _rows_of(table: Table, row: Row) -> Iterator[PaperRow]:
    place = (table.dataset, table.target, table.attribute, paper_method(row.name))
    transferred = row.spec.get("pretrain") is not None
    for theirs in paper_rows():
        same = (theirs.dataset, theirs.target, theirs.attribute, theirs.method) == place
        if same and (theirs.table == "transfer") == transferred:
            yield theirs


def _differences(row: Row, paper: PaperProtocol) -> Iterator[str]:
    """What of the row is not as the paper says, with the paper's value; what the paper does not say is told as that."""
    encoder, train, probe = (row.spec.get(part) or {} for part in ("encoder", "train", "probe"))
    params = encoder.get("params") or {}
    name = params.get("model", encoder.get("name"))
    if name != paper.encoder:
        yield f"encoder {name} (paper {paper.encoder})"
    if params.get("weights"):
        yield "an encoder that begins with given weights (paper: with random ones)"
    size = (row.spec.get("pretrain") or row.spec["data"]).get("image_size")
    if size != paper.image_size:
        yield f"{size} px (paper {'does not say' if paper.image_size is None else paper.image_size})"
    if train.get("epochs") != paper.epochs:
        yield f"{train.get('epochs')} epochs (paper {paper.epochs})"
    if train.get("batch_size") != paper.batch_size:
        yield f"batch {train.get('batch_size')} (paper {paper.batch_size})"
    share = row.spec.get("annotated")  # None: no part of the run reads who is annotated
    if share is not None and share != paper.annotated:
        yield f"{100 * share:.3g} % of the training images annotated (paper {100 * paper.annotated:.3g} %)"
    for fact, what in (("n_train", "training"), ("n_test", "test")):
        n, theirs = row.facts.get(fact), getattr(paper, fact)
        if n is not None and n != theirs:
            yield f"{n:,} {what} images (paper {theirs:,})"
    if (row.spec["method"].get("probe"), probe.get("kind")) == ("linear", "linear"):
        steps = probe["epochs"] * math.ceil(row.facts.get("n_train", 0) / probe["batch_size"])
        if probe["epochs"] != paper.probe_epochs:
            yield f"a probe of {probe['epochs']} epochs (paper {paper.probe_epochs})"
        elif steps < probe.get("min_steps", 0):
            yield f"a probe of {probe['min_steps']:,} steps (paper {paper.probe_epochs} epochs)"


def _not_the_papers(row: Row, namesakes: Sequence[Row], paper: PaperProtocol) -> str:
    """Why the paper's row is not of this composition; empty if it is. `namesakes`: all rows that are set against it.

    The paper chose weights on validation data and does not print them: its row is that of a method by its own settings, or
    by ones that were selected. Of several rows of one method, what sets one apart must be the paper's too.
    """
    apart = differing([composition(one) for one in namesakes])

    def is_other(name: str) -> bool:
        of_method = name == "probe.thresholds" or name.partition(".")[0] not in ("train", "probe")
        return (of_method and not row.facts.get("selections")) or name in apart

    other = [f"{name}={value}" for name, value in not_defaults(row.spec, row.name).items() if is_other(name)]
    shared = set.intersection(*(set(_differences(one, paper)) for one in namesakes))
    other += [text for text in _differences(row, paper) if text not in shared]
    return f"not what stands for the paper's row: {', '.join(other)}" if other else ""


def _compared(
    table: Table,
    row: Row,
    theirs: PaperRow,
    column: Column,
    cell: PaperCell,
    differences: tuple[str, ...],
    other: str,
) -> Comparison:
    value, scale = row.values[column.symbol], column.scale
    ours = None if value.mean is None else value.mean * scale
    sd = None if value.sd is None else value.sd * scale
    tolerance = max(LEAST[column.percent], DEVIATIONS * math.hypot(sd or 0.0, cell.sd or 0.0))
    reason = _not_comparable(row, column, value, cell, theirs.protocol, other)
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
        differences=differences,
    )


def _not_comparable(
    row: Row, column: Column, value: SeedStats, cell: PaperCell, paper: PaperProtocol, other: str
) -> str:
    if other:
        return other
    if cell.inconsistent:
        return f"the paper's value is inconsistent: {cell.inconsistent}"
    if value.mean is None:
        return f"ours is undefined: {value.reason}"
    if value.n == 1:
        return "one seed: our spread is not known"
    n_test = row.facts.get("n_test")
    if column.symbol == "KL" and n_test != paper.n_test:  # it grows as the test set shrinks
        ours = "is not known" if n_test is None else f"has {n_test:,} images"
        return f"KL depends on the size of the test set: ours {ours}, the paper's {paper.n_test:,}"
    return ""


def _deviation_of(found: Sequence[Comparison]) -> str:
    if all(c.paper_sd is None for c in found):
        return "ours, since this table of the paper prints none"
    some = any(c.paper_sd is None for c in found)
    return "the difference" + (", of ours alone where the paper prints none" if some else "")


def to_markdown_comparison(found: Sequence[Comparison]) -> str:
    """A table per (dataset, target, attribute) and table of the paper's, with what is not the paper's protocol and a count
    of the verdicts."""
    from fairssl.board.markdown import markdown_text, text_line

    parts = []
    places = dict.fromkeys((c.dataset, c.target, c.attribute, c.paper_table) for c in found)
    for place in places:
        here = [c for c in found if (c.dataset, c.target, c.attribute, c.paper_table) == place]
        dataset, target, attribute, name = place
        counts = ", ".join(f"{sum(c.verdict == v for c in here)} {v}" for v in _VERDICTS)
        lines = [
            f"## {markdown_text(f'{dataset}: target {target}, attribute {attribute}, against the table {name}')}",
            "",
            *(f"{markdown_text(text)}\n" for text in _protocol_sentence(here)),
            f"{counts}. Tolerance: two standard deviations of {_deviation_of(here)}, at least 1 point or 0.01.",
            "",
            "| Method | Metric | Ours | Seeds | Paper | Difference | Tolerance | Verdict |",
            "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
        ]
        lines += [text_line(_cells(c)) for c in here]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _protocol_sentence(here: Sequence[Comparison]) -> Iterator[str]:
    """What differs from the paper's protocol, with the rows of which it is true where it is not of all."""
    methods = dict.fromkeys(c.method for c in here)
    owners: dict[str, dict[str, None]] = {}
    for c in here:
        for text in c.differences:
            owners.setdefault(text, {})[c.method] = None
    told = [text + ("" if len(rows) == len(methods) else f" of {', '.join(rows)}") for text, rows in owners.items()]
    if told:
        yield f"Not as in the paper, which alone may make a value better or worse: {'; '.join(told)}."


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
