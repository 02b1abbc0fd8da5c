"""All registered metrics of an outcome at once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from fairssl import kinds
from fairssl.interfaces import Metric
from fairssl.scoring.groups import Pairs, WhenUndefined
from fairssl.types import Outcome, Undefined, UserError, Value


def columns() -> list[Metric]:
    """Every registered metric, in the order of a table's columns."""
    found = sorted((kinds.metrics.get(name) for name in kinds.metrics.where()), key=lambda m: (m.order, m.symbol))
    names: dict[str, str] = {}
    for one in found:
        if one.symbol in names:
            raise UserError(
                f"metrics {names[one.symbol]!r} and {one.name!r} both have the symbol {one.symbol!r}; rename one"
            )
        names[one.symbol] = one.name
    return found


def evaluate(
    outcome: Outcome, *, pairs: Pairs = "adjacent", undefined: WhenUndefined = "propagate"
) -> dict[str, Value]:
    """Every registered metric of the outcome, symbol -> fraction or `Undefined`, in the order of the columns.

    `pairs` and `undefined` go to the metrics that take them: how more than two groups are averaged, and what becomes of
    the average when a part is undefined.
    """
    return {m.symbol: value_of(m, outcome, accepted_settings(m, pairs, undefined)) for m in columns()}


def readings(
    outcome: Outcome, *, pairs: Pairs = "adjacent", undefined: WhenUndefined = "propagate"
) -> dict[str, dict[str, Value]]:
    """The values under the other readings in use: symbol -> reading -> value, as {"ED": {"max": ..., "sum": ...}}.

    A metric has readings if it takes a keyword `reading`, a `Literal` of their names with the headline one as default.
    """
    from typing import get_args, get_type_hints

    found: dict[str, dict[str, Value]] = {}
    for one in columns():
        parameter = inspect.signature(one).parameters.get("reading")
        if parameter is None:
            continue
        settings = accepted_settings(one, pairs, undefined)
        names = [n for n in get_args(get_type_hints(one)["reading"]) if n != parameter.default]
        found[one.symbol] = {name: value_of(one, outcome, {**settings, "reading": name}) for name in names}
    return found


def accepted_settings(one: Metric, pairs: Pairs, undefined: WhenUndefined) -> dict[str, Any]:
    parameters = inspect.signature(one).parameters
    return {k: v for k, v in (("pairs", pairs), ("undefined", undefined)) if k in parameters}


def value_of(one: Metric, outcome: Outcome, settings: Mapping[str, Any]) -> Value:
    value = one(outcome, **settings)
    if isinstance(value, Undefined):
        return value
    if not math.isfinite(value):
        raise ValueError(f"metric {one.name!r} returned {value}; a value that does not exist is Undefined(reason)")
    return value if isinstance(value, float) else float(value)
