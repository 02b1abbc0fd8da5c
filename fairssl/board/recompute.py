"""Metrics from the kept predictions: a run is judged again without being trained again.

Metrics are in no key, so a record may have been made when a metric was not installed, or was an older version. What a table
shows is computed from the predictions then; a record that disagrees with its own predictions is found the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fairssl.interfaces import Metric
from fairssl.scoring import bootstrap, check_outcome, noise_floor, one_class
from fairssl.scoring.metrics import accepted_settings, value_of
from fairssl.store.record import ColumnFacts, Predictions, Record, resampled_json
from fairssl.types import Outcome, Undefined, UserError, Value

TOLERANCE = 1e-9  # between a value and the same value computed on another machine


def outcome_of(record: Record, predictions: Predictions) -> Outcome:
    """What is judged. Predictions that are no outcome of the record's groups: `UserError`."""
    groups = record.facts.get("groups")
    if not isinstance(groups, list) or not all(isinstance(label, str) for label in groups):
        raise UserError(f"record {record.key} does not name its groups, so its predictions cannot be judged")
    return check_outcome(predictions.score, predictions.target, predictions.group, groups)


def values_of(outcome: Outcome, record: Record, metrics: Iterable[Metric]) -> dict[str, Value]:
    """symbol -> value, judged as the record was."""
    return {m.symbol: value_of(m, outcome, accepted_settings(m, **_settings(record))) for m in metrics}


def _settings(record: Record) -> dict[str, Any]:
    return {
        "pairs": record.facts.get("pairs") or "adjacent",
        "undefined": record.facts.get("when_undefined", "propagate"),
    }


def outdated(record: Record, metrics: Iterable[Metric]) -> list[Metric]:
    """The metrics that a record lacks, or has of a lower version than is installed. A run without a result lacks none."""
    if record.state != "ok":
        return []
    known = record.columns
    return [m for m in metrics if m.symbol not in known or known[m.symbol].version < m.version]


def brought_up_to_date(record: Record, predictions: Predictions, metrics: Sequence[Metric]) -> Record:
    """The record with every metric that is installed, at the installed version or a higher one that it has already.

    What is computed anew, noise floor and interval included, is told under `facts["computed_later"]`: symbol -> in words.
    The validation values stay as they are, for want of predictions.
    """
    late = outdated(record, metrics)
    if not late:
        return record
    found = values_of(outcome_of(record, predictions), record, late)
    floors, intervals = _resampled(record, predictions)
    symbols = [m.symbol for m in late]
    words = {
        m.symbol: f"version {m.version}"
        + (
            f", in the record {record.columns[m.symbol].version}"
            if m.symbol in record.columns
            else ", not in the record"
        )
        for m in late
    }
    return record.model_copy(
        update={
            **_merged(record, found),
            "columns": {**record.columns, **{m.symbol: ColumnFacts.of(m) for m in late}},
            "noise_floor": {**(record.noise_floor or {}), **{s: floors[s] for s in symbols if s in floors}},
            "intervals": {**(record.intervals or {}), **{s: intervals[s] for s in symbols if s in intervals}},
            "facts": {**record.facts, "computed_later": {**record.facts.get("computed_later", {}), **words}},
        }
    )


def judged_anew(record: Record, predictions: Predictions, metrics: Sequence[Metric]) -> Record:
    """The record with all that its predictions tell computed from them: metrics, counts, noise floors and intervals."""
    outcome = outcome_of(record, predictions)
    floors, intervals = _resampled(record, predictions)
    found = values_of(outcome, record, metrics)
    return record.model_copy(
        update={
            "metrics": {s: None if isinstance(v, Undefined) else v for s, v in found.items()},
            "undefined": {s: v.reason for s, v in found.items() if isinstance(v, Undefined)},
            "columns": {m.symbol: ColumnFacts.of(m) for m in metrics},
            "cells": cells_of(outcome),
            "noise_floor": floors,
            "intervals": intervals,
        }
    )


def disagreements(record: Record, predictions: Predictions, metrics: Iterable[Metric]) -> list[str]:
    """In words, where a record is not what its predictions give: counts, and metrics of the installed version."""
    outcome = outcome_of(record, predictions)
    found = []
    if record.cells != cells_of(outcome):
        found.append(f"test examples per target and group are {record.cells}, its predictions have {cells_of(outcome)}")
    same = [m for m in metrics if m.symbol in record.columns and record.columns[m.symbol].version == m.version]
    for metric in same:
        if record.columns[metric.symbol] != ColumnFacts.of(metric):
            found.append(f"{metric.symbol} is declared otherwise than the installed metric of version {metric.version}")
    for symbol, value in values_of(outcome, record, same).items():
        ours = None if isinstance(value, Undefined) else value
        theirs = record.metrics.get(symbol)
        if (ours is None) != (theirs is None) or (
            ours is not None and theirs is not None and abs(ours - theirs) > TOLERANCE
        ):
            found.append(f"{symbol} is {_shown(theirs)}, its predictions give {_shown(ours)}")
    return found


def with_one_class(record: Record, predictions: Predictions) -> Record:
    """The record, with the class that all its predictions are of noted among the facts, if they are of one."""
    only = one_class(outcome_of(record, predictions))
    return record if only is None else record.model_copy(update={"facts": {**record.facts, "one_class": only}})


def cells_of(outcome: Outcome) -> dict[str, dict[str, int]]:
    """Test examples: target -> label of the group -> how many."""
    return {
        str(target): {
            label: int(np.count_nonzero((outcome.target == target) & (outcome.group == code)))
            for code, label in enumerate(outcome.groups)
        }
        for target in (0, 1)
    }


def _shown(value: float | None) -> str:
    return "undefined" if value is None else repr(value)


def _merged(record: Record, found: Mapping[str, Value]) -> dict[str, Any]:
    defined = {s: None if isinstance(v, Undefined) else v for s, v in found.items()}
    kept = {s: reason for s, reason in record.undefined.items() if s not in found}
    reasons = {s: v.reason for s, v in found.items() if isinstance(v, Undefined)}
    return {"metrics": {**record.metrics, **defined}, "undefined": {**kept, **reasons}}


def _resampled(record: Record, predictions: Predictions) -> tuple[dict[str, Any], dict[str, Any]]:
    """Noise floors and intervals of every installed metric, as a record holds them."""
    outcome, settings = outcome_of(record, predictions), _settings(record)
    return resampled_json(noise_floor(outcome, **settings)), resampled_json(bootstrap(outcome, **settings))
