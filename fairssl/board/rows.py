"""Records to tables: a pure function, so that equal records give equal bytes in whatever order they come.

A row is one composition with all its settings, over its seeds. A table holds rows that may be compared: the same data
(version, parameters, content, image size, split), target and attribute, the same versions of the loop, the probe and the
metrics.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fairssl.board.competing import below_majority, collapsed
from fairssl.board.describe import by_seed, make_table, table_identity, what_differs
from fairssl.board.names import in_paper_order
from fairssl.board.selected import selections_of
from fairssl.board.table import LEAK, LEAK_MLP, Column, Row, SeedStats, Table, Tier
from fairssl.scoring import inside_floor
from fairssl.scoring.statistics import summarize
from fairssl.store.record import Record, State, to_json
from fairssl.types import Undefined, UserError


@dataclass
class _Run:
    """What is kept of a record: few bytes, since there may be very many."""

    key: str
    state: State
    values: dict[str, float | None]
    reasons: dict[str, str]
    floors: dict[str, tuple[float, float]]  # symbol -> mean and 95 % quantile
    error: str
    environment: str
    tier: Tier | None
    one_class: int | None
    collapsed: str
    selections: tuple[str, ...]  # by which rules its settings were chosen, as JSON
    leak_version: int  # of the leakage probe; 0: not measured


@dataclass
class _Group:
    """The seeds of one composition."""

    spec: dict[str, Any]
    columns: dict[str, Column]
    labels: set[str] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    facts_of: int | None = None  # the seed that `facts` are from
    later: dict[str, str] = field(default_factory=dict)  # symbol -> versions, where computed after the run
    runs: dict[int, _Run] = field(default_factory=dict)


class Board:
    """Records in, tables out. Keeps of a record only what a table needs.

    A label, where one is given, makes its own row, so that two names of one composition are two rows. Without labels
    one composition is one row, under the shortest of its names. Rows stand by family (which labels training saw), and in
    a family in the `order` of their labels; those not in it come after, in the order of the paper's tables, then of the
    alphabet. `root` is written before the paths of records that failed.
    """

    def __init__(self, order: Sequence[str] = (), root: str = "") -> None:
        self.order, self.root = tuple(order), root
        self._groups: dict[tuple[str, str], _Group] = {}

    def add(self, record: Record, label: str | None = None, tier: Tier | None = None) -> None:
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
            facts = {k: v for k, v in record.facts.items() if k not in ("computed_later", "collapsed", "selection")}
            group.facts, group.facts_of = {**facts, "cells": record.cells, "env": record.env}, seed
        group.later |= record.facts.get("computed_later", {})
        ours = _Run(
            key=record.key,
            state=record.state,
            values={**record.metrics, **{symbol: _leak(record, field) for symbol, field in _LEAKAGE.items()}},
            reasons={
                **record.undefined,
                **dict.fromkeys(_LEAKAGE, str((record.leakage or {}).get("reason", "not measured"))),
            },
            floors=_floors(record),
            error=record.reason,
            environment=to_json({**record.env, "sources": record.sources}),
            tier=tier,
            one_class=record.facts.get("one_class"),
            collapsed=collapsed(record.facts),
            selections=tuple(to_json(one) for one in selections_of(record.facts)),
            leak_version=0
            if _leak(record, "balanced_accuracy") is None
            else int((record.leakage or {}).get("version", 1)),
        )
        other = group.runs.setdefault(seed, ours)
        if other.state != "ok" and (ours.state == "ok" or (ours.state, ours.error) < (other.state, other.error)):
            group.runs[seed] = ours
        elif ours.state == "ok" and (ours.values, ours.reasons) != (other.values, other.reasons):
            keys = " and ".join(sorted({ours.key, other.key}))
            raise UserError(f"seed {seed} of {label or name} has two different results ({keys}); remove one of them")

    def tables(self) -> list[Table]:
        """The tables, in order of dataset, target, attribute, and then of what sets them apart."""
        places: dict[tuple[str, str, str], dict[str, tuple[dict[str, str], list[_Group]]]] = {}
        # Those that measured something come first: one that failed has no metric versions, and joins its like.
        for (_, _), group in sorted(self._groups.items(), key=lambda item: (not item[1].columns, item[0])):
            data = group.spec["data"]
            here = places.setdefault((data["dataset"], data["target"], data["attribute"]), {})
            apart = table_identity(group.spec, {c.symbol: c.version for c in group.columns.values()})
            name = to_json(apart)
            if not group.columns:
                alike = [n for n, (other, _) in here.items() if apart.items() <= other.items()]
                name = min(alike, default=name)
            here.setdefault(name, (apart, []))[1].append(group)
        tables = []
        for place in sorted(places):
            siblings = [places[place][name] for name in sorted(places[place])]
            told = what_differs([apart for apart, _ in siblings])
            for (apart, groups), differs in zip(siblings, told, strict=True):
                seeds = tuple(sorted({seed for group in groups for seed in group.runs}))
                newest = max((run.leak_version for group in groups for run in group.runs.values()), default=0)
                rows = [self._row(group, seeds, newest) for group in groups]
                order = in_paper_order(self.order, {label for group in groups for label in group.labels})
                shown, hidden = _columns(groups)
                tables.append(make_table(place, apart, differs, rows, len(siblings), shown, hidden, order, seeds))
        return tables

    def _row(self, group: _Group, seeds: Sequence[int], leak_version: int) -> Row:
        """The row of a composition; leakages of a probe older than `leak_version` are not compared with the others."""
        runs = {seed: _newest_leak(run, leak_version) for seed, run in sorted(group.runs.items())}
        ok = {seed: run for seed, run in runs.items() if run.state == "ok"}
        method = group.spec["method"]
        symbols = (*group.columns, *_LEAKAGE)
        values = {s: _over_seeds(ok, len(runs), s, group.columns.get(s, LEAK)) for s in symbols}
        label = min(group.labels, key=lambda label: (len(label), label))
        environments: dict[str, tuple[int, ...]] = {}
        for seed, run in ok.items():
            environments[run.environment] = (*environments.get(run.environment, ()), seed)
        tiers = {run.tier for run in ok.values()}
        one_class = {seed: run.one_class for seed, run in ok.items() if run.one_class is not None}
        return Row(
            label=label,
            name=label,
            values=values,
            seeds=tuple(runs),
            failed={seed: (run.state, run.error) for seed, run in runs.items() if run.state != "ok"},
            missing=tuple(seed for seed in seeds if seed not in runs),
            target_seen=str(method.get("target", "none")),
            group_seen=str(method.get("group", "none")),
            spec=group.spec,
            facts={
                **group.facts,
                "one_class": one_class,
                "later": group.later,
                "root": self.root,
                "selections": {seed: run.selections for seed, run in runs.items() if run.selections},
            },
            identity=_identity(group.spec),
            below_majority=below_majority(values.get("Acc"), group.facts),
            collapsed=by_seed({seed: run.collapsed for seed, run in ok.items() if run.collapsed}),
            keys={seed: run.key for seed, run in runs.items()},
            environments=environments,
            tier="reported" if "reported" in tiers else "recomputed" if tiers == {"recomputed"} else None,
        )


def _columns(groups: Sequence[_Group]) -> tuple[tuple[Column, ...], tuple[Column, ...]]:
    """The headline columns in their order with the diagnostics after them, and the other metrics."""
    found = {symbol: column for group in groups for symbol, column in group.columns.items()}
    ordered = sorted(found.values(), key=lambda c: (c.order, c.symbol))
    by_mlp = any(run.values[LEAK_MLP.symbol] is not None for group in groups for run in group.runs.values())
    diagnostics = (LEAK, LEAK_MLP) if by_mlp else (LEAK,)  # records from before have none
    return (*(c for c in ordered if c.headline), *diagnostics), tuple(c for c in ordered if not c.headline)


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


# Column -> what a record's `leakage` calls it: mean recall over groups, of which 1 / G is chance.
_LEAKAGE = {LEAK.symbol: "balanced_accuracy", LEAK_MLP.symbol: "mlp_balanced_accuracy"}


def _leak(record: Record, field: str) -> float | None:
    found = (record.leakage or {}).get(field)
    return None if found is None else float(found)


def _newest_leak(run: _Run, version: int) -> _Run:
    if run.leak_version in (0, version):
        return run
    reason = (
        f"measured by version {run.leak_version} of the leakage probe, others by {version}; bench --force measures it"
    )
    return replace(
        run,
        values={**run.values, **dict.fromkeys(_LEAKAGE)},
        reasons={**run.reasons, **dict.fromkeys(_LEAKAGE, f"{reason} again")},
    )


def _identity(spec: Mapping[str, Any]) -> str:
    method = {key: value for key, value in spec["method"].items() if key != "name"}
    rest = {key: value for key, value in spec.items() if key != "seed"}
    return hashlib.sha256(to_json({**rest, "method": method}).encode()).hexdigest()


def _floors(record: Record) -> dict[str, tuple[float, float]]:
    found = {}
    for symbol, floor in (record.noise_floor or {}).items():
        if isinstance(floor, Mapping) and floor.get("mean") is not None and floor.get("high") is not None:
            found[symbol] = (float(floor["mean"]), float(floor["high"]))
    return found


def _over_seeds(ok: Mapping[int, _Run], n_seeds: int, symbol: str, column: Column) -> SeedStats:
    if not ok:
        return SeedStats(None, reason=f"no seed ended well (of {n_seeds})")
    values = {seed: run.values.get(symbol) for seed, run in ok.items()}
    why = {seed: run.reasons.get(symbol, "not measured") for seed, run in ok.items() if values[seed] is None}
    if why:
        reason = by_seed(why) if len(why) < len(ok) or len(set(why.values())) > 1 else why[min(why)]
        return SeedStats(None, reason=reason, by_seed=values)
    numbers = [value for value in values.values() if value is not None]
    summary = summarize(numbers)
    mean, sd, low, high = (
        None if isinstance(x, Undefined) else float(x) for x in (summary.mean, summary.sd, summary.low, summary.high)
    )
    if low is not None and high is not None:  # the last digits of a t quantile are the library's
        low, high = float(f"{low:.12g}"), float(f"{high:.12g}")
    floors = [run.floors[symbol] for run in ok.values() if symbol in run.floors]
    floor = None
    if column.is_gap and len(floors) == len(ok):
        floor = math.fsum(f[0] for f in floors) / len(floors), math.fsum(f[1] for f in floors) / len(floors)
    inside = floor is not None and inside_floor(mean, {"high": floor[1]})
    return SeedStats(mean, sd, "", values, low, high, floor, inside)
