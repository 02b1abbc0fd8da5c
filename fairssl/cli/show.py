"""`fairssl show`: everything about one plugin, or about one composition."""

from __future__ import annotations

import ast
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, get_args, get_origin

import typer


def show(
    kind: str = typer.Argument(..., help="method, objective, head, encoder, dataset or metric; plural too."),
    name: str = typer.Argument(..., help="As `fairssl list` prints it; for a method also byol+adversary:0.3."),
    as_json: bool = typer.Option(False, "--json", help="Print one object."),
) -> None:
    """What a plugin is: its paper, parameters with defaults, what it sees, and how --set spells it."""
    from fairssl import kinds

    one = kinds.by_kind(kind).one
    content = _method(name) if one == "method" else _PLUGINS[one](name)
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False) if as_json else _text(content))


# --------------------------------------------------------------------------- what each kind says


def _about(kind: str, name: str) -> dict[str, Any]:
    """What every plugin has: where it comes from, its version, and its docstrings."""
    from fairssl import kinds

    registry = kinds.by_kind(kind)
    plugin, place = registry.get(name), registry.locate(name)
    module = inspect.getdoc(inspect.getmodule(plugin)) or ""
    own = inspect.getdoc(plugin) or ""
    return {
        "kind": kind,
        "name": registry.canonical(name),
        "summary": module.partition("\n")[0],
        "package": place.package,
        "file": str(place.path),
        "version": plugin.version,
        "source": _unwrapped(module.partition("\n")[2]),
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
    used = kinds.encoders.get(spec.name).Config.completed(spec.params)
    return {**about, "name": name, "parameters": [{**row, "default": used[row["name"]]} for row in found]}


def _dataset(name: str) -> dict[str, Any]:
    from fairssl import kinds

    dataset = kinds.datasets.get(name)
    card = asdict(dataset.card)
    card["train_depends_on"] = sorted(card["train_depends_on"])
    return {**_about("dataset", name), "card": card, "parameters": parameters(dataset, "data")}


def _metric(name: str) -> dict[str, Any]:
    """A metric by its file's name, or by its symbol."""
    from fairssl import kinds
    from fairssl.registry import UnknownName

    try:
        metric = kinds.metrics.get(name)
    except UnknownName:
        by_symbol = {kinds.metrics.get(one).symbol: one for one in kinds.metrics.where()}
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
    parts = (spec.objective, *spec.heads)
    used = {part.name: owners[part.name].get(part.name).Config.completed(part.params) for part in parts}
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
        "probe": spec.probe,
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


# --------------------------------------------------------------------------- parameters


def parameters(part: Any, label: str) -> list[dict[str, Any]]:
    """Each parameter of a plugin: name, type, default, range, what it is, and how `--set` spells it."""
    config = part.Config
    comments: dict[str, str] = {}
    for cls in reversed(config.__mro__):
        comments |= _comments(cls)
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
            "about": field.description or comments.get(name, ""),
        }
        for name, field in config.model_fields.items()
    ]


def _keywords(metric: Any) -> Iterator[dict[str, Any]]:
    from typing import get_type_hints

    hints = get_type_hints(metric)
    for name, parameter in list(inspect.signature(metric).parameters.items())[1:]:
        yield {"name": name, "type": _type(hints.get(name)), "default": parameter.default}


def _comments(cls: type) -> dict[str, str]:
    """The comment at the end of each field's line: where a config says what a field is, and in which unit."""
    if "__annotations__" not in vars(cls):
        return {}
    try:
        source = textwrap.dedent(inspect.getsource(cls))
    except (OSError, TypeError):  # no source at hand
        return {}
    said = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        node.target.id: said[node.end_lineno]
        for node in body.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in said
    }


def _type(annotation: Any) -> str:
    if get_origin(annotation) is not None and get_args(annotation) and str(annotation).startswith("typing.Literal"):
        return " | ".join(map(str, get_args(annotation)))
    return getattr(annotation, "__name__", str(annotation)) if get_origin(annotation) is None else str(annotation)


_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<=", "multiple_of": "a multiple of"}


def _range(metadata: Sequence[Any]) -> str:
    bounds = [f"{sign} {getattr(m, key)}" for m in metadata for key, sign in _SIGNS.items() if hasattr(m, key)]
    return ", ".join(bounds)


def _unwrapped(text: str) -> str:
    """Paragraphs as single lines, so that they can be wrapped anew."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip())


# --------------------------------------------------------------------------- as text

WIDTH = 100


def _text(content: Mapping[str, Any]) -> str:
    head = f"{content['kind']} {content['name']}"
    lines = [f"{head}: {content['summary']}" if content["summary"] else head]
    for key in ("paper", "source", "description", "notes"):
        for paragraph in (content.get(key) or "").split("\n\n"):
            if paragraph and paragraph != content["summary"]:
                lines += ["", *textwrap.wrap(paragraph, WIDTH)]
    lines.append("")
    skipped = {"kind", "name", "summary", "paper", "source", "description", "notes", "parameters", "card", "search"}
    facts = {**{k: v for k, v in content.items() if k not in skipped}, **_card(content.get("card"))}
    width = max(len(key) for key in facts)
    for key, value in facts.items():
        lines += textwrap.wrap(
            f"{key.replace('_', ' '):<{width}}  {_value(value)}", WIDTH, subsequent_indent=" " * (width + 2)
        )
    if content["parameters"]:
        lines += ["", "parameters (--set NAME=VALUE)" if "set" in content["parameters"][0] else "parameters"]
        lines += [f"  {_parameter(row)}" for row in content["parameters"]]
    if content.get("search"):
        lines += ["", "search space (--set NAME=VALUE)"]
        lines += [f"  {name} = {_value(values)}" for name, values in content["search"].items()]
    return "\n".join(lines)


def _card(card: Mapping[str, Any] | None) -> dict[str, Any]:
    if card is None:
        return {}
    positive = {target: f"{target} (1: {card['positive'][target]})" for target in card["positive"]}
    attributes = [f"{name} ({', '.join(groups)})" for name, groups in card["attributes"].items()]
    return {
        **{key: value for key, value in card.items() if key not in ("positive", "defaults", "attributes", "targets")},
        "targets": [positive.get(target, target) for target in card["targets"]],
        "attributes": attributes,
        **{f"default_{key}": value for key, value in card["defaults"].items()},
    }


def _parameter(row: Mapping[str, Any]) -> str:
    alias = f" (alias {', '.join(row['aliases'])})" if row.get("aliases") else ""
    bounds = f", {row['range']}" if row.get("range") else ""
    about = f"  # {row['about']}" if row.get("about") else ""
    return f"{row.get('set', row['name'])}{alias} = {_value(row['default'])}  [{row['type']}{bounds}]{about}"


def _value(value: Any) -> str:
    """A value as a person reads it: yes and no, lists and mappings on a line, a dash for what is not there."""
    if value is None or value == "" or (isinstance(value, list | tuple | dict) and not value):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_value, value))
    return str(value)
