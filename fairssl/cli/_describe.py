"""What `fairssl show` says of a thing, as one object: read off the plugin, its docstrings and its parameters."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from fairssl.registry import first_sentence
from fairssl.types import UserError

SETTINGS = ("train", "probe")  # what --set reaches in every run


def describe(kind: str, name: str | None) -> dict[str, Any]:
    """Everything about the plugin `name` of a kind, a grid, or the settings called `kind`.

    Errors: `UserError` for an unknown kind or name, a missing name, and one too many.
    """
    if kind in SETTINGS:
        if name is not None:
            raise UserError(f"show {kind} takes no name, and {name!r} is one more; write: fairssl show {kind}")
        return _settings(kind)
    if kind in ("grid", "grids"):
        return _grid(_needed("grid", name))
    from fairssl import kinds

    one = kinds.by_kind(kind, "grids", *SETTINGS).one
    name = _needed(one, name)
    return _method(name) if one == "method" else _PLUGINS[one](name)


def _needed(one: str, name: str | None) -> str:
    if name is not None:
        return name
    from fairssl import kinds
    from fairssl.plan.request import grid_names

    known = grid_names() if one == "grid" else kinds.by_kind(one).where()
    raise UserError(f"which {one}? known: {', '.join(sorted(known))}; write: fairssl show {one} NAME")


def _about(kind: str, name: str) -> dict[str, Any]:
    """What every plugin has: where it comes from, its version, and its docstrings."""
    from fairssl import kinds

    registry = kinds.by_kind(kind)
    plugin, place = registry.get(name), registry.locate(name)
    summary, source = first_sentence(inspect.getdoc(inspect.getmodule(plugin)) or "")
    own = inspect.getdoc(plugin) or ""
    return {
        "kind": kind,
        "name": registry.canonical(name),
        "summary": summary,
        "package": place.package,
        "file": str(place.path),
        "version": plugin.version,
        "source": _unwrapped(source),
        "description": _unwrapped(own),
    }


def _objective(name: str) -> dict[str, Any]:
    from fairssl import kinds

    part = kinds.objectives.get(name)
    return {
        **_about("objective", name),
        **_seen(part),
        "gives": part.gives,
        "trains": part.trains,
        "parameters": parameters(part, name),
    }


def _head(name: str) -> dict[str, Any]:
    from fairssl import kinds

    part = kinds.heads.get(name)
    return {**_about("head", name), **_seen(part), "needs": part.needs, "parameters": parameters(part, name)}


def _encoder(name: str) -> dict[str, Any]:
    """An encoder plugin, or any name that one accepts: with the parameters that make it that one."""
    from fairssl import kinds
    from fairssl.spec.method import encoder_spec

    spec = encoder_spec(name, {})
    about = _about("encoder", spec.name)
    found = parameters(kinds.encoders.get(spec.name), "encoder")
    used = _used(kinds.encoders, spec)
    return {**about, "name": name, "parameters": [{**row, "default": used[row["name"]]} for row in found]}


def _used(kind: Any, part: Any) -> dict[str, Any]:
    """The parameters of a part that is used, with those that its key leaves out at their defaults."""
    return {**kind.get(part.name).Config.added(), **part.params}


def _dataset(name: str) -> dict[str, Any]:
    from fairssl import kinds

    dataset = kinds.datasets.get(name)
    card = {
        key: sorted(value) if isinstance(value, frozenset) else value for key, value in asdict(dataset.card).items()
    }
    return {**_about("dataset", name), "card": card, "parameters": parameters(dataset, "data")}


def _metric(name: str) -> dict[str, Any]:
    """A metric by its file's name, or by its symbol."""
    from fairssl import kinds
    from fairssl.registry import UnknownName

    try:
        metric = kinds.metrics.get(name)
    except UnknownName:
        by_symbol = {metric.symbol: one for one, metric in kinds.metrics.working().items()}
        if name not in by_symbol:
            raise
        name = by_symbol[name]
        metric = kinds.metrics.get(name)
    return {
        **_about("metric", name),
        "symbol": metric.symbol,
        "better": metric.better,
        "printed": "x 100" if metric.percent else "as it is",
        "headline": metric.headline,
        "given_target": metric.given_target,
        "symmetric": metric.symmetric,
        "parameters": list(_keywords(metric)),
    }


_PLUGINS = {"objective": _objective, "head": _head, "encoder": _encoder, "dataset": _dataset, "metric": _metric}


def _method(name: str) -> dict[str, Any]:
    """A method file, an objective, or a composition: its parts with their settings, and what it sees."""
    from fairssl import kinds
    from fairssl.cli.list_ import FACTS
    from fairssl.spec.method import compose, parse_method

    method = parse_method(name)
    spec = compose(name, method, {})
    # A composition's facts are nobody's statement; what it sees is read off its parts.
    named = name.rpartition(":")[2] in kinds.methods.offers() or name in method.aliases
    owners = {spec.objective.name: kinds.objectives, **{head.name: kinds.heads for head in spec.heads}}
    used = {part.name: _used(owners[part.name], part) for part in (spec.objective, *spec.heads)}
    rows = [
        {**row, "default": used[part][row["name"]]}
        for part, kind in owners.items()
        for row in parameters(kind.get(part), part)
    ]
    return {
        "kind": "method",
        "name": name,
        "summary": method.summary,
        "paper": method.paper or None,
        "objective": spec.objective.name,
        "heads": {head.name: head.params["weight"] for head in spec.heads},
        "aliases": list(method.aliases),
        **{key: getattr(method, key) if named else None for key in FACTS.values() if key not in ("target", "group")},
        "target": spec.target,
        "group": spec.group,
        "streams": list(spec.streams),
        "sampler": spec.sampler,
        "scored_by": spec.scored_by,
        "train": dict(method.train),
        "probe_params": dict(method.probe_params),
        "versions": {part.name: part.version for part in (spec.objective, *spec.heads)},
        "notes": method.notes or None,
        "search": {name: list(values) for name, values in method.search.items()},
        "parameters": rows,
    }


def _seen(part: Any) -> dict[str, Any]:
    return {
        "sees": sorted(part.sees),
        "streams": sorted(part.streams),
        "n_views": part.n_views,
        "capturable": part.capturable,
    }


def _settings(kind: str) -> dict[str, Any]:
    """What --set train.X and --set probe.X reach, and the methods that set some of it themselves."""
    from fairssl import kinds
    from fairssl.spec.config import ProbeConfig, TrainConfig

    config: Any = TrainConfig if kind == "train" else ProbeConfig
    summary, rest = first_sentence(inspect.getdoc(config) or "")
    own: dict[str, dict[str, Any]] = {}
    for name, method in kinds.methods.working().items():
        said = method.train if kind == "train" else method.probe_params
        if said:
            own[name] = dict(said)
    return {
        "kind": "settings",
        "name": kind,
        "summary": summary,
        "description": _unwrapped(rest),
        "set_by_methods": own,
        "parameters": parameters_of(config, kind),
    }


def _grid(name: str) -> dict[str, Any]:
    """A grid's first comment, what it runs, how much that is, and what its file says."""
    from fairssl.plan.request import grid_file, load_grid
    from fairssl.plan.resolve import resolve_all

    requests, path = load_grid(name), grid_file(name)
    plan = resolve_all(requests, allow_absent=True)
    summary, rest = grid_comment(path)
    specs = [run.spec for run in plan.runs]
    return {
        "kind": "grid",
        "name": name,
        "summary": summary,
        "description": rest,
        "file": str(path),
        "runs": len(plan.runs),
        "pretrainings": len(plan.pretrainings()),
        "methods": list(dict.fromkeys(run.label for run in plan.runs)),
        "datasets": list(dict.fromkeys(spec.data.dataset for spec in specs)),
        "targets": list(dict.fromkeys(spec.data.target for spec in specs)),
        "attributes": list(dict.fromkeys(spec.data.attribute for spec in specs)),
        "seeds": sorted({spec.seed for spec in specs}),
        "not_on_this_machine": sorted(plan.absent),
        "settings": [
            {
                "set" if key == "assignments" else key: value
                for key, value in vars(request).items()
                if value is not None and key != "files"  # which file says it: `file`, of every key
            }
            for request in requests
        ],
    }


def grid_comment(path: Path) -> tuple[str, str]:
    """The first sentence of the comment that a grid file begins with, and the rest."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), path.read_text(encoding="utf-8-sig").splitlines())
    comment = re.sub(r"\.\n", ".\n\n", "\n".join(line.lstrip("# ") for line in lines))  # a full stop ends a paragraph
    summary, _, rest = _unwrapped(comment).partition(". " if ". " in comment.partition("\n\n")[0] else "\n\n")
    return f"{summary}." if rest and not summary.endswith(".") else summary, rest


def parameters(part: Any, label: str) -> list[dict[str, Any]]:
    """Each parameter of a plugin; see `parameters_of`."""
    return parameters_of(part.Config, label)


def parameters_of(config: Any, label: str) -> list[dict[str, Any]]:
    """Each parameter of a config: name, type, default, range, what it is, and how `--set` spells it."""
    spellings: dict[str, list[str]] = {}
    for alias, field in config.aliases.items():
        spellings.setdefault(field, []).append(alias)
    return [
        {
            "name": name,
            "set": f"{label}.{name}",
            "aliases": spellings.get(name, []),
            "type": _type(field.annotation),
            "default": field.get_default(call_default_factory=True),
            "range": _range(field.metadata),
            "about": " ".join((field.description or "").split()),
        }
        for name, field in config.model_fields.items()
    ]


PAIRS = "Of more than two groups; `bench` and `score` ask for all where the groups are in no order."


def _keywords(metric: Any) -> Iterator[dict[str, Any]]:
    from typing import get_type_hints

    hints = get_type_hints(metric)
    for name, parameter in list(inspect.signature(metric).parameters.items())[1:]:
        found = {"name": name, "type": _type(hints.get(name)), "default": parameter.default}
        yield {**found, **({"about": PAIRS} if name == "pairs" else {})}


def _type(annotation: Any) -> str:
    if get_origin(annotation) is not None and get_args(annotation) and str(annotation).startswith("typing.Literal"):
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join("none" if one is type(None) else _type(one) for one in get_args(annotation))
    return getattr(annotation, "__name__", str(annotation)) if get_origin(annotation) is None else str(annotation)


_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of"}


def _range(metadata: Sequence[Any]) -> str:
    bounds = [f"{sign} {getattr(m, key)}" for m in metadata for key, sign in _SIGNS.items() if hasattr(m, key)]
    return ", ".join(bounds)


def _unwrapped(text: str) -> str:
    """Paragraphs as single lines, so that they can be wrapped anew."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())
