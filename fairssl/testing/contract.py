"""What the checks of several kinds share."""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pydantic
import torch
from torch import Tensor

from fairssl import registry
from fairssl.interfaces import PluginConfig
from fairssl.registry import configure
from fairssl.types import UserError


@dataclass(frozen=True)
class Check:
    """One named result; `reason` is one line, empty for a plain pass."""

    name: str
    state: Literal["pass", "fail", "skip"]
    reason: str = ""


class Skipped(Exception):
    """A check that does not apply, or cannot be made here; says why."""


Steps = Sequence[tuple[str, Callable[[], None]]]


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


@contextmanager
def rng_preserved() -> Iterator[None]:
    """Leave the caller's global generators as they were."""
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


def check_config(part: Any, name: str) -> None:
    config = configure(part.Config, name, {})
    assert isinstance(config, PluginConfig), f"{name}.Config must derive from PluginConfig, or HeadConfig for a head"
    for key in type(config).model_fields:
        try:
            setattr(config, key, getattr(config, key))
        except pydantic.ValidationError:
            continue
        raise AssertionError(f"{name}.{key} can be assigned: keep the model_config of PluginConfig (frozen)")
    try:
        configure(part.Config, name, {"no_such_parameter": 1})
        type(config).model_validate({"no_such_parameter": 1})
    except (UserError, pydantic.ValidationError):
        pass
    else:
        raise AssertionError(f"{name} accepts an unknown parameter: keep the model_config of PluginConfig (forbid)")
    again = configure(part.Config, name, config.params())
    assert again == config, f"{name}: the parameters written as JSON give another config: {again} instead of {config}"
    aliases: Mapping[str, str] = type(config).aliases
    for alias, field in aliases.items():
        assert field in type(config).model_fields, (
            f"{name}: alias {alias!r} stands for {field!r}, which is no parameter"
        )
        assert alias not in type(config).model_fields, f"{name}: alias {alias!r} is a parameter too"


def check_docstrings(part: Any, kind: registry.Registry[Any], name: str) -> None:
    assert kind.summary(name), f"{name}: the file needs a docstring whose first line says what it is"
    assert inspect.getdoc(part), f"{name}: the class or function needs a docstring"
    assert isinstance(part.version, int) and part.version >= 1, f"{name}.version must be a whole number from 1 up"


def first_difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str | None:
    """The first name whose tensors differ in a bit; None if all are equal."""
    if a.keys() != b.keys():
        return min(a.keys() ^ b.keys())
    return next((name for name in a if not torch.equal(a[name], b[name])), None)


RULE = "a network that goes through `sharded` works row by row (batch norm apart) and is used in no other way"
PROCESSES = 3  # which divide no batch of the checks evenly


def assert_processes_agree(whole: Mapping[str, Tensor], shared: Sequence[Mapping[str, Tensor]]) -> None:
    """What processes have after a step they shared is what one has alone."""
    for name, value in whole.items():
        if not value.numel():
            continue
        scale = max(1e-3, float(value.abs().max()))
        for found in shared:
            off = float((found[name] - value).abs().max()) / scale if name in found else math.inf
            assert off <= 1e-6, f"{name} is off by {off:.1e} when {len(shared)} processes share the batch: {RULE}"
