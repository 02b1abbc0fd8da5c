"""What a record reports that its predictions cannot tell, held to its types and ranges.

Leakage and validation need the encoder, facts need the data. Nobody can compute them again from a record, so that the least
that a table can ask is that they are possible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fairssl.interfaces import Metric
from fairssl.scoring.groups import Pairs, WhenUndefined
from fairssl.store.record import Record

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Reported(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Leakage(_Reported):
    accuracy: Share | None = None
    balanced_accuracy: Share | None = None
    mlp_accuracy: Share | None = None
    mlp_balanced_accuracy: Share | None = None
    majority: Share | None = None
    chance: Share | None = None
    converged: bool | None = None
    reason: str = ""
    version: Annotated[int, Field(ge=1)] = 1


class _Facts(_Reported):
    groups: list[str] | None = None
    ordered: bool | None = None
    pairs: Pairs | None = None
    when_undefined: WhenUndefined = "propagate"
    positive: str | None = None
    n_train: Count = 0
    n_val: Count = 0
    n_test: Count | None = None
    n_annotated: Count = 0
    n_unknown: Count = 0
    n_views: Count | None = None
    n_steps: Count | None = None
    one_class: Literal[0, 1] | None = None
    batches: dict[str, Count] | None = None
    departures: list[str] = []
    unread: list[str] = []
    feature_sd: Annotated[float, Field(ge=0)] | None = None
    effective_rank: Annotated[float, Field(ge=0)] | None = None
    collapsed: bool | None = None
    computed_later: dict[str, str] = {}
    selection: list[dict[str, Any]] | dict[str, Any] | None = None
    split_hash: str | None = None
    annotated_hash: str | None = None


class _Interval(_Reported):
    low: float | None = None
    high: float | None = None


class _Floor(_Reported):
    mean: float | None = None
    high: float | None = None


def impossible(record: Record, metrics: Iterable[Metric]) -> list[str]:
    """In words, what the record reports that cannot be: another type, a share outside [0, 1], a bound below its fellow."""
    found = [*_faults("leakage", _Leakage, record.leakage or {}), *_faults("facts", _Facts, record.facts)]
    of_metric: tuple[tuple[str, type[_Reported]], ...] = (("intervals", _Interval), ("noise_floor", _Floor))
    for part, model in of_metric:
        for symbol, one in (getattr(record, part) or {}).items():
            found += _faults(f"{part}.{symbol}", model, one)
    found += [f"{where} is {number}, which is not finite" for where, number in _not_finite(record)]
    if found:
        return found
    for symbol, one in (record.intervals or {}).items():
        low, high = one.get("low"), one.get("high")
        if low is not None and high is not None and low > high:
            found.append(f"intervals.{symbol} is from {low} to {high}, which is backwards")
    found += [f"timings.{name} is {value}, below 0" for name, value in record.timings.items() if value < 0]
    found += list(_validation(record, metrics))
    found += list(_sizes(record))
    return found


def _faults(where: str, model: type[_Reported], value: Any) -> Iterator[str]:
    try:
        model.model_validate(value)
    except ValidationError as error:
        for one in error.errors(include_url=False):
            place = ".".join(map(str, (where, *one["loc"])))
            shown = repr(one["input"])
            shown = shown if len(shown) <= 60 else shown[:57] + "..."
            yield f"{place} is {shown}, which {_wanted(one['msg'])}"


def _wanted(message: str) -> str:
    """pydantic's `Input should be a valid integer` -> `should be a valid integer`."""
    return message.removeprefix("Input ").rstrip(".")


def _not_finite(record: Record) -> Iterator[tuple[str, float]]:
    """Numbers that JSON has no name for, anywhere in what may hold anything."""
    for part in ("spec", "facts", "leakage", "intervals", "noise_floor"):
        waiting: list[tuple[str, Any]] = [(part, getattr(record, part))]
        while waiting:
            where, value = waiting.pop()
            if isinstance(value, Mapping):
                waiting += [(f"{where}.{name}", one) for name, one in value.items()]
            elif isinstance(value, list):
                waiting += [(f"{where}.{at}", one) for at, one in enumerate(value)]
            elif isinstance(value, float) and not math.isfinite(value):
                yield where, value


def _validation(record: Record, metrics: Iterable[Metric]) -> Iterator[str]:
    """What is printed x 100 is a share, or a difference of two."""
    values = record.validation.metrics if record.validation is not None else {}
    for metric in metrics:
        value = values.get(metric.symbol)
        least = 0 if metric.better == "higher" else -1
        if metric.percent and value is not None and not least <= value <= 1:
            yield f"validation.{metric.symbol} is {value}, outside [{least}, 1]"


def _sizes(record: Record) -> Iterator[str]:
    """Counts that must fit each other."""
    counts = [n for groups in record.cells.values() for n in groups.values()]
    if any(n < 0 for n in counts):
        yield f"cells is {record.cells}, which counts below 0"
    facts = record.facts
    n_test, n_unknown = facts.get("n_test"), facts.get("n_unknown", 0)
    if counts and n_test is not None and n_test - n_unknown != sum(counts):
        yield f"facts.n_test is {n_test}, of which {n_unknown} unknown, but {sum(counts)} images are counted in its cells"
