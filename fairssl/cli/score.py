"""`fairssl score`: every metric of anybody's predictions, from a CSV file."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import typer

from fairssl.progress import reporter
from fairssl.registry import did_you_mean
from fairssl.types import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from fairssl.scoring.api import Scores, TextTable


def score(
    predictions: str = typer.Argument(help="CSV file with a header, plain or gzipped; - reads standard input."),
    target: str = typer.Option("target", help="Column of the true classes, 0 or 1."),
    score: str = typer.Option("score", help="Column of the probabilities of class 1, in [0, 1]."),
    group: str = typer.Option("group", help="Column of the sensitive attribute."),
    groups: str | None = typer.Option(
        None, help="All its values in order, as 0,1,2; some may be absent from the file."
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON, all numbers as fractions."),
    bootstrap: int = typer.Option(0, help="Replicates for 95 % intervals; 1000 is usual, 100 the least, 0 is none."),
    noise_floor: int = typer.Option(
        0,
        help="Permutations of the groups, for what chance measures on this test set; 200 is usual, 20 the least, "
        "0 is none.",
    ),
    readings: bool = typer.Option(
        False, "--readings", help="Also the other readings of each notion, and the raw AUCs."
    ),
    ordered: bool | None = typer.Option(
        None,
        "--ordered/--nominal",
        help="More than two groups: whether their order has a meaning; nominal if left out.",
    ),
    pairs: str | None = typer.Option(
        None,
        help="More than two groups: mean over 'adjacent' pairs (ordered groups, as the paper), over 'all' pairs (nominal "
        "groups), or the 'max' of all; left out, --ordered or --nominal decides.",
    ),
    undefined: str = typer.Option("propagate", help="'propagate' an undefined part to the mean, or 'omit' it."),
) -> None:
    """Score predictions: accuracy and every fairness metric by group, at threshold 0.5.

    Examples:

        fairssl score predictions.csv --target y --score p --group a
        fairssl score predictions.csv --groups 0,1,2 --bootstrap 1000 --json
    """
    from fairssl.scoring.api import score_outcome
    from fairssl.scoring.predictions import read_predictions
    from fairssl.scoring.resampling import check_replicates

    _one_of("--pairs", pairs, (None, "adjacent", "all", "max"))
    _one_of("--undefined", undefined, ("propagate", "omit"))
    check_replicates("--bootstrap", bootstrap, "bootstrap")
    check_replicates("--noise-floor", noise_floor, "permutations")
    if ordered is False and pairs == "adjacent":
        raise UserError("--pairs adjacent needs groups in order, which --nominal denies; drop one of them")
    read = read_predictions(predictions, target=target, score=score, group=group, groups=_labels(groups))
    how: dict[str, Any] = {"ordered": ordered, "pairs": pairs, "undefined": undefined, "notes": read.notes}
    with reporter() as log:
        found = score_outcome(
            read.outcome,
            **how,
            n_bootstrap=bootstrap,
            n_permutations=noise_floor,
            named=(score, target, group),
            progress=log.stage,
        )
    if json:
        import json as encoder

        typer.echo(encoder.dumps(found.to_dict(readings), ensure_ascii=False, allow_nan=False))
    else:
        _show(found, readings)


def _labels(groups: str | None) -> list[str] | None:
    if groups is None:
        return None
    labels = [label.strip() for label in groups.split(",")]
    if "" in labels:
        raise UserError(f"--groups {groups!r} has an empty label; write it as 0,1,2")
    if len(labels) == 1:
        raise UserError(
            f"--groups {groups!r} declares one group, but a gap needs two; name all of them, as --groups 0,1"
        )
    return labels


def _one_of(flag: str, value: str | None, known: tuple[str | None, ...]) -> None:
    if value not in known:
        raise UserError(f"{flag} {value!r} is unknown{did_you_mean(str(value), [k for k in known if k])}")


def _show(found: Scores, readings: bool) -> None:
    """In colour and as wide as the terminal; plain text where the output is piped."""
    from rich.console import Console
    from rich.text import Text

    if not sys.stdout.isatty():  # not what rich takes for a terminal, which FORCE_COLOR decides
        typer.echo(found.text(readings))
        return
    console = Console(highlight=False, force_terminal=True)
    first, *rest = found.tables(readings)
    console.print(Text("\n".join(found.caption), style="bold"), Text(found.scale, style="dim"), sep="\n")
    _print(console, first)
    if not any(set(first.wraps) & set(part) for part in _fitting(first, console.width)):
        console.print(Text("what each is: fairssl show metric NAME", style="dim"))
    if found.remarks:
        console.print(Text("\n".join(found.remarks), style="yellow"))
    for table in rest:
        _print(console, table)


GAP = 3  # between columns
LEAST_TEXT = 40  # characters for a column of text; where there is less room it is left out


def _print(console: Console, table: TextTable) -> None:
    """The table in colour. No value is broken: what does not fit stands in a table below, the first column repeated."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    widest = console.width // 2
    for columns in _fitting(table, console.width):
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for i in columns:
            justify: Any = "left" if i in table.left else "right"
            keeps = i not in table.wraps and max(len(row[i]) for row in table.rows) <= widest
            grid.add_column(table.head[i], justify=justify, no_wrap=keeps, overflow="fold")
        for row in table.rows:
            name, *cells = (row[i] for i in columns)
            dim = [cell == "-" or i in table.wraps for i, cell in zip(columns[1:], cells, strict=True)]
            texts = [Text(cell, style="dim" if faint else "") for cell, faint in zip(cells, dim, strict=True)]
            grid.add_row(Text(name, style="bold cyan"), *texts)
        console.print(grid)


def _fitting(table: TextTable, width: int) -> list[list[int]]:
    """Positions of the columns of each part of the table that fits in `width` characters."""
    widths = [max(len(row[i]) for row in (table.head, *table.rows)) for i in range(len(table.head))]
    parts: list[list[int]] = [[0]]
    room = left = width - 2 - widths[0]
    for i in range(1, len(widths)):
        needed = GAP + (min(widths[i], LEAST_TEXT) if i in table.wraps else widths[i])
        if needed > left and i in table.wraps:
            continue
        if needed > left and len(parts[-1]) > 1:
            parts.append([0])
            left = room
        parts[-1].append(i)
        left -= needed
    return parts
