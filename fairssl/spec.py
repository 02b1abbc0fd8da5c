"""What a run is, as data, and its keys: hashes of everything that can change the result, and of nothing else."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fairssl import registry
from fairssl.plugin import PluginConfig
from fairssl.registry import BrokenPlugin, UnknownName, configure, near
from fairssl.types import Method, ProbeKind, Sampler, UserError

Seen = Literal["none", "annotated", "all"]


class _Written:
    """A frozen model that keeps its canonical JSON: the cells of a grid share their parts, and a key is made of them."""

    @cached_property
    def written(self) -> str:
        return canonical(self.model_dump(mode="json"))  # type: ignore[attr-defined]


class Spec(_Written, BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PartSpec(Spec):
    """A plugin with its version and every parameter, defaults written in."""

    name: str
    version: int
    params: dict[str, Any]


class MethodSpec(Spec):
    """A composition. `name` is what the user typed and no part of a key."""

    name: str
    objective: PartSpec
    heads: tuple[PartSpec, ...] = ()  # by name; a head of weight 0 is not here
    sampler: Sampler = "shuffle"
    probe: ProbeKind = "linear"  # what scores
    streams: tuple[str, ...] = ("all",)  # what is drawn, the objective's own first
    target: Seen = "none"
    group: Seen = "none"

    @cached_property
    def written(self) -> str:
        content = self.model_dump(mode="json")
        del content["name"]
        return canonical(content)

    @cached_property
    def training(self) -> tuple[str, frozenset[str]]:
        """What of it can change the trained encoder, as canonical JSON, and the labels that training sees."""
        heads = [h for h in self.heads if registry.heads.get(h.name).streams]
        parts = [registry.objectives.get(self.objective.name), *(registry.heads.get(h.name) for h in heads)]
        sees = {label for part in parts for label in part.sees - {"views"}}
        if self.sampler == "cell_balanced":
            sees.add("target")
        if "annotated" in self.streams:
            sees.add("group")
        content = {
            "objective": self.objective.model_dump(mode="json"),
            "heads": [h.model_dump(mode="json") for h in heads],
            "sampler": self.sampler,
        }
        return canonical(content), frozenset(sees)


class DataSpec(Spec):
    """Which images, which labels. `fingerprint` is of content; None: the data is not on this machine."""

    dataset: str
    version: int
    params: dict[str, Any]
    fingerprint: str | None
    image_size: int = Field(ge=8)  # pixels, square
    split_seed: int = 0
    target: str
    attribute: str

    @cached_property
    def training(self) -> dict[frozenset[str], str]:
        """Canonical JSON of what can change the trained encoder, by the labels that training sees."""
        depends = registry.datasets.get(self.dataset).card.train_depends_on
        found = {}
        for sees in (frozenset(), frozenset({"target"}), frozenset({"group"}), frozenset({"target", "group"})):
            content = self.model_dump(mode="json")
            if "target" not in depends and "target" not in sees:
                del content["target"]
            if "attribute" not in depends and "group" not in sees:
                del content["attribute"]
            found[sees] = canonical(content)
        return found


class TrainConfig(_Written, PluginConfig):
    """The training loop and the augmentation, one recipe for every method but those that say otherwise (`erm`).

    The paper fixes Adam, 100 epochs and the batch sizes. Where it is silent: constant learning rates, weight decay 1e-6,
    and the contrastive recipe of FSCL (Park et al. 2022) for the augmentation, whose colour jitter acts on skin tone.
    """

    loop: Literal[1] = 1  # version of the loop and the augmentation; raised when results change
    epochs: int = Field(100, ge=1)  # passes over the objective's own stream
    min_steps: int = Field(0, ge=0)  # a run takes at least that many steps, in whole epochs
    batch_size: int = Field(128, ge=2)  # images; each has the objective's number of views
    annotated_batch_size: int = Field(0, ge=0)  # images of the annotated stream; 0: as `batch_size`
    lr: float = Field(1e-3, gt=0)
    dual_lr: float = Field(1e-3, gt=0)
    weight_decay: float = Field(1e-6, ge=0)
    schedule: Literal["constant", "cosine"] = "constant"  # of both learning rates
    dual_optimizer: Literal["adam", "sgd"] = "adam"
    clip_norm: float = Field(0.0, ge=0)  # of the primal gradient; 0: off
    precision: Literal["float32", "bf16"] = "bf16"  # of the networks; losses are float32
    join_streams: bool = False  # one forward pass, shared batch statistics
    # After crop and flip: jitter, gray and blur; or RandAugment (Cubuk et al. 2020) in their place.
    recipe: Literal["contrastive", "randaugment"] = "contrastive"
    crop_min: float = Field(0.2, gt=0, le=1)  # smallest area of a random resized crop, as a share
    flip: float = Field(0.5, ge=0, le=1)  # probability
    jitter: float = Field(0.8, ge=0, le=1)  # probability
    brightness: float = Field(0.4, ge=0)
    contrast: float = Field(0.4, ge=0)
    saturation: float = Field(0.4, ge=0)
    hue: float = Field(0.1, ge=0, le=0.5)  # turns
    gray: float = Field(0.2, ge=0, le=1)  # probability
    blur: float = Field(0.0, ge=0, le=1)  # probability; sigma 0.1 to 2 pixels
    rand_ops: int = Field(2, ge=1, le=8)  # RandAugment's N: operations per image
    rand_magnitude: float = Field(9.0, ge=0, le=30)  # RandAugment's M

    def batch_of(self, stream: str) -> int:
        """Images that a step takes of a stream that has as many."""
        return (self.annotated_batch_size if stream == "annotated" else 0) or self.batch_size


class ProbeConfig(_Written, PluginConfig):
    """Evaluation on frozen features. Linear: the paper's 20 epochs with the rate divided by 10 at epoch 10."""

    version: Literal[1] = 1  # raised when results change
    kind: Literal["linear", "lbfgs", "knn"] = "linear"
    epochs: int = Field(20, ge=1)
    lr: float = Field(1e-3, gt=0)  # Adam
    decay_epoch: int = Field(10, ge=1)
    batch_size: int = Field(256, ge=1)
    l2: float = Field(1.0, gt=0)  # lbfgs: inverse of scikit-learn's C
    neighbours: int = Field(20, ge=1)  # knn, cosine


class RunSpec(Spec):
    """One cell of a grid with one seed: everything that can change its result."""

    method: MethodSpec
    data: DataSpec
    annotated: float = Field(0.05, gt=0, le=1)
    encoder: PartSpec
    train: TrainConfig
    probe: ProbeConfig
    metrics: dict[str, int]  # symbol -> version
    seed: int = Field(0, ge=0)

    @cached_property
    def key(self) -> str:
        """Names the result. Two spellings of one composition have one key."""
        return _named(self._fields())

    @cached_property
    def pretrain_key(self) -> str:
        """Names the trained encoder: the key without what training never saw, and without heads that take no part in it."""
        return _named(self._training_fields())

    @property
    def seeds_key(self) -> str:
        """Names the trained encoders of all seeds."""
        fields = self._training_fields()
        del fields["seed"]
        return _named(fields)

    def _training_fields(self) -> dict[str, str]:
        fields = self._fields()
        del fields["probe"], fields["metrics"]
        fields["method"], sees = self.method.training
        fields["data"] = self.data.training[sees]
        if "group" not in sees:
            del fields["annotated"]
        return fields

    def _fields(self) -> dict[str, str]:
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: v.written if isinstance(v, _Written) else canonical(v) for name, v in values}


def canonical(content: Any) -> str:
    """Equal content, equal text: JSON with sorted keys and no blanks."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _named(fields: Mapping[str, str]) -> str:
    """`digest` of an object whose fields are canonical JSON already."""
    return _hash("{" + ",".join(f'"{name}":{fields[name]}' for name in sorted(fields)) + "}")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def digest(content: Any) -> str:
    """First 80 bits of SHA-256 of the canonical JSON, in hex."""
    return _hash(canonical(content))


def derive_seed(*parts: object) -> int:
    """A 63-bit seed from names and numbers: independent streams that do not move when another is added."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:16], 16) >> 1


# --------------------------------------------------------------------------- the method grammar


def check_share(stream: str, batch_size: int, n_devices: int) -> None:
    """Refuse a batch that would leave one of several devices without an image."""
    if batch_size < n_devices:
        raise UserError(
            f"{n_devices} devices: a step of the {stream!r} stream has {batch_size} images; at most as many devices"
        )


def parse_method(text: str) -> Method:
    """A method file's name or alias, else `objective+head:weight+...`; a method can be extended the same way.

    An alias may have weights: `ce+eod:0.5` is the method whose alias is `ce+eod`, with its sampler and its probe.
    A name may be written `package:name`, and must be where two packages offer it. The names in a method file mean the
    parts of its own package where that has them. In what is returned each part has its canonical name.

    >>> parse_method("byol+adversary:0.3").heads
    {'adversary': {'weight': '0.3'}}
    """
    found = _named_method(text)
    if found is not None:
        return found
    first, *rest = text.split("+")
    method, rest = _longest_alias(first, rest)
    if method is None:
        try:
            objective = registry.objectives.canonical(first)
        except UnknownName:
            known = {*registry.methods.where(), *registry.objectives.where()}
            raise UserError(
                f"unknown method {text!r}: {first!r} is no method and no objective{near(first, known)}"
                f"{registry.broken_hint()}"
            ) from None
        method = Method(summary=registry.objectives.summary(objective), paper="", objective=objective)
    heads = {name: dict(params) for name, params in method.heads.items()}
    for piece in rest:
        name, weight = _head_and_weight(piece)
        try:
            name = registry.heads.canonical(name)
        except UnknownName as error:
            raise UserError(f"unknown method {text!r}: {error}") from None
        if name in heads:
            raise UserError(f"method {text!r} names head {name!r} twice; combine their weights")
        heads[name] = {} if weight is None else {"weight": weight}
    return replace(method, heads=heads, aliases=())


def _longest_alias(first: str, rest: list[str]) -> tuple[Method | None, list[str]]:
    """The method that the most pieces of `first+rest` name once weights are left out, with these weights; and the pieces
    that remain. None: not even `first` is one."""
    pieces = [_head_and_weight(piece) for piece in rest]
    for n in range(len(rest), -1, -1):
        method = _named_method("+".join([first, *(name for name, _ in pieces[:n])]))
        if method is None:
            continue
        heads = {name: dict(params) for name, params in method.heads.items()}
        for name, weight in pieces[:n]:
            if weight is not None:
                heads[registry.heads.canonical(name)]["weight"] = weight
        return replace(method, heads=heads), rest[n:]
    return None, rest


def _head_and_weight(piece: str) -> tuple[str, str | None]:
    """`adversary:0.3`, `package:adversary`, `package:adversary:0.3`: what stands after a colon is a package's name where
    what stands before it is no head, and a weight elsewhere."""
    first, colon, last = piece.rpartition(":")
    if not colon or (":" not in first and first not in registry.heads.offers() and last in registry.heads.offers()):
        return piece, None
    return first, last


def _named_method(text: str) -> Method | None:
    """The method file that `text` names, or the one that has it as an alias; None if there is neither."""
    package, _, short = text.rpartition(":")
    places = [p for p in registry.methods.offers().get(short, []) if not package or p.package == package]
    if places:
        return _own_parts(registry.methods.get(text), registry.methods.locate(text).package)
    holders = []
    for name in registry.methods.where():
        try:
            if text in registry.methods.get(name).aliases:
                holders.append(name)
        except BrokenPlugin:  # says so when it is itself asked for
            continue
    if len(holders) > 1:
        raise UserError(f"method {text!r} is an alias of {' and of '.join(holders)}; write one of these")
    return _named_method(holders[0]) if holders else None


def _own_parts(method: Method, package: str) -> Method:
    def own(kind: registry.Registry[Any], name: str) -> str:
        mine = any(place.package == package for place in kind.offers().get(name, []))
        return kind.canonical(f"{package}:{name}" if mine else name)

    return replace(
        method,
        objective=own(registry.objectives, method.objective),
        heads={own(registry.heads, name): params for name, params in method.heads.items()},
    )


def parse_set(assignments: Iterable[str]) -> dict[str, dict[str, str]]:
    """`["adversary.weight=0.5"]` -> `{"adversary": {"weight": "0.5"}}`."""
    values: dict[str, dict[str, str]] = {}
    for text in assignments:
        left, equals, value = text.partition("=")
        part, dot, key = left.strip().rpartition(".")
        if not equals or not dot or not part or not key:
            raise UserError(f"--set {text!r} is not of the form part.parameter=value, as in --set adversary.weight=0.5")
        if key in values.setdefault(part, {}):
            raise UserError(f"--set {part}.{key} is given twice; give it once")
        values[part][key] = value.strip()
    return values


CORE_PARTS = ("train", "probe", "encoder", "data")  # what --set may name besides a method's own parts


def check_set(values: Mapping[str, Any], methods: Sequence[Method]) -> None:
    """Every part that --set names must be in a selected method."""
    known = {*CORE_PARTS, *(m.objective for m in methods), *(h for m in methods for h in m.heads)}
    for part in values:
        if part not in known:
            raise UserError(f"--set {part}: no selected method has a part {part!r}{near(part, known)}")


def part_spec(kind: registry.Registry[Any], name: str, params: Mapping[str, Any]) -> PartSpec:
    part = kind.get(name)
    return PartSpec(name=name, version=part.version, params=configure(part, name, params).params())


def method_spec(text: str, values: Mapping[str, Mapping[str, Any]]) -> MethodSpec:
    """The composition a user asked for with `--set` applied, a head of weight 0 dropped, and what it sees written down."""
    return compose(text, parse_method(text), values)


def compose(text: str, method: Method, values: Mapping[str, Mapping[str, Any]]) -> MethodSpec:
    """`method_spec` of a method that need not be registered; `text` names it in messages."""
    if method.objective in method.heads:
        raise UserError(
            f"method {text!r}: objective and head are both called {method.objective!r}; one of them is enough"
        )

    def part(kind: registry.Registry[Any], name: str, ours: Mapping[str, Any]) -> PartSpec:
        return part_spec(kind, name, _merge(kind, name, ours, values))

    objective = part(registry.objectives, method.objective, method.params)
    heads = [part(registry.heads, name, method.heads[name]) for name in sorted(method.heads)]
    heads = [head for head in heads if head.params["weight"] != 0]
    parts = [registry.objectives.get(objective.name), *(registry.heads.get(head.name) for head in heads)]
    for head in parts[1:]:
        if head.needs is not None and head.needs != parts[0].gives:
            raise UserError(
                f"method {text!r}: head {head.name!r} needs an objective that gives {head.needs}, "
                f"{objective.name!r} gives {parts[0].gives}s; fairssl show head {head.name}"
            )
        if head.streams and not parts[0].trains:
            raise UserError(
                f"method {text!r}: {objective.name!r} is never trained, so head {head.name!r} would do nothing; "
                "heads that act after training are fine"
            )
    own = "all" if "all" in parts[0].streams else "annotated"
    drawn = {stream for part in parts for stream in part.streams}

    def seen(label: str) -> Seen:
        where = {stream for part in parts if label in part.sees for stream in part.streams or {"annotated"}}
        if not where:
            return "none"
        return "all" if label == "target" and "all" in where else "annotated"  # no part ever sees more groups

    return MethodSpec(
        name=text,
        objective=objective,
        heads=tuple(heads),
        sampler=method.sampler,
        probe=method.probe,
        streams=(own, *sorted(drawn - {own})),
        target=seen("target"),
        group="annotated" if method.sampler != "shuffle" or method.probe == "balanced_head" else seen("group"),
    )


def _merge(
    kind: registry.Registry[Any], name: str, ours: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A method's own parameters under the user's, whichever spelling either uses."""
    user = values.get(name, {})
    aliases = getattr(kind.get(name).Config, "aliases", {})
    given = {aliases.get(key, key) for key in user}
    return {**{k: v for k, v in ours.items() if aliases.get(k, k) not in given}, **user}


def encoder_spec(name: str, params: Mapping[str, Any]) -> PartSpec:
    """A plugin's file name, or any name that an encoder plugin accepts (a timm model's)."""
    if name.rpartition(":")[2] in registry.encoders.offers():
        return part_spec(registry.encoders, registry.encoders.canonical(name), params)
    broken, models = [], []
    for plugin in registry.encoders.where():
        try:
            encoder = registry.encoders.get(plugin)
        except BrokenPlugin as error:
            broken.append(str(error))
            continue
        models += encoder.models()
        accepted = encoder.accepts(name)
        if accepted is not None:
            return part_spec(registry.encoders, plugin, {**accepted, **params})
    causes = "".join(f"; {cause}" for cause in broken)
    close = difflib.get_close_matches(name, [*registry.encoders.where(), *models], n=3)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ";"
    known = ", ".join(registry.encoders.where())
    raise UserError(f"unknown encoder {name!r}{hint} known: {known}, and the models they name ({len(models)}){causes}")


def metric_versions() -> dict[str, int]:
    """symbol -> version of every registered metric."""
    found = (registry.metrics.get(name) for name in registry.metrics.where())
    return {m.symbol: m.version for m in found}
