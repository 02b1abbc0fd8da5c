"""Records to tables: a pure function, so that equal records give equal bytes in whatever order they come.

A row is one composition with all its settings, over its seeds. A table holds rows that may be compared: the same data
(version, parameters, content, image size, split), target and attribute, and the same versions of the shown metrics.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from fairssl.store import Record, RunStore, State, StoreError, to_json, whole_file
from fairssl.types import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Column:
    """A metric as a table shows it. Fractions come in; `percent` ones are printed x 100.

    A `diagnostic` is no metric: it has no version and none is best.
    """

    symbol: str
    heading: str
    better: Literal["higher", "lower"]
    percent: bool
    diagnostic: bool = False

    def show(self, value: float) -> str:
        return f"{value * 100:.2f}" if self.percent else f"{value:.4f}"


COLUMNS = (  # the paper's, in its order
    Column("Acc", "Acc", "higher", True),
    Column("ED", "ΔED", "lower", True),
    Column("EO", "ΔEO", "lower", True),
    Column("DP", "ΔDP", "lower", True),
    Column("IntraAUC", "IntraAUC", "lower", False),
    Column("InterAUC", "InterAUC", "lower", False),
    Column("GAUC", "GAUC", "lower", False),
    Column("WD", "WD", "lower", False),
    Column("KL", "KL", "lower", False),
    # balanced accuracy of a fresh classifier that looks for the group in the frozen features
    Column("Leak", "Leak", "lower", True, diagnostic=True),
)


@dataclass(frozen=True)
class Value:
    """A metric over seeds: mean and sample standard deviation (n - 1), None for one seed.

    `mean` is None, with the reason, if any seed that ended well has no value.
    """

    mean: float | None
    sd: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Row:
    """One composition with its settings. `failed` has the seeds that failed or diverged; values are over the others."""

    label: str
    values: Mapping[str, Value]  # symbol -> value
    seeds: tuple[int, ...]
    failed: Mapping[int, tuple[State, str]]  # seed -> how it ended, and the error in one line
    target_seen: str  # none, annotated, all
    group_seen: str
    spec: Mapping[str, Any] = field(repr=False)  # of any of its seeds
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    identity: str = ""  # hash of the spec without seed and name

    @property
    def verdict(self) -> str:
        """Which seeds did not end well, as `failed (2 of 3 seeds)`; empty if all did."""
        counts = Counter(state for state, _ in self.failed.values())
        return ", ".join(
            f"{state} ({n} of {len(self.seeds)} seeds)" for state, n in sorted(counts.items(), reverse=True)
        )

    @property
    def all_failed(self) -> bool:
        return len(self.failed) == len(self.seeds)

    @property
    def n_ok(self) -> str:
        """How many seeds the values are over, as `3`, or `2 of 3`."""
        n = len(self.seeds)
        return f"{n - len(self.failed)} of {n}" if self.failed else str(n)


@dataclass(frozen=True)
class Table:
    """Rows that may be compared, in order of their labels.

    `differs` tells this table from another of the same dataset, target and attribute, by what sets them apart.
    """

    dataset: str
    target: str
    attribute: str
    rows: tuple[Row, ...]
    heading: tuple[str, ...]  # sentences: what the numbers are of
    notes: tuple[str, ...]  # what a reader of the cells must know
    differs: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[Column, ...] = COLUMNS

    @property
    def title(self) -> str:
        apart = "".join(f", {name} {value}" for name, value in self.differs.items())
        return f"{self.dataset}: target {self.target}, attribute {self.attribute}{apart}"

    @cached_property
    def best(self) -> frozenset[tuple[int, str]]:
        """(index of the row, symbol) of the best values; equal as printed is equal.

        A row with failed seeds does not compete: its mean is over the seeds that survived.
        """
        found = set()
        for column in self.columns:
            if column.diagnostic:
                continue
            means = {i: row.values[column.symbol].mean for i, row in enumerate(self.rows) if not row.failed}
            printed = {i: float(column.show(mean)) for i, mean in means.items() if mean is not None}
            if printed:
                top = (max if column.better == "higher" else min)(printed.values())
                found |= {(i, column.symbol) for i, value in printed.items() if value == top}
        return frozenset(found)

    @cached_property
    def body(self) -> list[list[tuple[str, bool]]]:
        """What each row prints, and whether in bold: label, a cell per column, target seen, group seen, seeds."""
        lines = []
        for i, row in enumerate(self.rows):
            cells = [(self._cell(row, column), (i, column.symbol) in self.best) for column in self.columns]
            if row.all_failed:
                cells[0] = (row.verdict, False)
            ends = [(text, False) for text in (row.target_seen, row.group_seen, row.n_ok)]
            lines.append([(row.label, False), *cells, *ends])
        return lines

    @property
    def head(self) -> list[str]:
        return ["Method", *(column.heading for column in self.columns), "Target seen", "Group seen", "Seeds"]

    @staticmethod
    def _cell(row: Row, column: Column) -> str:
        value = row.values[column.symbol]
        if value.mean is None:
            return "-"
        return column.show(value.mean) + ("" if value.sd is None else f" ± {column.show(value.sd)}")


# --------------------------------------------------------------------------- records -> tables


@dataclass
class _Run:
    """What is kept of a record: few bytes, since there may be very many."""

    key: str
    state: State
    values: tuple[float | None, ...]
    reasons: dict[str, str]
    error: str


@dataclass
class _Group:
    """The seeds of one composition."""

    spec: dict[str, Any]
    versions: tuple[tuple[str, int | None], ...]
    labels: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    facts_of: int | None = None  # the seed that `facts` are from
    runs: dict[int, _Run] = field(default_factory=dict)


class Board:
    """Records in, tables out. Keeps of a record only what a table needs.

    A label, where one is given, makes its own row, so that two names of one composition are two rows. Without labels
    one composition is one row, under the shortest of its names. Rows stand in the `order` of their labels, those not in
    it after them by the alphabet.
    """

    def __init__(self, columns: Sequence[Column] = COLUMNS, order: Sequence[str] = ()) -> None:
        self.columns = tuple(columns)
        self.order = tuple(order)
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, record: Record, label: str | None = None) -> None:
        """Take a record in. Two different results of one run: `UserError`."""
        seed, name, spec = _without_seed_and_name(record)
        versions = tuple(
            (c.symbol, record.metric_versions.get(c.symbol, record.spec.get("metrics", {}).get(c.symbol)))
            for c in self.columns
            if not c.diagnostic
        )
        identity = hashlib.sha256(to_json([spec, versions]).encode()).hexdigest()
        group = self._groups.setdefault((identity, label or ""), _Group(record.spec, versions))
        group.labels.add(label or name)
        if record.facts and (group.facts_of is None or seed < group.facts_of):
            group.facts, group.facts_of = {**record.facts, "cells": record.cells}, seed
        ours = _Run(
            key=record.key,
            state=record.state,
            values=tuple(_leak(record) if c.diagnostic else record.metrics.get(c.symbol) for c in self.columns),
            reasons={**record.undefined, "Leak": str((record.leakage or {}).get("reason", "not measured"))},
            error=record.reason,
        )
        other = group.runs.setdefault(seed, ours)
        if other.state != "ok" and (ours.state == "ok" or (ours.state, ours.error) < (other.state, other.error)):
            group.runs[seed] = ours
        elif ours.state == "ok" and (ours.values, ours.reasons) != (other.values, other.reasons):
            keys = " and ".join(sorted({ours.key, other.key}))
            raise UserError(f"seed {seed} of {label or name} has two different results ({keys}); remove one of them")

    def tables(self) -> list[Table]:
        """The tables, in order of dataset, target, attribute, and then of what sets them apart."""
        places: dict[tuple[str, str, str], dict[str, tuple[dict[str, str], list[Row]]]] = {}
        for (identity, _), group in sorted(self._groups.items()):
            data = group.spec["data"]
            place = (data["dataset"], data["target"], data["attribute"])
            apart = _identity(data, group.versions)
            _, rows = places.setdefault(place, {}).setdefault(to_json(apart), (apart, []))
            rows.append(_row(identity, group, self.columns))
        tables = []
        for place in sorted(places):
            siblings = [places[place][name] for name in sorted(places[place])]
            differing = _differing([apart for apart, _ in siblings])
            for apart, rows in siblings:
                differs = {name: apart.get(name, "none") for name in differing}
                tables.append(_table(place, apart, differs, rows, len(siblings), self.columns, self.order))
        return tables


def build(records: Iterable[Record]) -> list[Table]:
    """Tables of records as they lie in a store, each row named as its method was typed."""
    board = Board()
    for record in records:
        board.add(record)
    return board.tables()


def _without_seed_and_name(record: Record) -> tuple[int, str, dict[str, Any]]:
    spec = record.spec
    try:
        method, data = spec["method"], spec["data"]
        for name in ("dataset", "target", "attribute"):
            str(data[name])
        seed, name = int(spec["seed"]), str(method["name"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"record {record.key} has no spec that a table can be made of: {error!r}; remove it") from error
    rest = {key: value for key, value in spec.items() if key != "seed"}
    rest["method"] = {key: value for key, value in method.items() if key != "name"}
    return seed, name, rest


def _leak(record: Record) -> float | None:
    """How well the group is found in the features: mean recall over groups, 1 / G is chance."""
    found = (record.leakage or {}).get("balanced_accuracy")
    return None if found is None else float(found)


def _row(identity: str, group: _Group, columns: Sequence[Column]) -> Row:
    runs = dict(sorted(group.runs.items()))
    ok = {seed: run for seed, run in runs.items() if run.state == "ok"}
    method = group.spec["method"]
    return Row(
        label=min(group.labels, key=lambda label: (len(label), label)),
        values={column.symbol: _over_seeds(ok, len(runs), column.symbol, i) for i, column in enumerate(columns)},
        seeds=tuple(runs),
        failed={seed: (run.state, run.error) for seed, run in runs.items() if run.state != "ok"},
        target_seen=str(method.get("target", "none")),
        group_seen=str(method.get("group", "none")),
        spec=group.spec,
        facts=group.facts,
        identity=identity,
    )


def _over_seeds(ok: Mapping[int, _Run], n_seeds: int, symbol: str, place: int) -> Value:
    if not ok:
        return Value(None, reason=f"no seed ended well (of {n_seeds})")
    why = {seed: run.reasons.get(symbol, "not measured") for seed, run in ok.items() if run.values[place] is None}
    if why:
        return Value(None, reason=_by_seed(why) if len(why) < len(ok) or len(set(why.values())) > 1 else why[min(why)])
    values = [value for run in ok.values() if (value := run.values[place]) is not None]
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Value(mean)
    return Value(mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)))


def _by_seed(texts: Mapping[int, str]) -> str:
    """`seed 0, 2: this; seed 1: that`."""
    seeds: dict[str, list[int]] = {}
    for seed, text in sorted(texts.items()):
        seeds.setdefault(text, []).append(seed)
    return "; ".join(f"seed {', '.join(map(str, which))}: {text}" for text, which in seeds.items())


# --------------------------------------------------------------------------- what sets rows and tables apart


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(dotted path, value as text) of everything in a nested mapping."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, str):
        yield path, value
    elif type(value) in (int, float):  # as JSON writes them, but there may be millions
        yield path, repr(value)
    else:
        yield path, to_json(value)


def _identity(data: Mapping[str, Any], versions: Iterable[tuple[str, int | None]]) -> dict[str, str]:
    """Everything that two rows of one table have in common, as text by name."""
    found = {name: value for name, value in data.items() if name not in ("dataset", "target", "attribute")}
    metrics = {f"metric {symbol} version": "unknown" if v is None else str(v) for symbol, v in versions}
    return {**dict(_leaves(found)), **metrics}


def _differing(mappings: Sequence[Mapping[str, str]]) -> list[str]:
    """The names that have not one value in all the mappings."""
    names = {name for mapping in mappings for name in mapping}
    return sorted(name for name in names if len({mapping.get(name) for mapping in mappings}) > 1)


def _composition(row: Row) -> dict[str, str]:
    """The row's method and settings as text by name, with names as `--set` writes them."""
    method = row.spec["method"]
    parts = [method["objective"], *method.get("heads", ())] if "objective" in method else []
    found = {"parts": "+".join(part["name"] for part in parts)}
    for part in parts:
        found |= dict(_leaves({**part.get("params", {}), "version": part.get("version", 1)}, part["name"]))
    rest = {name: value for name, value in method.items() if name not in ("name", "objective", "heads")}
    return {**found, **dict(_leaves(rest, "method")), **_settings(row)}


def _settings(row: Row) -> dict[str, str]:
    """What is set beside the method and the data."""
    skip = ("method", "data", "seed", "metrics")
    return dict(_leaves({name: value for name, value in row.spec.items() if name not in skip}))


def _distinct(rows: Sequence[Row], order: Sequence[str]) -> tuple[list[Row], dict[str, set[str]]]:
    """Rows in order of their labels, namesakes told apart by what they differ in: `sofclr (adversary.weight=0.5)`.

    Also label -> the names already told in it.
    """
    namesakes: dict[str, list[Row]] = {}
    for row in rows:
        namesakes.setdefault(row.label, []).append(row)
    found: list[Row] = []
    told: dict[str, set[str]] = {}
    place = {label: i for i, label in enumerate(order)}
    for label, group in sorted(namesakes.items(), key=lambda item: (place.get(item[0], len(place)), item[0])):
        if len(group) == 1:
            found += group
            continue
        telling: list[Row] = []
        compositions = [_composition(row) for row in group]
        shared = set.intersection(*(set(c) for c in compositions))  # a missing head shows in "parts"
        names = [name for name in _differing(compositions) if name in shared]
        labels = [f"{label} ({', '.join(f'{name}={c[name]}' for name in names)})" for c in compositions]
        count = Counter(labels)
        for row, one in zip(group, labels, strict=True):
            if count[one] > 1:
                one = f"{label} ({row.identity[:12]})"
            telling.append(replace(row, label=one))
            told[one] = set(names)
        found += sorted(telling, key=lambda row: (row.label, row.identity))
    return found, told


# --------------------------------------------------------------------------- heading and notes


def _table(
    place: tuple[str, str, str],
    apart: Mapping[str, str],
    differs: dict[str, str],
    rows: list[Row],
    n_siblings: int,
    columns: tuple[Column, ...],
    order: tuple[str, ...],
) -> Table:
    dataset, target, attribute = place
    distinct, told = _distinct(rows, order)
    measured = {symbol for row in rows for symbol, value in row.values.items() if value.mean is not None}
    columns = tuple(column for column in columns if not column.diagnostic or column.symbol in measured)
    distinct = [replace(row, values={c.symbol: row.values[c.symbol] for c in columns}) for row in distinct]
    usual, exceptions = _usual(distinct, told)
    notes = []
    if differs:
        notes.append(
            f"The results on {dataset}, target {target}, attribute {attribute} stand in {n_siblings} tables, since "
            f"they must not be compared: {', '.join(differs)} differ{'s' if len(differs) == 1 else ''}."
        )
    notes += exceptions
    for row in distinct:
        notes += _row_notes(row, columns)
    if any(row.failed and not row.all_failed for row in distinct):
        notes.append("A row with failed or diverged seeds is the mean over the others and does not compete for bold.")
    return Table(
        dataset=dataset,
        target=target,
        attribute=attribute,
        rows=tuple(distinct),
        heading=tuple(_heading(place, apart, usual, distinct, columns)),
        notes=tuple(notes),
        differs={name: _short(name, value) for name, value in differs.items()},
        columns=columns,
    )


def _usual(rows: Sequence[Row], told: Mapping[str, set[str]]) -> tuple[dict[str, str], list[str]]:
    """The most frequent value of each setting and fact, and a note for each other value with the rows that have it."""
    values: dict[str, Counter[str]] = {}
    owners: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        facts = {name: value for name, value in row.facts.items() if name not in ("groups", "positive", "cells")}
        for name, value in {**_settings(row), **dict(_leaves(facts)), "seeds": ", ".join(map(str, row.seeds))}.items():
            values.setdefault(name, Counter())[value] += 1
            owners.setdefault((name, value), []).append(row)
    usual = {name: min(found, key=lambda value: (-found[value], value)) for name, found in values.items()}
    notes = []
    for (name, value), these in sorted(owners.items(), key=lambda item: item[0]):
        labels = [row.label for row in these if name not in told.get(row.label, ())]
        if value != usual[name] and labels:
            notes.append(f"{name} = {value} instead of {usual[name]}: {', '.join(labels)}.")
    return usual, notes


def _heading(
    place: tuple[str, str, str],
    apart: Mapping[str, str],
    usual: Mapping[str, str],
    rows: Sequence[Row],
    columns: Sequence[Column],
) -> Iterator[str]:
    facts = next((row.facts for row in rows if row.facts), {})
    if facts.get("positive"):
        yield f"y = 1 is {facts['positive']}."
    if facts.get("groups"):
        yield f"Groups: {', '.join(f'{code} {label}' for code, label in enumerate(facts['groups']))}."
    encoder = {name: value for name, value in usual.items() if name.startswith("encoder.params.")}
    options = ", ".join(f"{name.removeprefix('encoder.params.')}={value}" for name, value in sorted(encoder.items()))
    epochs = usual.get("train.epochs", "?")
    trained = [
        f"{usual.get('encoder.name', 'unknown')}{f' ({options})' if options else ''}",
        f"{apart.get('image_size', '?')} px",
        f"{epochs} epoch{'' if epochs == '1' else 's'}",
        f"batch {usual.get('train.batch_size', '?')}",
    ]
    yield f"Encoder {', '.join(trained)}."
    share = usual.get("annotated")
    percent = "" if share is None else f" ({float(share) * 100:g} %)"
    counts = [
        f"{usual[name]} {what}"
        for name, what in (("n_train", "train"), ("n_val", "validation"), ("n_test", "test"))
        if name in usual
    ]
    if "n_annotated" in usual:
        counts.insert(1, f"{usual['n_annotated']} of them annotated{percent}")
    if counts:
        yield f"Images: {', '.join(counts)}."
    elif percent:
        yield f"Annotated share{percent}."
    if facts.get("cells"):
        cells = [
            f"y = {target}: " + ", ".join(f"{label} {n}" for label, n in _in_order(groups, facts.get("groups", ())))
            for target, groups in sorted(facts["cells"].items())
        ]
        yield f"Test examples: {'; '.join(cells)}."
    params = [f"{name.removeprefix('params.')}={value}" for name, value in sorted(apart.items()) if "params." in name]
    if params:
        yield f"Data parameters: {', '.join(params)}."
    content = _short("fingerprint", apart.get("fingerprint", "unknown"))
    yield f"Data version {apart.get('version', '?')}, content {content}, split {apart.get('split_seed', '?')}."
    judged = [column for column in columns if not column.diagnostic]
    versions = {apart[f"metric {column.symbol} version"] for column in judged}
    if len(versions) == 1:
        yield f"Metric versions: all {min(versions)}."
    else:
        each = (f"{column.symbol} {apart[f'metric {column.symbol} version']}" for column in judged)
        yield f"Metric versions: {', '.join(each)}."
    many = sum(len(row.seeds) > 1 for row in rows)
    percents = [column.heading for column in columns if column.percent]
    yield f"Seeds {usual['seeds']}" + ("; mean ± sample standard deviation." if many else ".")
    yield f"Best in bold; {', '.join(percents)} are x 100."
    if len(judged) < len(columns):
        yield "Leak: how well a fresh linear classifier finds the group in the frozen features (balanced accuracy)."


def _in_order(groups: Mapping[str, int], order: Sequence[str]) -> list[tuple[str, int]]:
    """By group code; the file's own order is that of its keys."""
    place = {label: code for code, label in enumerate(order)}
    return sorted(groups.items(), key=lambda item: (place.get(item[0], len(place)), item[0]))


def _row_notes(row: Row, columns: Sequence[Column]) -> Iterator[str]:
    if row.failed:
        texts = {seed: f"{state}: {error}" if error else state for seed, (state, error) in row.failed.items()}
        yield f"{row.label}: {_by_seed(texts)}."
    if row.all_failed:
        return
    undefined: dict[str, list[str]] = {}
    for column in columns:
        value = row.values[column.symbol]
        if value.mean is None:
            undefined.setdefault(value.reason, []).append(column.heading)
    for reason, headings in undefined.items():
        yield f"{row.label}: {', '.join(headings)} undefined (-): {reason}."


def _short(name: str, value: str) -> str:
    return value[:12] if name == "fingerprint" else value


# --------------------------------------------------------------------------- tables -> text


def to_markdown(*tables: Table) -> str:
    """A heading, a table and its notes each. Text of the user's own cannot break the table."""
    return "\n".join(_one_markdown(table) for table in tables)


def _one_markdown(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    rule = ["---", *("---:" for _ in table.columns), "---", "---", "---:"]
    body = (line(f"**{_md(text)}**" if bold else _md(text) for text, bold in row) for row in table.body)
    parts = [f"## {_md(table.title)}", _md(" ".join(table.heading)), "\n".join([line(table.head), line(rule), *body])]
    if table.notes:
        parts.append("\n".join(f"- {_md(note)}" for note in table.notes))
    return "\n\n".join(parts) + "\n"


def _md(text: str) -> str:
    text = " ".join(text.split())
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def to_csv(*tables: Table) -> str:
    """All tables in one CSV: a line per row, numbers as fractions that round-trip, nothing where undefined."""
    columns = max((table.columns for table in tables), key=len, default=COLUMNS)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    numbers = [f"{column.symbol}_{what}" for column in columns for what in ("mean", "sd")]
    first = ("method", "dataset", "target", "attr", "differs", "n_seeds", "failed", "target_seen", "group_seen")
    writer.writerow((*first, *numbers, "undefined"))
    for table in tables:
        differs = " ".join(f"{name}={value}" for name, value in table.differs.items())
        for row in table.rows:
            place = (row.label, table.dataset, table.target, table.attribute, differs)
            counts = (len(row.seeds), len(row.failed), row.target_seen, row.group_seen)
            values = [row.values.get(column.symbol, Value(None)) for column in columns]
            shown = ("" if x is None else repr(x) for value in values for x in (value.mean, value.sd))
            reasons = "; ".join(f"{s}: {v.reason}" for s, v in row.values.items() if v.mean is None)
            writer.writerow((*place, *counts, *shown, reasons))
    return text.getvalue()


def to_json_rows(*tables: Table) -> list[dict[str, Any]]:
    """A flat object per row: method, dataset, target, attr, n_seeds, failed, and mean and sd by symbol, as fractions.

    sd is None for one seed. mean is None, with a reason under "undefined", if any seed is undefined. "differs" is there
    only where one dataset, target and attribute stand in more than one table.
    """
    rows = []
    for table in tables:
        for row in table.rows:
            one: dict[str, Any] = {
                "method": row.label,
                "dataset": table.dataset,
                "target": table.target,
                "attr": table.attribute,
                "n_seeds": len(row.seeds),
                "failed": len(row.failed),
            }
            one |= {symbol: {"mean": value.mean, "sd": value.sd} for symbol, value in row.values.items()}
            undefined = {symbol: value.reason for symbol, value in row.values.items() if value.mean is None}
            if undefined:
                one["undefined"] = undefined
            if table.differs:
                one["differs"] = dict(table.differs)
            rows.append(one)
    return rows


def to_latex(*tables: Table) -> str:
    """A `table` environment each, for the booktabs package."""
    return "\n".join(_one_latex(table) for table in tables)


def _one_latex(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return " & ".join(cells) + r" \\"

    body = (line(rf"\textbf{{{_tex(text)}}}" if bold else _tex(text) for text, bold in row) for row in table.body)
    notes = (rf"\par\footnotesize {_tex(note)}" for note in table.notes)
    lines = [
        r"\begin{table}",
        rf"\caption{{{_tex(table.title)}. {_tex(' '.join(table.heading))}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}llr}}",
        r"\toprule",
        line(map(_tex, table.head)),
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        *notes,
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(sign, sign) for sign in " ".join(text.split()))


def to_rich(table: Table) -> RenderableType:
    """The table for a terminal."""
    from rich import box
    from rich.console import Group
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in table.head:
        numeric = name == "Seeds" or name in {column.heading for column in table.columns}
        grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in table.body:
        grid.add_row(*(Text(" ".join(text.split()), style="bold" if bold else "") for text, bold in row))
    lines: list[RenderableType] = [
        Text(table.title, style="bold"),
        Text(" ".join(table.heading)),
        grid,
        *map(Text, table.notes),
    ]
    return Group(*lines)


def show(tables: Sequence[Table], file: IO[str] | None = None) -> None:
    """Print tables: laid out on a terminal, plain Markdown where the output is piped. `file` is stdout if left out."""
    from rich.console import Console

    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console.file.write(to_markdown(*tables))
        return
    for table in tables:
        console.print(to_rich(table))


# --------------------------------------------------------------------------- files


@dataclass(frozen=True)
class Built:
    """What `build_folder` made."""

    tables: list[Table]
    n_records: int
    files: tuple[Path, ...]


def build_folder(runs: Path, out: Path) -> Built:
    """Write table.md, table.csv, table.tex and records.jsonl (a record a line, by key) of a runs folder, whole or not.

    Nothing there, a damaged record, a folder that cannot be written: `UserError`; then the old files stay.
    """
    if not runs.is_dir():
        raise UserError(f"no folder {runs}; name the one that `fairssl bench` wrote to")
    board, n_records = Board(), 0
    paths = [out / name for name in ("records.jsonl", "table.md", "table.csv", "table.tex")]
    first = next(RunStore(runs).records(), None)
    if first is None:
        raise UserError(f"{runs} holds no results; run `fairssl bench --out {runs}` first")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(out, error) from error
    with ExitStack() as files:  # all are written before the first takes its place
        records, *others = [files.enter_context(whole_file(path)) for path in paths]
        for record, line in RunStore(runs).records_and_lines():
            records.write(line)
            board.add(record)
            n_records += 1
        tables = board.tables()
        for file, text in zip(others, (to_markdown(*tables), to_csv(*tables), to_latex(*tables)), strict=True):
            file.write(text.encode())
            file.flush()
    return Built(tables, n_records, tuple(paths))
