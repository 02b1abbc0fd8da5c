"""From the words a user types to the composition they name."""

from __future__ import annotations

import contextlib
import csv
import difflib
import itertools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fairssl import kinds, registry
from fairssl.registry import BrokenPlugin, UnknownName, configure, did_you_mean
from fairssl.spec.run import EncoderSpec, MethodSpec, PartSpec, Seen
from fairssl.spec.unread import without
from fairssl.types import Method, UserError


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
            objective = kinds.objectives.canonical(first)
        except UnknownName:
            known = {*_typed_names(), *kinds.objectives.where()}
            raise UserError(
                f"unknown method {text!r}: {first!r} is no method and no objective{did_you_mean(first, known)}"
                f"{registry.absence_hint()}"
            ) from None
        method = Method(summary=kinds.objectives.summary(objective), paper="", objective=objective)
    heads = {name: dict(params) for name, params in method.heads.items()}
    for piece in rest:
        name, weight = _head_and_weight(piece)
        try:
            name = kinds.heads.canonical(name)
        except UnknownName as error:
            raise UserError(f"unknown method {text!r}: {error}") from None
        if name not in heads and method.search and kinds.heads.get(name).streams:
            method = replace(method, search={**method.search, f"{name}.weight": WEIGHTS})
        heads.setdefault(name, {})  # a head that is there already keeps its parameters, and the later weight counts
        if weight is not None:
            heads[name]["weight"] = weight
    return replace(method, heads=heads, aliases=())


def _typed_names() -> set[str]:
    """The methods as users type them: `ce+eod`, whose file can be no more than ce_eod."""
    working = kinds.methods.working()
    composed = {name: [alias for alias in method.aliases if "+" in alias] for name, method in working.items()}
    return {name for offered in kinds.methods.where() for name in composed.get(offered) or [offered]}


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
                heads[kinds.heads.canonical(name)]["weight"] = weight
        return replace(method, heads=heads), rest[n:]
    return None, rest


def _head_and_weight(piece: str) -> tuple[str, str | None]:
    """`adversary:0.3`, `package:adversary`, `package:adversary:0.3`: what stands after a colon is a package's name where
    what stands before it is no head, and a weight elsewhere."""
    first, colon, last = piece.rpartition(":")
    if not colon or (":" not in first and first not in kinds.heads.offers() and last in kinds.heads.offers()):
        return piece, None
    return first, last


def _named_method(text: str) -> Method | None:
    """The method file that `text` names, or the one that has it as an alias; None if there is neither."""
    package, _, short = text.rpartition(":")
    places = [p for p in kinds.methods.offers().get(short, []) if not package or p.package == package]
    if places:
        return _own_parts(kinds.methods.get(text), kinds.methods.locate(text).package)
    holders = [name for name, method in kinds.methods.working().items() if text in method.aliases]
    if len(holders) > 1:
        raise UserError(f"method {text!r} is an alias of {' and of '.join(holders)}; write one of these")
    return _named_method(holders[0]) if holders else None


def _own_parts(method: Method, package: str) -> Method:
    def own(kind: registry.Registry[Any], name: str) -> str:
        mine = any(place.package == package for place in kind.offers().get(name, []))
        return kind.canonical(f"{package}:{name}" if mine else name)

    return replace(
        method,
        objective=own(kinds.objectives, method.objective),
        heads={own(kinds.heads, name): params for name, params in method.heads.items()},
    )


def sweep(assignments: Iterable[str], called: str = "--set") -> list[list[str]]:
    """Assignments with several values each, as `adversary.weight=0.1,0.3`, -> every combination of single ones, the last
    changing fastest. A value that is itself a list is written in brackets, as `mmd.gammas=[0.5,1,2]`; one that has a comma
    in it, in quotes, as `data.table="a,b.csv"`. `called` begins messages."""
    choices = []
    for text in assignments:
        name, equals, value = text.partition("=")
        one = not equals or value.strip().startswith(("[", "{")) or _quoted(value.strip()) is not None
        values = [] if one else value.split(",")
        seen: dict[Any, str] = {}
        for single in filter(str.strip, values):
            if _number(single) in seen:
                raise UserError(
                    f"{called} {text!r} names {single.strip()} twice{_as_well(single, seen[_number(single)])}; name it once"
                )
            seen[_number(single)] = single
        choices.append([text] if one else [f"{name}={single}" for single in values])
    return [list(combination) for combination in itertools.product(*choices)]


def _number(text: str) -> Any:
    """A value as what it is compared by: 0.1 and 0.10 are one number."""
    try:
        return float(text)
    except ValueError:
        return text.strip()


def _as_well(text: str, other: str) -> str:
    return "" if text.strip() == other.strip() else f" (as {other.strip()} too)"


def parse_set(assignments: Iterable[str], called: str = "--set") -> dict[str, dict[str, Any]]:
    """`["adversary.weight=0.5"]` -> `{"adversary": {"weight": "0.5"}}`; a value in brackets is read as JSON. `called` begins
    messages."""
    values: dict[str, dict[str, Any]] = {}
    for text in assignments:
        left, equals, value = text.partition("=")
        part, dot, key = left.strip().rpartition(".")
        if equals and not value.strip():
            raise UserError(f"{called} {text!r} sets nothing in one place; leave it or the comma out")
        if not equals or not dot or not part or not key:
            example = "--set adversary.weight=0.5" if called == "--set" else "adversary.weight=0.5"
            raise UserError(f"{called} {text!r} is not of the form part.parameter=value, as in {example}")
        if key in values.setdefault(part, {}):
            raise UserError(f"{called} {part}.{key} is given twice; give it once")
        values[part][key] = _value(text, value.strip(), called)
    return values


def split_names(text: str) -> list[str]:
    r"""`a,b` -> `["a", "b"]`; a name that has a comma in it stands in quotes, as in CSV: `"a,b",c`.

    >>> split_names('"a,b",c')
    ['a,b', 'c']
    """
    try:
        return [name.strip() for name in next(csv.reader([text], skipinitialspace=True, strict=True)) or [""]]
    except csv.Error:  # a quote that is none of CSV's
        return [name.strip() for name in text.split(",")]


def one_name(name: str) -> str:
    """A single name as `split_names` takes it."""
    if split_names(name) == [name]:
        return name
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _quoted(value: str) -> str | None:
    """The text of a JSON string; None for anything else."""
    if not value.startswith('"'):
        return None
    with contextlib.suppress(ValueError):
        found = json.loads(value)
        return found if isinstance(found, str) else None
    return None


def _value(text: str, value: str, called: str) -> Any:
    if (quoted := _quoted(value)) is not None:
        return quoted
    if not value.startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise UserError(f"{called} {text!r}: what stands in brackets is no JSON: {error}") from error


def same_setting(name: str) -> str:
    """One spelling of a setting's name: `ccl.lambda` is `ccl.weight`. A name of nothing is itself."""
    part, _, key = name.rpartition(".")
    for kind in (kinds.objectives, kinds.heads):
        try:
            aliases: Mapping[str, str] = getattr(kind.get(part).Config, "aliases", {})
        except UserError:  # not of this kind, or broken: whoever uses it says so
            continue
        if key in aliases:
            return f"{part}.{aliases[key]}"
    return name


def weights_in(text: str) -> dict[str, str]:
    """Head -> the weight that a method's name gives it: `byol+adversary:0.3` -> `{"adversary": "0.3"}`."""
    if _named_method(text) is not None:
        return {}
    pieces = (_head_and_weight(piece) for piece in text.split("+")[1:])
    return {kinds.heads.canonical(name): weight for name, weight in pieces if weight is not None}


def check_weights(
    text: str, values: Mapping[str, Mapping[str, Any]], called: Callable[[str], str] = lambda name: "--set"
) -> None:
    """Refuse a weight that is not the one in the method's name: a row would be named after one and trained with the other.
    `called`: how the user said a setting."""
    for head, weight in weights_in(text).items():
        aliases = getattr(kinds.heads.get(head).Config, "aliases", {})
        for key, value in values.get(head, {}).items():
            if aliases.get(key, key) == "weight" and _number(str(value)) != _number(weight):
                how = called(f"{head}.weight")
                raise UserError(
                    f"method {text!r} says that {head}.weight is {weight}, and {how} that it is {value}; leave one of them "
                    "out"
                )


# What a search tries for a head that is added to a method: the weights of the SoFCLR paper.
WEIGHTS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
CORE_PARTS = ("train", "probe", "encoder", "data")  # what --set may name besides a method's own parts


def check_set(
    values: Mapping[str, Mapping[str, Any]],
    methods: Sequence[Method],
    called: Callable[[str], str] = lambda name: "--set",
) -> None:
    """Every part that --set names must be in a selected method. `called`: how the user said a setting."""
    known = {*CORE_PARTS, *(m.objective for m in methods), *(h for m in methods for h in m.heads)}
    for part, params in values.items():
        if part not in known:
            how = called(same_setting(f"{part}.{next(iter(params))}"))
            raise UserError(f"{how} {part}: no selected method has a part {part!r}{did_you_mean(part, known)}")


def part_spec(kind: registry.Registry[Any], name: str, params: Mapping[str, Any]) -> PartSpec:
    """A plugin with its version and every parameter; those that have no effect are at their defaults."""
    part = kind.get(name)
    config = configure(part.Config, name, params)
    return PartSpec(name=name, version=part.version, params=without(config, config.unread()).params())


def unread_of_part(
    kind: registry.Registry[Any], name: str, ours: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]]
) -> frozenset[str]:
    """Parameters of a method's part that have no effect, with the user's in `values` over the method's own."""
    return frozenset(configure(kind.get(name).Config, name, _merge(kind, name, ours, values)).unread())


def unread_of_encoder(spec: EncoderSpec) -> frozenset[str]:
    """Parameters of an encoder that have no effect."""
    return frozenset(configure(kinds.encoders.get(spec.name).Config, spec.name, spec.params).unread())


def method_spec(text: str, values: Mapping[str, Mapping[str, Any]]) -> MethodSpec:
    """The composition a user asked for with `--set` applied, a head of weight 0 dropped, and what it sees written down."""
    check_weights(text, values)
    return compose(text, parse_method(text), values)


def compose(text: str, method: Method, values: Mapping[str, Mapping[str, Any]]) -> MethodSpec:
    """`method_spec` of a method that need not be registered; `text` names it in messages."""
    if method.objective in method.heads:
        raise UserError(
            f"method {text!r}: objective and head are both called {method.objective!r}; one of them is enough"
        )

    def part(kind: registry.Registry[Any], name: str, ours: Mapping[str, Any]) -> PartSpec:
        return part_spec(kind, name, _merge(kind, name, ours, values))

    objective = part(kinds.objectives, method.objective, method.params)
    heads = [part(kinds.heads, name, method.heads[name]) for name in sorted(method.heads)]
    kept = [head for head in heads if head.params["weight"] != 0]
    # Of a method whose heads all have weight 0 the objective is left: its batches are drawn as the objective's alone.
    sampler = "shuffle" if heads and not kept else method.sampler
    heads = kept
    parts = [kinds.objectives.get(objective.name), *(kinds.heads.get(head.name) for head in heads)]
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

    if "annotated" not in drawn:
        sampler = "shuffle"  # it is the annotated stream's

    def seen(label: str) -> Seen:
        where = set[str]()
        for part in parts:
            if label in part.sees:
                where |= (part.streams if part.labelled is None else part.labelled) or {"annotated"}
        if not where:
            return "none"
        return "all" if label == "target" and "all" in where else "annotated"  # no part ever sees more groups

    return MethodSpec(
        name=text,
        objective=objective,
        heads=tuple(heads),
        sampler=sampler,
        scored_by=method.scored_by,
        streams=(own, *sorted(drawn - {own})),
        target=seen("target"),
        group="annotated" if sampler != "shuffle" or _reads_groups_after_training(method) else seen("group"),
    )


def _reads_groups_after_training(method: Method) -> bool:
    return method.scored_by == "balanced_head" or method.probe_params.get("thresholds", "none") != "none"


def _merge(
    kind: registry.Registry[Any], name: str, ours: Mapping[str, Any], values: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """A method's own parameters under the user's, whichever spelling either uses."""
    user = values.get(name, {})
    aliases = getattr(kind.get(name).Config, "aliases", {})
    given = {aliases.get(key, key) for key in user}
    return {**{k: v for k, v in ours.items() if aliases.get(k, k) not in given}, **user}


def encoder_spec(name: str, params: Mapping[str, Any]) -> EncoderSpec:
    """A plugin's file name, or any name that an encoder plugin accepts (a timm model's). `source` and `licence` among the
    parameters are of weights, which must be named with them."""
    said = {key: str(params[key]) for key in ("source", "licence") if key in params}
    part = _encoder_part(name, {key: value for key, value in params.items() if key not in said})
    if said and not part.params.get("weights"):
        raise UserError(f"--set encoder.{next(iter(said))} is of weights; name their file too: --weights FILE")
    return EncoderSpec(
        name=part.name,
        version=part.version,
        params=part.params,
        source=said.get("source", ""),
        licence=said.get("licence", ""),
    )


def _encoder_part(name: str, params: Mapping[str, Any]) -> PartSpec:
    if name.rpartition(":")[2] in kinds.encoders.offers():
        return part_spec(kinds.encoders, kinds.encoders.canonical(name), params)
    broken, models = [], []
    for plugin in kinds.encoders.where():
        try:
            encoder = kinds.encoders.get(plugin)
        except BrokenPlugin as error:
            broken.append(str(error))
            continue
        models += encoder.models()
        accepted = encoder.accepts(name)
        if accepted is not None:
            return part_spec(kinds.encoders, plugin, {**accepted, **params})
    causes = "".join(f"; {cause}" for cause in broken)
    close = difflib.get_close_matches(name, [*kinds.encoders.where(), *models], n=3)
    hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ";"
    known = ", ".join(kinds.encoders.where())
    raise UserError(f"unknown encoder {name!r}{hint} known: {known}, and the models they name ({len(models)}){causes}")
