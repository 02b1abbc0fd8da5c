"""Runs that were never trained: real specs and keys, simulated scores, and records computed from these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from reference import small

from fairssl import scoring
from fairssl.board.recompute import cells_of, outcome_of, values_of
from fairssl.scoring import noise_floor
from fairssl.spec.run import RunSpec
from fairssl.store.record import ColumnFacts, Predictions, Record, resampled_json
from fairssl.store.runs import RunStore
from fairssl.types import Undefined

GROUPS = ["not male", "male"]
N_PER_CELL = 60
FACTS: dict[str, Any] = {
    "groups": GROUPS,
    "ordered": False,
    "positive": "attractive",
    "n_train": 48,
    "n_val": 24,
    "n_test": 4 * N_PER_CELL,
    "batches": {"all": 16},
    "n_views": 2,
    "n_steps": 6,
    "departures": [],
    "split_hash": "5a2c3685a049d670",
    "annotated_hash": "e3b0c44298fc1c14",
}
ENV = {"fairssl": "0.2.0", "torch": "2.14.1", "device": "cpu (x86_64)", "threads": "2"}


def predictions(spec: RunSpec, strength: float = 1.0, bias: float = 0.5) -> Predictions:
    """Scores of a balanced test set: `strength` moves them by the target, `bias` by the group; noise by the run's key."""
    rng = np.random.default_rng(int(spec.key[:12], 16))
    target = np.tile(np.repeat([0, 1], N_PER_CELL), 2)
    group = np.repeat([0, 1], 2 * N_PER_CELL)
    logit = strength * (2 * target - 1) + bias * (2 * group - 1) + rng.normal(size=len(target))
    score = np.round(1 / (1 + np.exp(-logit)), 6)
    return Predictions([f"{i:04x}" for i in range(len(target))], score, target, group)


def record(spec: RunSpec, found: Predictions, **facts: Any) -> Record:
    """The ok record of these predictions; few replicates, and no intervals."""
    bare = Record(
        spec=spec.model_dump(mode="json"), key=spec.key, state="ok", facts={**FACTS, **facts}, env=dict(ENV), metrics={}
    )
    outcome, metrics = outcome_of(bare, found), scoring.columns()
    values = values_of(outcome, bare, metrics)
    floors = resampled_json(noise_floor(outcome, 40))
    return bare.model_copy(
        update={
            "metrics": {s: None if isinstance(v, Undefined) else v for s, v in values.items()},
            "undefined": {s: v.reason for s, v in values.items() if isinstance(v, Undefined)},
            "columns": {m.symbol: ColumnFacts.of(m) for m in metrics},
            "cells": cells_of(outcome),
            "noise_floor": floors,
            "leakage": {"accuracy": 0.7, "balanced_accuracy": 0.7 + 0.01 * spec.seed},
            "timings": {"train_seconds": 1.0},
        }
    )


STRENGTHS = {"simclr": (1.0, 1.2), "sogclr": (1.1, 1.1), "sofclr": (1.0, 0.1), "erm": (2.5, 0.8), "random": (0.02, 0.0)}


def fill(
    root: Path, methods: tuple[str, ...] = ("simclr", "sogclr", "sofclr"), seeds: int = 3, **kwargs: Any
) -> RunStore:
    """A runs folder with a run for each method and seed."""
    store = RunStore(root)
    store.create()
    for run in small.plan(*methods, seeds=seeds, **kwargs).runs:
        found = predictions(run.spec, *STRENGTHS.get(run.label, (1.0, 0.5)))
        store.write_result(record(run.spec, found), found)
    return store
