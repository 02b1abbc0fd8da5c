"""`fairssl score`: every metric of anybody's predictions, from a CSV file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import typer

from fairssl.machine import user_path
from fairssl.progress import reporter
from fairssl.registry import did_you_mean
from fairssl.types import Undefined, UserError

if TYPE_CHECKING:
    import numpy as np

    from fairssl.interfaces import Metric
    from fairssl.scoring.resampling import Interval
    from fairssl.types import Outcome, Value


def score(
    predictions: str = typer.Argument(help="CSV file with a header, plain or gzipped; - reads standard input."),
    target: str = typer.Option("target", help="Column of the true classes, 0 or 1."),
    score: str = typer.Option("score", help="Column of the probabilities of class 1, in [0, 1]."),
    group: str = typer.Option("group", help="Column of the sensitive attribute."),
    groups: str | None = typer.Option(
        None, help="All its values in order, as 0,1,2; some may be absent from the file."
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON, all numbers as fractions."),
    bootstrap: int = typer.Option(0, help="Replicates for 95 % intervals; 1000 is usual, 0 is none."),
    readings: bool = typer.Option(
        False, "--readings", help="Also the other readings of each notion, and the raw AUCs."
    ),
    pairs: str = typer.Option("adjacent", help="More than two groups: 'adjacent' as the paper, or 'all' pairs."),
    undefined: str = typer.Option("propagate", help="'propagate' an undefined part to the mean, or 'omit' it."),
) -> None:
    """Score predictions: accuracy and every fairness metric by group, at threshold 0.5."""
    from fairssl import scoring

    _one_of("--pairs", pairs, ("adjacent", "all"))
    _one_of("--undefined", undefined, ("propagate", "omit"))
    if bootstrap < 0:
        raise UserError(f"--bootstrap {bootstrap} is no number of replicates; 1000 is usual, 0 is none")
    file = predictions if predictions == "-" else str(user_path(predictions))
    outcome = _outcome(file, target, score, group, groups)
    how: dict[str, Any] = {"pairs": pairs, "undefined": undefined}
    values = scoring.evaluate(outcome, **how)
    intervals = _bootstrap(outcome, bootstrap, how) if bootstrap else None
    other = scoring.readings(outcome, **how) if readings else None
    if json:
        typer.echo(_json(outcome, values, intervals, other))
    else:
        heading = f"target {target}, {score} > 0.5 predicts 1, groups by {group}"
        typer.echo(_text(outcome, values, intervals, other, heading))


# --------------------------------------------------------------------------- from the file to an outcome


def _outcome(path: str, target: str, score: str, group: str, groups: str | None) -> Outcome:
    from fairssl import scoring

    columns = _read(path, (target, score, group))
    name = "standard input" if path == "-" else path
    declared = None if groups is None else [label.strip() for label in groups.split(",")]
    if declared is not None and "" in declared:
        raise UserError(f"--groups {groups!r} has an empty label; write it as 0,1,2")
    values = sorted(set(columns[group]))
    if declared is None and len(values) == 1 and values[0].strip():
        raise UserError(
            f"column {group!r} has one value, {values[0]!r}, in {name}, but a gap needs two groups; if another is "
            f"absent from the file declare it: --groups {values[0]},OTHER"
        )
    if declared is not None and len(declared) == 1:
        raise UserError(
            f"--groups {groups!r} declares one group, but a gap needs two; name all of them, as --groups 0,1"
        )
    named = [f"column {column!r}" for column in (score, target, group)]
    codes, labels = scoring.group_codes(columns[group], declared, named=named[2])
    return scoring.check_outcome(
        _numbers(columns[score], named[0], {}),
        _numbers(columns[target], named[1], {"true": 1.0, "false": 0.0}),
        codes,
        labels,
        named=(named[0], named[1], named[2]),
    )


def _read(path: str, wanted: Sequence[str]) -> dict[str, list[str]]:
    """The wanted columns as text, one string per row."""
    import csv
    import io

    name = "standard input" if path == "-" else path
    reader = csv.reader(io.StringIO(_content(path), newline=""))
    try:
        rows = [row for row in reader if row]
    except csv.Error as error:
        raise UserError(f"{name} is not a CSV file: line {reader.line_num}: {error}") from error
    if not rows:
        raise UserError(f"{name} is empty; give a CSV file with a header and one row per prediction")
    header = [column.strip() for column in rows[0]]
    for column in wanted:
        if header.count(column) != 1:
            if column in header:
                raise UserError(f"{name} has more than one column {column!r}; rename or remove all but one")
            raise UserError(f"{name} has no column {column!r}{did_you_mean(column, set(header))}")
    if len(rows) == 1:
        raise UserError(f"{name} has a header but no rows; give one row per prediction")
    for i, row in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise UserError(f"{name} has {len(row)} values in row {i} but {len(header)} columns; repair that row")
    return {column: [row[header.index(column)] for row in rows[1:]] for column in wanted}


def _content(path: str) -> str:
    import gzip
    import sys
    import zlib
    from pathlib import Path

    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"no file {path!r}; give a CSV file of predictions, or - for standard input") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text; save it as a CSV file in UTF-8") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is a broken gzip file ({error}); copy or compress it again") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; give a readable CSV file") from error


def _numbers(cells: Sequence[str], name: str, words: Mapping[str, float]) -> np.ndarray:
    """Float64 (N,) of a column's text; empty is NaN, which is refused later with a count."""
    import numpy as np

    def number(cell: str) -> float:
        text = cell.strip().lower()
        return words[text] if text in words else float(text or "nan")

    numbers = np.empty(len(cells))
    for i, cell in enumerate(cells):
        try:
            numbers[i] = number(cell)
        except ValueError:
            accepted = "0 or 1" if words else "a number in [0, 1]"
            raise UserError(f"{name} holds {cell!r} in row {i + 1}, which is not {accepted}; repair that row") from None
    return numbers


def _one_of(flag: str, value: str, known: Sequence[str]) -> None:

    if value not in known:
        raise UserError(f"{flag} {value!r} is unknown{did_you_mean(value, known)}")


def _bootstrap(outcome: Outcome, n: int, how: Mapping[str, Any]) -> dict[str, Interval]:
    """The intervals, with progress on stderr."""
    from fairssl import scoring

    with reporter() as log:
        return scoring.bootstrap(outcome, n, progress=log.stage, **how)


# --------------------------------------------------------------------------- output


def _json(
    outcome: Outcome,
    values: Mapping[str, Value],
    intervals: Mapping[str, Interval] | None,
    other: Mapping[str, Mapping[str, Value]] | None,
) -> str:
    import json

    result: dict[str, Any] = {
        "n": len(outcome.score),
        "groups": _sizes(outcome),
        "metrics": {symbol: _null(value) for symbol, value in values.items()},
        "undefined": {symbol: value.reason for symbol, value in values.items() if isinstance(value, Undefined)},
    }
    if partial := _partial(values):
        result["partial"] = partial
    if intervals is not None:
        result["intervals"] = {
            symbol: {"low": _null(i.low), "high": _null(i.high), "undefined_replicates": i.n_undefined}
            for symbol, i in intervals.items()
        }
    if other is not None:
        shown = {symbol: {name: _null(v) for name, v in named.items()} for symbol, named in other.items()}
        by_group = {label: {name: _null(v) for name, v in row.items()} for label, row in _by_group(outcome).items()}
        result["readings"] = {**shown, "by_group": by_group}
    return json.dumps(result, ensure_ascii=False, allow_nan=False)


def _text(
    outcome: Outcome,
    values: Mapping[str, Value],
    intervals: Mapping[str, Interval] | None,
    other: Mapping[str, Mapping[str, Value]] | None,
    heading: str,
) -> str:
    from fairssl import kinds, scoring

    metrics = {m.symbol: m for m in scoring.columns()}
    times = ", ".join(symbol for symbol, m in metrics.items() if m.percent)
    lines = [f"{len(outcome.score)} predictions: {heading}", f"{times}: x 100", ""]

    table = [["metric", "value", *(["95 % interval"] if intervals else []), "what it is"]]
    for symbol, value in values.items():
        row = [symbol, _number(value, metrics[symbol])]
        if intervals:
            one = intervals[symbol]
            low, high = (_number(end, metrics[symbol]) for end in (one.low, one.high))
            row.append("-" if low == "-" else f"{low} to {high}")
        table.append([*row, kinds.metrics.summary(metrics[symbol].name)])
    lines += _grid(table, left=(0, len(table[0]) - 1))

    notes = [f"{symbol}: undefined, {value.reason}" for symbol, value in values.items() if isinstance(value, Undefined)]
    notes += [f"{symbol}: {note}" for symbol, note in _partial(values).items()]
    for symbol, one in (intervals or {}).items():
        if one.n_undefined:
            notes.append(
                f"{symbol}: {one.n_undefined} of {one.n_replicates} bootstrap replicates undefined, interval unreliable"
            )
    lines += ["", *notes] if notes else []

    if other:
        table = [["other readings", "value"]]
        for symbol, named in other.items():
            table += [[f"{symbol}, {name}", _number(value, metrics[symbol])] for name, value in named.items()]
        lines += ["", *_grid(table, left=(0,))]

    rates = _by_group(outcome)
    cells = dict(zip(outcome.groups, scoring.cell_counts(outcome), strict=True))
    names = list(next(iter(rates.values()))) if other else ["Acc", "positive_rate", "TPR", "FPR"]
    table = [["group", "n", "n(y=0)", "n(y=1)", *names]]
    for label, (n_negative, n_positive) in cells.items():
        rest = [_plain(rates[label][name]) for name in names]
        table.append([label, str(n_negative + n_positive), str(n_negative), str(n_positive), *rest])
    lines += ["", *_grid(table, left=(0,))]
    if other:
        lines += ["", "AUC(P, N): how often a score of P is above one of N, ties a half; rest: all other groups"]
    return "\n".join(lines)


def _by_group(outcome: Outcome) -> dict[str, dict[str, Value]]:
    """What the metrics compare, raw: rates and AUCs of each group, as fractions."""
    from fairssl import scoring

    rates = {
        "Acc": scoring.accuracies(outcome),
        "positive_rate": scoring.positive_rates(outcome),
        "TPR": scoring.true_positive_rates(outcome),
        "FPR": scoring.false_positive_rates(outcome),
    }
    found: dict[str, dict[str, Value]] = {}
    for code, label in enumerate(outcome.groups):
        own, rest = (code,), [g for g in range(len(outcome.groups)) if g != code]
        found[label] = {name: by_group[code] for name, by_group in rates.items()} | {
            "AUC(pos, neg)": scoring.auc(outcome, (own, 1), (own, 0)),
            "AUC(pos, rest neg)": scoring.auc(outcome, (own, 1), (rest, 0)),
            "AUC(rest pos, neg)": scoring.auc(outcome, (rest, 1), (own, 0)),
            "AUC(all, rest)": scoring.auc(outcome, (own, None), (rest, None)),
        }
    return found


def _sizes(outcome: Outcome) -> dict[str, int]:
    from fairssl import scoring

    return {label: sum(n) for label, n in zip(outcome.groups, scoring.cell_counts(outcome), strict=True)}


def _partial(values: Mapping[str, Value]) -> dict[str, str]:
    from fairssl.scoring.groups import PartialMean

    return {
        symbol: f"mean of {value.n_defined} of {value.n_parts} parts, the others undefined"
        for symbol, value in values.items()
        if isinstance(value, PartialMean)
    }


def _null(value: Value) -> float | None:
    return None if isinstance(value, Undefined) else float(value)


def _number(value: Value, metric: Metric) -> str:
    if isinstance(value, Undefined):
        return "-"
    return f"{100 * value:.2f}" if metric.percent else f"{value:.4f}"


def _plain(value: Value) -> str:
    return "-" if isinstance(value, Undefined) else f"{value:.4f}"


def _grid(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Rows as aligned columns, a rule under the first."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        cells = (c.ljust(w) if i in left else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        return "  ".join(cells).rstrip()

    return [line(rows[0]), "  ".join("-" * w for w in widths), *(line(row) for row in rows[1:])]
