"""Records to tables: a pure function, so that equal records give equal bytes in whatever order they come.

A row is one composition with all its settings, over its seeds. A table holds rows that may be compared: the same data
(version, parameters, content, image size, split), target and attribute, and the same versions of the shown metrics.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairssl.board.describe import by_seed, differing, make_table, table_identity
from fairssl.board.table import LEAK, Column, Row, Table, Value
from fairssl.store.record import Record, State, to_json
from fairssl.types import UserError


@dataclass
class _Run:
    """What is kept of a record: few bytes, since there may be very many."""

    key: str
    state: State
    values: dict[str, float | None]
    reasons: dict[str, str]
    error: str


@dataclass
class _Group:
    """The seeds of one composition."""

    spec: dict[str, Any]
    columns: dict[str, Column]
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

    def __init__(self, order: Sequence[str] = ()) -> None:
        self.order = tuple(order)
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, record: Record, label: str | None = None) -> None:
        """Take a record in. Two different results of one run: `UserError`."""
        seed, name, spec = _without_seed_and_name(record)
        columns = {
            symbol: Column(symbol, c.heading, c.better, c.percent, c.headline, c.order, c.version)
            for symbol, c in record.columns.items()
        }
        identity = hashlib.sha256(to_json(spec).encode()).hexdigest()
        group = self._groups.setdefault((identity, label or ""), _Group(record.spec, {}))
        group.labels.add(label or name)
        for symbol, column in columns.items():
            known = group.columns.setdefault(symbol, column)
            if known != column:
                raise UserError(
                    f"{label or name} has {symbol} of version {known.version} for one seed and of version "
                    f"{column.version} for another (record {record.key}); compute both anew"
                )
        if record.facts and (group.facts_of is None or seed < group.facts_of):
            group.facts, group.facts_of = {**record.facts, "cells": record.cells}, seed
        ours = _Run(
            key=record.key,
            state=record.state,
            values={**record.metrics, LEAK.symbol: _leak(record)},
            reasons={**record.undefined, LEAK.symbol: str((record.leakage or {}).get("reason", "not measured"))},
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
        # Those that measured something come first: one that failed has no metric versions, and joins its like.
        for (identity, _), group in sorted(self._groups.items(), key=lambda item: (not item[1].columns, item[0])):
            data = group.spec["data"]
            here = places.setdefault((data["dataset"], data["target"], data["attribute"]), {})
            apart = table_identity(data, {c.symbol: c.version for c in group.columns.values()})
            name = to_json(apart)
            if not group.columns:
                alike = [n for n, (other, _) in here.items() if apart.items() <= other.items()]
                name = min(alike, default=name)
            _, rows = here.setdefault(name, (apart, []))
            rows.append(_row(identity, group))
        tables = []
        for place in sorted(places):
            siblings = [places[place][name] for name in sorted(places[place])]
            apart_in = differing([apart for apart, _ in siblings])
            for apart, rows in siblings:
                differs = {name: apart.get(name, "none") for name in apart_in}
                tables.append(make_table(place, apart, differs, rows, len(siblings), self._columns(), self.order))
        return tables

    def _columns(self) -> tuple[Column, ...]:
        """The headline columns of all records, in their order, and the diagnostics after them."""
        found = {symbol: column for group in self._groups.values() for symbol, column in group.columns.items()}
        return (*sorted((c for c in found.values() if c.headline), key=lambda c: (c.order, c.symbol)), LEAK)


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


def _row(identity: str, group: _Group) -> Row:
    runs = dict(sorted(group.runs.items()))
    ok = {seed: run for seed, run in runs.items() if run.state == "ok"}
    method = group.spec["method"]
    return Row(
        label=min(group.labels, key=lambda label: (len(label), label)),
        values={symbol: _over_seeds(ok, len(runs), symbol) for symbol in (*group.columns, LEAK.symbol)},
        seeds=tuple(runs),
        failed={seed: (run.state, run.error) for seed, run in runs.items() if run.state != "ok"},
        target_seen=str(method.get("target", "none")),
        group_seen=str(method.get("group", "none")),
        spec=group.spec,
        facts=group.facts,
        identity=identity,
    )


def _over_seeds(ok: Mapping[int, _Run], n_seeds: int, symbol: str) -> Value:
    if not ok:
        return Value(None, reason=f"no seed ended well (of {n_seeds})")
    why = {seed: run.reasons.get(symbol, "not measured") for seed, run in ok.items() if run.values.get(symbol) is None}
    if why:
        return Value(None, reason=by_seed(why) if len(why) < len(ok) or len(set(why.values())) > 1 else why[min(why)])
    values = [value for run in ok.values() if (value := run.values.get(symbol)) is not None]
    mean = math.fsum(values) / len(values)
    if len(values) == 1:
        return Value(mean)
    return Value(mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / (len(values) - 1)))
