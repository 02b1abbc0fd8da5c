"""The command that trains a row again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairssl.plan.request import Request
from fairssl.plan.resolve import resolve
from fairssl.types import UserError


def command_of(spec: Mapping[str, Any], name: str, seeds: Sequence[int]) -> str:
    """`fairssl bench ...` with every setting that differs from the default; empty where no command gives this spec.

    It is resolved and compared with the spec, all but the data's content, so that it is never nearly right.
    """
    try:
        request = _request(spec, name, seeds)
        base = _resolved(request)
        request = replace(request, assignments=list(_assignments(spec, base)) or None)
        if _comparable(_resolved(request)) != _comparable(spec):
            return ""
    except (UserError, KeyError, TypeError, ValueError, AttributeError):  # a plugin that is not installed here, say
        return ""
    return _written(request)


def _request(spec: Mapping[str, Any], name: str, seeds: Sequence[int]) -> Request:
    data, pretrain = spec["data"], spec.get("pretrain")
    trained = pretrain or data
    return Request(
        methods=[name],
        datasets=[data["dataset"]],
        attributes=[data["attribute"]],
        targets=[data["target"]],
        seeds=tuple(seeds),
        encoder=spec["encoder"]["name"],
        epochs=spec["train"]["epochs"],
        image_size=trained["image_size"],
        batch_size=spec["train"]["batch_size"],
        annotated=spec.get("annotated"),
        pretrain_dataset=None if pretrain is None else pretrain["dataset"],
        pretrain_target=None if pretrain is None else pretrain["target"],
        pretrain_attribute=None if pretrain is None else pretrain["attribute"],
    )


def _resolved(request: Request) -> dict[str, Any]:
    return resolve(replace(request, seeds=1), allow_absent=True).runs[0].spec.model_dump(mode="json")


def _assignments(spec: Mapping[str, Any], base: Mapping[str, Any]) -> Iterator[str]:
    """What `--set` must say."""
    yield from _differing("data", spec["data"]["params"], base["data"]["params"])
    yield from _differing("encoder", spec["encoder"]["params"], base["encoder"]["params"])
    for name in ("source", "licence"):
        if spec["encoder"].get(name):
            yield f"encoder.{name}={spec['encoder'][name]}"
    for part in ("train", "probe"):
        yield from _differing(part, spec[part], base[part], ("epochs", "batch_size") if part == "train" else ())
    theirs = {part["name"]: part["params"] for part in (base["method"]["objective"], *base["method"]["heads"])}
    kept = {head["name"] for head in spec["method"]["heads"]}
    yield from (f"{head['name']}.weight=0" for head in base["method"]["heads"] if head["name"] not in kept)
    for part in (spec["method"]["objective"], *spec["method"]["heads"]):
        yield from _differing(part["name"], part["params"], theirs[part["name"]])


def _differing(part: str, ours: Mapping[str, Any], base: Mapping[str, Any], skip: Sequence[str] = ()) -> Iterator[str]:
    for name, value in sorted(ours.items()):
        if name not in skip and value != base.get(name):
            yield f"{part}.{name}={value if isinstance(value, str) else json.dumps(value)}"


def _comparable(spec: Mapping[str, Any]) -> Any:
    content = {name: value for name, value in spec.items() if name != "seed" and value is not None}
    for name in ("data", "pretrain"):
        if name in content:
            content[name] = {key: value for key, value in content[name].items() if key != "fingerprint"}
    content["method"] = {key: value for key, value in content["method"].items() if key != "name"}
    return json.loads(json.dumps(content))


def _written(request: Request) -> str:
    flags: list[tuple[str, Any]] = [
        *(("--method", value) for value in request.methods or ()),
        *(("--dataset", value) for value in request.datasets or ()),
        *(("--target", value) for value in request.targets or ()),
        *(("--attr", value) for value in request.attributes or ()),
        ("--pretrain-dataset", request.pretrain_dataset),
        ("--pretrain-target", request.pretrain_target),
        ("--pretrain-attr", request.pretrain_attribute),
        ("--seeds", _seeds(request.seed_list or ())),
        ("--encoder", request.encoder),
        ("--epochs", request.epochs),
        ("--image-size", request.image_size),
        ("--batch-size", request.batch_size),
        ("--annotated", request.annotated),
        *(("--set", text) for text in request.assignments or ()),
    ]
    words = [word for flag, value in flags if value is not None for word in (flag, str(value))]
    return shlex.join(["fairssl", "bench", *words])


def _seeds(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(len(seeds))):
        return str(len(seeds))
    return ",".join(map(str, seeds)) + ("," if len(seeds) == 1 else "")
