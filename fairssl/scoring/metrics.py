"""All registered metrics of an outcome at once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any, Literal, get_args, get_origin, get_type_hints

from fairssl import kinds
from fairssl.interfaces import Metric
from fairssl.scoring.groups import Pairs, WhenUndefined
from fairssl.types import Outcome, Undefined, UserError, Value

Settings = Mapping[str, Any] | Undefined  # the keywords for a metric, or why it has no value under what was asked


def columns() -> list[Metric]:
    """Every registered metric that imports, in the order of a table's columns; `kinds.metrics.broken()` names the others."""
    found: list[Metric] = sorted(kinds.metrics.working().values(), key=lambda m: (m.order, m.symbol))
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

    `pairs` and `undefined` go to the metrics that take them: how the pairs of more than two groups become one number
    ("adjacent" for an ordered attribute, "all" for a nominal one, or "max"), and what becomes of it when a part is
    undefined. A metric that takes `pairs` but not the way that is asked for is undefined, with that reason.
    """
    return {m.symbol: value_of(m, outcome, accepted_settings(m, pairs, undefined)) for m in columns()}


def readings(
    outcome: Outcome, *, pairs: Pairs = "adjacent", undefined: WhenUndefined = "propagate"
) -> dict[str, dict[str, Value]]:
    """The values under the other readings in use: symbol -> reading -> value, as {"ED": {"max": ..., "sum": ...}}.

    A metric has readings if it takes a keyword `reading`, a `Literal` of their names with the headline one as default.
    """
    found: dict[str, dict[str, Value]] = {}
    for one in columns():
        parameter = inspect.signature(one).parameters.get("reading")
        if parameter is None:
            continue
        settings = accepted_settings(one, pairs, undefined)
        names = [n for n in get_args(get_type_hints(one)["reading"]) if n != parameter.default]
        found[one.symbol] = {
            name: value_of(one, outcome, settings if isinstance(settings, Undefined) else {**settings, "reading": name})
            for name in names
        }
    return found


def accepted_settings(one: Metric, pairs: Pairs, undefined: WhenUndefined) -> Settings:
    """Those of the two keywords that the metric takes; `Undefined` where its annotation rules out what is asked for."""
    parameters = inspect.signature(one).parameters
    wanted = {k: v for k, v in (("pairs", pairs), ("undefined", undefined)) if k in parameters}
    for keyword, value in wanted.items():
        known = _choices(one, keyword)
        if known and value not in known:
            return Undefined(f"metric {one.name!r} has no {keyword}={value!r}, only {', '.join(known)}")
    return wanted


def _choices(one: Metric, keyword: str) -> tuple[str, ...]:
    """The values that a metric's annotation allows; empty where it does not say."""
    try:
        hint = get_type_hints(one).get(keyword)
    except (NameError, TypeError):  # an annotation that cannot be resolved here
        return ()
    return get_args(hint) if get_origin(hint) is Literal else ()


def value_of(one: Metric, outcome: Outcome, settings: Settings) -> Value:
    """The metric's value as a float or `Undefined`; a NaN or infinity is the metric's fault and an error."""
    if isinstance(settings, Undefined):
        return settings
    value = one(outcome, **settings)
    if isinstance(value, Undefined):
        return value
    if not math.isfinite(value):
        raise ValueError(f"metric {one.name!r} returned {value}; a value that does not exist is Undefined(reason)")
    return value if isinstance(value, float) else float(value)
