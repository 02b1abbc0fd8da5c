"""The six registries, one per kind of plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fairssl import api
from fairssl.registry import BrokenPlugin, Registry, did_you_mean
from fairssl.types import KINDS, Method, UserError


def pick_class(base: str) -> Callable[[Any, str], Any]:
    """The one class of a module that derives from the api's class named `base` and is defined there."""

    def pick(module: Any, name: str) -> Any:
        wanted = getattr(api, base)
        found = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, wanted)
            and value.__module__ == module.__name__
            and not value.__name__.startswith("_")
        ]
        if len(found) != 1:
            names = ", ".join(c.__name__ for c in found) or "none"
            raise BrokenPlugin(f"{module.__name__} must define exactly one public {base} class, found {names}")
        chosen: Any = found[0]
        chosen.name = name
        return chosen

    return pick


def _pick_method(module: Any, name: str) -> Any:
    method = getattr(module, "METHOD", None)
    if not isinstance(method, Method):
        raise BrokenPlugin(f"{module.__name__} must define METHOD = Method(...)")
    return method


def _pick_metric(module: Any, name: str) -> Any:
    found = [
        v for v in vars(module).values() if hasattr(v, "symbol") and getattr(v, "__module__", "") == module.__name__
    ]
    if len(found) != 1:
        raise BrokenPlugin(f"{module.__name__} must define exactly one function under @metric, found {len(found)}")
    found[0].name = name
    return found[0]


methods: Registry[Any] = Registry("methods", _pick_method)
objectives: Registry[Any] = Registry("objectives", pick_class("Objective"))
heads: Registry[Any] = Registry("heads", pick_class("Head"))
encoders: Registry[Any] = Registry("encoders", pick_class("Encoder"))
datasets: Registry[Any] = Registry("datasets", pick_class("Dataset"))
metrics: Registry[Any] = Registry("metrics", _pick_metric)
registries: dict[str, Registry[Any]] = {r.kind: r for r in (methods, objectives, heads, encoders, datasets, metrics)}


assert tuple(registries) == KINDS


def by_kind(kind: str, *more: str) -> Registry[Any]:
    """The registry of a kind written in singular or plural. `more`: what else a message may offer."""
    for name, registry in registries.items():
        if kind in (name, name.removesuffix("s")):
            return registry
    raise UserError(f"unknown kind {kind!r}{did_you_mean(kind, [*KINDS, *more])}")
