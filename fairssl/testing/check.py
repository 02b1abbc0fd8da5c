"""Contract checks for plugins, ours and outsiders': what `fairssl check` prints and what a plugin's own test calls.

    from fairssl import testing

    def test_contract():
        testing.assert_contract("objective", "vicreg")

Parts are checked by real steps of the one training loop, on 48 generated images of 32 pixels, with a small encoder on
the CPU: seconds per plugin. A check passes, fails, or is skipped, and says why in one line.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairssl import kinds, registry
from fairssl.registry import BrokenPlugin, did_you_mean
from fairssl.spec.method import parse_method
from fairssl.testing.contract import Check, Skipped, Steps, one_line, rng_preserved
from fairssl.testing.datasets import dataset_checks
from fairssl.testing.encoders import encoder_checks
from fairssl.testing.methods import method_checks
from fairssl.testing.metrics import metric_checks
from fairssl.testing.parts import part_checks
from fairssl.testing.toy import PartBench
from fairssl.types import UserError


def check(kind: str, name: str, only: str | None = None, data_dir: Path | None = None) -> list[Check]:
    """All checks of one plugin, or the one called `only`; `kind` in singular or plural. An unknown name is a `UserError`.

    `data_dir` is where a dataset's files lie; else FAIRSSL_DATA says it, or they are in the per-user folder.
    """
    one = kinds.by_kind(kind).one
    if one == "dataset":
        return check_dataset(name, only, data_dir)
    checks: dict[str, Callable[[str, str | None], list[Check]]] = {
        "method": check_method,
        "objective": check_objective,
        "head": check_head,
        "encoder": check_encoder,
        "metric": check_metric,
    }
    return checks[one](name, only)


def assert_contract(kind: str, name: str) -> None:
    """Raise `AssertionError` with one line for each check that fails."""
    failed = [f"{found.name}: {found.reason}" for found in check(kind, name) if found.state == "fail"]
    assert not failed, f"{kind} {name} breaks its contract:\n" + "\n".join(failed)


def check_objective(name: str, only: str | None = None) -> list[Check]:
    """The contract of an objective, by training it alone."""
    return _checked(kinds.objectives, name, only, lambda part: part_checks(PartBench("objectives", name), part))


def check_head(name: str, only: str | None = None) -> list[Check]:
    """The contract of a head, by training it beside an objective that gives what it needs."""
    return _checked(kinds.heads, name, only, lambda part: part_checks(PartBench("heads", name), part))


def check_encoder(name: str, only: str | None = None) -> list[Check]:
    """The contract of an encoder with its default parameters."""
    return _checked(kinds.encoders, name, only, lambda part: encoder_checks(name, part))


def check_dataset(name: str, only: str | None = None, data_dir: Path | None = None) -> list[Check]:
    """The contract of a dataset with its default parameters; what needs images is skipped where they are not found.

    A `data_dir` that the dataset refuses is a `UserError`: the user named it.
    """
    return _checked(kinds.datasets, name, only, lambda part: dataset_checks(name, part, data_dir))


def check_metric(name: str, only: str | None = None) -> list[Check]:
    """The contract of a metric, on generated predictions."""
    return _checked(kinds.metrics, name, only, lambda part: metric_checks(name, part))


def check_method(name: str, only: str | None = None) -> list[Check]:
    """The contract of a method: a file's name, or any composition such as `byol+adversary:0.3`."""
    try:
        method = parse_method(name)
    except BrokenPlugin as error:
        return [Check("imports", "fail", one_line(error))]
    return _run(method_checks(name, method), only)


def _checked(kind: registry.Registry[Any], name: str, only: str | None, steps: Callable[[Any], Steps]) -> list[Check]:
    kind.locate(name)
    try:
        part = kind.get(name)
    except BrokenPlugin as error:
        return [Check("imports", "fail", one_line(error))]
    return _run(steps(part), only)


def _run(steps: Steps, only: str | None) -> list[Check]:
    names = [name for name, _ in steps]
    if only is not None and only not in names:
        raise UserError(f"there is no check {only!r}{did_you_mean(only, names)}")
    found = [Check("imports", "pass")]
    for name, step in steps:
        if only not in (None, name):
            continue
        try:
            with rng_preserved():
                step()
        except Skipped as reason:
            found.append(Check(name, "skip", one_line(reason)))
        except AssertionError as error:
            found.append(Check(name, "fail", one_line(error) or "an assertion of the plugin's own failed"))
        except Exception as error:  # a plugin may fail in any way; the cause is the result
            found.append(Check(name, "fail", f"{type(error).__name__}: {one_line(error)}"))
        else:
            found.append(Check(name, "pass"))
    return found
