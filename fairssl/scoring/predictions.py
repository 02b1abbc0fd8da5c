"""Predictions in a CSV file: read strictly, so that a damaged file is refused and never scored in part."""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairssl.machine import user_path
from fairssl.registry import did_you_mean
from fairssl.scoring.outcome import check_outcome, group_codes
from fairssl.types import Outcome, UserError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}


@dataclass(frozen=True)
class Predictions:
    """The predictions of a file, and what a reader of their metrics should know of how it was read."""

    outcome: Outcome
    notes: tuple[str, ...]


def read_predictions(
    path: str,
    *,
    target: str = "target",
    score: str = "score",
    group: str = "group",
    groups: Sequence[str] | None = None,
) -> Predictions:
    """Read a CSV file with a header, plain or gzipped; "-" is standard input.

    `target`, `score` and `group` name its columns; `groups` are all groups in order, some of which may be absent from the
    file. Values may be separated by commas, semicolons (then also with decimal commas), tabs or vertical bars. Quotes are
    held to the rules: one that is not closed, or that swallows whole rows, is a `UserError` with its line.
    """
    name = "standard input" if path == "-" else path
    columns, notes = _columns(_content(path), name, (target, score, group))
    values = sorted(set(columns[group]))
    if groups is None and len(values) == 1 and values[0].strip():
        raise UserError(
            f"column {group!r} has one value, {values[0]!r}, in {name}, but a gap needs two groups; if another is "
            f"absent from the file declare it: --groups {values[0]},OTHER"
        )
    named = (f"column {score!r}", f"column {target!r}", f"column {group!r}")
    codes, labels = group_codes(columns[group], groups, named=named[2])
    decimal_comma = any("semicolons" in note for note in notes)
    outcome = check_outcome(
        _numbers(columns[score], named[0], {}, decimal_comma),
        _numbers(columns[target], named[1], {"true": 1.0, "false": 0.0}, decimal_comma),
        codes,
        labels,
        named=named,
    )
    return Predictions(outcome, notes)


def _columns(text: str, name: str, wanted: Sequence[str]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """The wanted columns as text, one string per row, and notes."""
    lines = [line.rstrip("\r\n") for line in io.StringIO(text, newline="")]  # as the csv module counts them
    if not any(line.strip() for line in lines):
        raise UserError(f"{name} is empty; give a CSV file with a header and one row per prediction")
    separator = _separator(next(line for line in lines if line.strip()), wanted)
    rows = list(_rows(text, lines, separator, name))
    header = [column.strip() for column in rows[0][1]]
    for column in wanted:
        if header.count(column) != 1:
            if column in header:
                raise UserError(f"{name} has more than one column {column!r}; rename or remove all but one")
            by = f" (separated by {SEPARATORS[separator]})" if separator != "," else ""
            raise UserError(f"{name} has no column {column!r}{by}{did_you_mean(column, set(header))}")
    if len(rows) == 1:
        raise UserError(f"{name} has a header but no rows; give one row per prediction")
    for i, (line, row) in enumerate(rows[1:], start=1):
        if len(row) != len(header):
            raise UserError(
                f"{name} has {len(row)} values in row {i} (line {line}) but {len(header)} columns; repair that row"
            )
    filled = sum(1 for line in lines if line.strip())
    notes = []
    if separator != ",":
        notes.append(f"values separated by {SEPARATORS[separator]}")
    if filled != len(rows):
        notes.append(
            f"{len(rows) - 1} rows from {filled - 1} lines after the header: some quoted values hold line breaks"
        )
    return {column: [row[header.index(column)] for _, row in rows[1:]] for column in wanted}, tuple(notes)


def _separator(header: str, wanted: Sequence[str]) -> str:
    """The separator under which the header has the wanted columns; else the one that makes most columns of it."""

    def columns(separator: str) -> list[str]:
        try:
            return [column.strip() for column in next(csv.reader([header], delimiter=separator))]
        except csv.Error:
            return []

    found = {separator: columns(separator) for separator in SEPARATORS}
    for separator, names in found.items():
        if set(wanted) <= set(names):
            return separator
    return max(found, key=lambda separator: len(found[separator]))


def _rows(text: str, lines: Sequence[str], separator: str, name: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, values) of the header and of each row that is not empty."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    header_length = 0
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            what = "a quote that is not closed as it should be" if '"' in lines[line - 1] else "a fault"
            where = "" if reader.line_num == line else f", found at line {reader.line_num}"
            raise UserError(f"{name} has {what} in line {line}{where} ({error}); repair or double the quote") from error
        if not row:
            continue
        header_length = header_length or len(row)
        swallowed = lines[line : reader.line_num]
        alike = [one for one in swallowed if len(one.split(separator)) == header_length > 1]
        if alike:
            raise UserError(
                f"{name} has a quote in line {line} that is closed in line {reader.line_num} only: {len(alike)} lines "
                f"between them look like rows, as {_short(alike[0])!r}; repair or double the quote"
            )
        yield line, row


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _content(path: str) -> str:
    try:
        data = sys.stdin.buffer.read() if path == "-" else user_path(path).read_bytes()
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


_DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+(e[+-]?\d+)?")


def _numbers(cells: Sequence[str], name: str, words: Mapping[str, float], decimal_comma: bool) -> np.ndarray:
    """Float64 (N,) of a column's text; empty is NaN, which is refused later with a count."""

    def number(cell: str) -> float:
        text = cell.strip().lower()
        if decimal_comma and _DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
        return words[text] if text in words else float(text or "nan")

    numbers = np.empty(len(cells))
    for i, cell in enumerate(cells):
        try:
            numbers[i] = number(cell)
        except ValueError:
            accepted = "0 or 1" if words else "a number in [0, 1]"
            raise UserError(f"{name} holds {cell!r} in row {i + 1}, which is not {accepted}; repair that row") from None
    return numbers
