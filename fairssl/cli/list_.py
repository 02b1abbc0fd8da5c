"""`fairssl list`: every plugin by kind. Imports neither torch nor any plugin but the methods, which are data."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import typer

# The columns of the SoFCLR paper's first table -> what they are called in JSON.
FACTS = {
    "adversarial": "adversarial",
    "contrastive": "contrastive",
    "label": "target",
    "sensitive attribute": "group",
    "generator": "generator",
    "theory": "theory",
}
NOT_STATED = "-"


def list_(
    kind: str | None = typer.Argument(
        None, help="methods, objectives, heads, encoders, datasets or metrics, in singular or plural. Default: all."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a list of objects."),
) -> None:
    """What there is: methods with the columns of the paper's first table, and every other kind of plugin."""
    from fairssl import kinds, registry

    wanted = [kinds.by_kind(kind).kind] if kind else list(kinds.registries)
    rows = {name: list(_rows(name)) for name in wanted}
    for package in registry.packages():
        if package.fault:
            print(f"fairssl: warning: plugin package {package.name} is broken: {package.fault}", file=sys.stderr)
    if as_json:
        typer.echo(json.dumps([row for name in wanted for row in rows[name]], indent=2, ensure_ascii=False))
        return
    for place, name in enumerate(wanted):
        if len(wanted) > 1:
            typer.echo(f"{chr(10) if place else ''}{name}")
        typer.echo(_methods(rows[name]) if name == "methods" else _others(rows[name]))


def _rows(kind: str) -> Iterator[dict[str, Any]]:
    """One object per plugin; a broken one has its cause under "broken", the others null there."""
    from fairssl import kinds, registry

    one = kinds.by_kind(kind)
    for short, places in sorted(one.offers().items()):
        for place in places:
            name = short if len(places) == 1 else f"{place.package}:{short}"
            row: dict[str, Any] = {
                "name": name,
                "kind": one.one,
                "summary": registry.summary(place.path),
                "package": place.package,
                "module": place.module,
                "broken": registry.fault(place.path),
            }
            yield {**row, **_method_facts(name, row)} if kind == "methods" else row
    if kind == "methods":
        yield from _bare_objectives()


def _method_facts(name: str, row: dict[str, Any]) -> dict[str, Any]:
    from fairssl import kinds, registry

    try:
        method = kinds.methods.get(name)
    except registry.BrokenPlugin as error:
        return {"broken": row["broken"] or str(error)}
    return {
        "summary": method.summary,
        "objective": method.objective,
        "heads": {head: dict(params) for head, params in method.heads.items()},
        "aliases": list(method.aliases),
        "paper": method.paper,
        **{key: getattr(method, key) for key in FACTS.values()},
    }


def _bare_objectives() -> Iterator[dict[str, Any]]:
    """Every objective is a method of its own name; where no file says more, its facts are not stated."""
    from fairssl import kinds

    named = kinds.methods.offers()
    for row in _rows("objectives"):
        if row["name"] not in named:
            rest = {"objective": row["name"], "heads": {}, "aliases": [], "paper": None}
            yield {**row, "kind": "method", **rest, **dict.fromkeys(FACTS.values())}


def _methods(rows: Sequence[dict[str, Any]]) -> str:
    table = [["name", *FACTS, "made of", "summary"]]
    for row in sorted(rows, key=lambda r: r["name"]):
        if row["broken"]:
            table.append([row["name"], *[NOT_STATED] * len(FACTS), NOT_STATED, f"broken: {row['broken']}"])
            continue
        made_of = " + ".join([row["objective"], *row["heads"]])
        table.append([row["name"], *(_word(row[key]) for key in FACTS.values()), made_of, row["summary"]])
    return _aligned(table)


def _others(rows: Sequence[dict[str, Any]]) -> str:
    own = "fairssl"
    return _aligned(
        [
            [
                row["name"],
                f"broken: {row['broken']}" if row["broken"] else row["summary"],
                "" if row["package"] == own else f"({row['package']})",
            ]
            for row in rows
        ]
    )


def _word(value: Any) -> str:
    return NOT_STATED if value is None else {True: "yes", False: "no"}.get(value, str(value))


def _aligned(table: Sequence[Sequence[str]]) -> str:
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = ["  ".join(cell.ljust(n) for cell, n in zip(row, widths, strict=True)).rstrip() for row in table]
    return "\n".join(lines)
