"""What of a row's settings is not the default: of its method, its plugins, the training loop, the probe, its dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from fairssl import kinds
from fairssl.interfaces import PluginConfig
from fairssl.registry import configure
from fairssl.spec.config import ProbeConfig, TrainConfig, precision_of
from fairssl.spec.method import compose, parse_method
from fairssl.spec.run import MethodSpec
from fairssl.spec.unread import unread_in_probe, unread_in_train
from fairssl.types import Method, UserError

# What a table says of every row: in the sentence of the encoder, and under Images/step.
SAID = {"train.loop", "train.epochs", "train.batch_size", "train.annotated_batch_size", "probe.version"}


def not_defaults(spec: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Setting, as `--set` writes it, -> value, of everything in a record's spec that its method, named `name` as it was
    typed, would not have by itself; but what the run cannot read, and `SAID`.

    A method that is not installed here has the defaults of the loop, the probe and the plugins.
    """
    method, base = _by_itself(name)
    found: dict[str, Any] = {}
    ours = spec.get("method") or {}
    heads = list(ours.get("heads") or ())
    parts = [(kinds.objectives, ours.get("objective") or {}), *((kinds.heads, head) for head in heads)]
    for kind, part in parts:
        if "name" in part:
            found |= _of_part(kind, part["name"], part.get("params") or {}, base.get(part["name"], {}))
    for head in method.heads if method is not None else ():
        if all(other.get("name") != head for other in heads):  # of weight 0, which leaves it out of the spec
            found[f"{head}.weight"] = 0
    train = {"precision": precision_of(_preset(spec)), **(method.train if method else {})}
    of_train, of_probe = _unread(spec)
    found |= _differing("train", TrainConfig, spec.get("train") or {}, train, of_train)
    found |= _differing("probe", ProbeConfig, spec.get("probe") or {}, method.probe_params if method else {}, of_probe)
    return {setting: value for setting, value in found.items() if setting not in SAID}


def _by_itself(name: str) -> tuple[Method | None, dict[str, Mapping[str, Any]]]:
    """A method with the parameters of its parts."""
    try:
        method = parse_method(name)
        composed = compose(name, method, {})
    except UserError:  # a plugin that is not installed here, or a name of the caller's own
        return None, {}
    return method, {part.name: part.params for part in (composed.objective, *composed.heads)}


def _preset(spec: Mapping[str, Any]) -> str:
    """The preset by which the dataset that trained the encoder is trained on unless one is named."""
    try:
        return str(kinds.datasets.get((spec.get("pretrain") or spec["data"])["dataset"]).card.defaults.preset)
    except UserError:
        return "paper"


def _of_part(kind: Any, name: str, ours: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    try:
        config = kind.get(name).Config
        unread = configure(config, name, ours).unread()
    except UserError:
        return {}  # nothing is known of a plugin that is not installed here, or of parameters that it no longer has
    return _differing(name, config, ours, base, unread)


def _unread(spec: Mapping[str, Any]) -> tuple[Collection[str], Collection[str]]:
    """What the run cannot read of the loop and of the probe."""
    try:
        method = MethodSpec.model_validate(spec["method"])
        train = unread_in_train(method, TrainConfig(**spec["train"]))
        return train, unread_in_probe(method, ProbeConfig(**spec["probe"]))
    except (KeyError, TypeError, ValidationError, UserError):  # a record of another fairssl, or of a plugin not here
        return (), ()


def _differing(
    part: str, config: type[PluginConfig], ours: Mapping[str, Any], base: Mapping[str, Any], unread: Collection[str]
) -> dict[str, Any]:
    here, there = _whole(config, ours), _whole(config, base)
    return {
        f"{part}.{name}": value
        for name, value in here.items()
        if name not in unread and name in there and value != there[name]
    }


def _whole(config: type[PluginConfig], params: Mapping[str, Any]) -> dict[str, Any]:
    """Every parameter with its value; those of another fairssl as they stand."""
    try:
        found: PluginConfig = configure(config, "", params)
    except UserError:
        return dict(params)
    return {**config.added(), **found.model_dump(mode="json")}
