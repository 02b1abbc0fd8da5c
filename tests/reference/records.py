"""Records made by hand, for tests of boards."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from fairssl.store.record import ColumnFacts, Record, State

SYMBOLS = ["Acc", "ED", "EO", "DP", "IntraAUC", "InterAUC", "GAUC", "WD", "KL"]
FACTS = {"groups": ["Caucasian", "others"], "positive": "male", "n_train": 10000, "n_annotated": 500, "n_test": 2704}
LARGE = {"0": {"Caucasian": 2500, "others": 2500}, "1": {"Caucasian": 2500, "others": 2500}}
CELLS = {"0": {"Caucasian": 676, "others": 676}, "1": {"Caucasian": 1352, "others": 0}}


def spec(
    method: str = "sofclr", seed: int = 0, *, weight: float = 1.0, train: Mapping[str, Any] | None = None, **data: Any
) -> dict[str, Any]:
    objective = "sogclr" if method in ("sofclr", "sogclr+adversary") else method  # two names of one composition
    head = {"name": "adversary", "version": 1, "params": {"weight": weight, "hidden": 512}}
    return {
        "method": {
            "name": method,
            "objective": {"name": objective, "version": 1, "params": {"tau": 0.3}},
            "heads": [head] if weight else [],
            "probe": "linear",
            "target": "none",
            "group": "annotated" if weight else "none",
        },
        "data": {
            "dataset": "utkface",
            "version": 1,
            "params": {},
            "fingerprint": "0123456789abcdef",
            "image_size": 64,
            "split_seed": 0,
            "target": "gender",
            "attribute": "ethnicity",
            **data,
        },
        "annotated": 0.05,
        "encoder": {"name": "resnet18", "version": 1, "params": {"stem": "standard"}},
        "train": {"epochs": 100, "batch_size": 64, "lr": 0.001, **(train or {})},
        "seed": seed,
    }


def columns(**versions: int) -> dict[str, ColumnFacts]:
    """What the paper's nine metrics declare."""
    return {
        symbol: ColumnFacts(
            version=versions.get(symbol, 1),
            heading=f"Δ{symbol}" if symbol in ("ED", "EO", "DP") else symbol,
            better="higher" if symbol == "Acc" else "lower",
            percent=symbol in ("Acc", "ED", "EO", "DP"),
            headline=True,
            order=10 * number,
        )
        for number, symbol in enumerate(SYMBOLS)
    }


def record(
    spec: dict[str, Any],
    values: float | Mapping[str, float | None] = 0.5,
    *,
    state: State = "ok",
    error: str = "boom",
    **fields: Any,
) -> Record:
    """A record whose metrics are all one number, or as given and 0.5 else; None is undefined."""
    given = dict(values) if isinstance(values, Mapping) else dict.fromkeys(SYMBOLS, values)
    default = {**dict.fromkeys(SYMBOLS, 0.5), **({"Acc": 0.75} if isinstance(values, Mapping) else {})}
    metrics = {**default, **given} if state == "ok" else {}
    fields.setdefault("undefined", {s: f"group 1 has no {s}" for s, v in metrics.items() if v is None})
    fields.setdefault("columns", columns() if state == "ok" else {})
    fields.setdefault("key", f"k{zlib.crc32(json.dumps([spec, given]).encode()):x}")
    ok = {"facts": FACTS, "cells": CELLS} if state == "ok" else {"error": error}
    return Record(spec=spec, state=state, metrics=metrics, **{**ok, **fields})


def seeds(values: Sequence[float | None], method: str = "sofclr", symbol: str = "Acc", **given: Any) -> list[Record]:
    fields = {name: given.pop(name) for name in ("facts", "cells") if name in given}
    return [record(spec(method, seed, **given), {symbol: value}, **fields) for seed, value in enumerate(values)]
