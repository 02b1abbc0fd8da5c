"""Parameters of Slurm jobs, as `--submit` takes them and submitit wants them. Imports no torch."""

from __future__ import annotations

import importlib
import json
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union, get_args, get_origin, get_type_hints

from fairssl.execute.loggers import need
from fairssl.registry import did_you_mean
from fairssl.types import UserError

_WORDS = {"true": True, "false": False, "null": None, "none": None}
_EXAMPLES = {
    int: ("a whole number", "2"),
    float: ("a number", "1.5"),
    bool: ("true or false", "true"),
    str: ("text", "gpu"),
    list: ("a list of texts", "'[\"module load cuda\"]'"),
    dict: ("a mapping", '\'{"gres": "gpu:1"}\''),
}


def parse_submit(assignments: Sequence[str]) -> dict[str, Any]:
    """`["timeout_min=600"]` -> `{"timeout_min": 600}`.

    A value is JSON: a number, true, false, null, a list, a mapping or text in double quotes. Anything else is text as it
    stands, so that most texts need no quotes; True, False and None are understood too.
    """
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = (part.strip() for part in assignment.partition("="))
        if not equals or not name:
            raise UserError(
                f"--submit {assignment!r} is not of the form parameter=value, as in --submit timeout_min=600"
            )
        found[name] = _parse(name, text)
    return found


def _parse(name: str, text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    try:
        return json.loads(text, parse_constant=str)
    except ValueError as error:
        if text[:1] in ("[", "{", '"'):
            raise UserError(
                f"--submit {name}={text}: {error}; write it as JSON, with double quotes, as in "
                f'\'["module load cuda"]\' or \'{{"gres": "gpu:1"}}\''
            ) from error
        return text


def check_submit(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters as submitit takes them; an unknown name, or a value of another type, is a `UserError`.

    A number where submitit wants text becomes text: an account may be named 123. None means not set, as for submitit.
    """
    if not parameters:
        return {}
    known = _parameter_types()
    checked = {}
    for name, value in parameters.items():
        if name not in known:
            raise UserError(f"unknown --submit {name!r}{did_you_mean(name, known)}")
        clusters = _clusters()
        if name == "cluster" and value not in clusters:
            raise UserError(f"--submit cluster={value!r} is unknown{did_you_mean(str(value), clusters)}")
        if value is not None:
            checked[name] = _checked(name, value, known[name])
    return checked


def _checked(name: str, value: Any, allowed: tuple[type, ...]) -> Any:
    fits = not allowed or type(value) in allowed or (float in allowed and type(value) is int)
    if fits and type(value) is list:
        fits = all(isinstance(item, str) for item in value)
    if fits:
        return value
    if str in allowed and isinstance(value, int | float):
        return json.dumps(value)
    kinds = " or ".join(_EXAMPLES[kind][0] for kind in allowed)
    raise UserError(
        f"--submit {name}={value if isinstance(value, str) else json.dumps(value)}: must be {kinds}, as in "
        f"--submit {name}={_EXAMPLES[allowed[0]][1]}"
    )


def _parameter_types() -> dict[str, tuple[type, ...]]:
    """Every parameter that submitit knows -> the types that it takes; empty: any.

    Those of all clusters (`timeout_min`), those of one with its name in front (`slurm_partition`), and `cluster`. The
    names and types are submitit's own.
    """
    submitit = need("submitit", "--executor slurm", "slurm")
    shared: dict[str, tuple[type, ...]] = {
        name: (kind,) for name, kind in submitit.AutoExecutor._typed_parameters().items()
    }
    found = {"cluster": (str,), **shared}
    for cluster, executor in _clusters().items():
        hints = get_type_hints(submitit.slurm.slurm._make_sbatch_string) if cluster == "slurm" else {}
        for name in executor._valid_parameters():
            found[f"{cluster}_{name}"] = _plain_types(hints.get(name, Any))
        found |= {f"{cluster}_{name}": kinds for name, kinds in shared.items()}
    return found


def _clusters() -> dict[str, Any]:
    """Name of a kind of cluster -> submitit's executor for it; `local` and `debug` are this machine."""
    executors: dict[str, Any] = importlib.import_module("submitit.core.plugins").get_executors()
    return executors


def _plain_types(hint: Any) -> tuple[type, ...]:
    """`Optional[List[str]]` -> (list,); `Any` -> ()."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(kind for part in get_args(hint) for kind in _plain_types(part))
    kind = get_origin(hint) or hint
    if kind is Iterable:
        return (list,)
    return (kind,) if kind in _EXAMPLES else ()
