"""`fairssl list`: every plugin by kind, and the grids. Imports neither torch nor any plugin but the methods, which are data."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import typer

from fairssl.cli._table import Cell, Column, echo_line, echo_table, screen

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
GRIDS = "grids"  # a kind that is no plugin


def list_(
    kind: str | None = typer.Argument(
        None,
        help="methods, objectives, heads, encoders, datasets, metrics or grids, in singular or plural. Default: all.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a list of objects."),
) -> None:
    """What there is: methods with the columns of the paper's first table, every other kind of plugin, and grids.

    Files are read and not run: a plugin of which only an import tells that it fails is found by `fairssl doctor`.

    Examples:

        fairssl list
        fairssl list methods --json
    """
    from fairssl import kinds, registry

    wanted = [*kinds.registries, GRIDS]
    if kind:
        wanted = [GRIDS if kind in (GRIDS, "grid") else kinds.by_kind(kind, GRIDS).kind]
    rows = {name: list(_rows(name)) for name in wanted}
    for package in registry.packages():
        if package.fault:
            echo_line(f"fairssl: warning: plugin package {package.name} is broken: {package.fault}")
    unseen = registry.unseen_plugins()
    if unseen:
        echo_line(f"fairssl: warning: {unseen}")
    if as_json:
        typer.echo(json.dumps([row for name in wanted for row in rows[name]], indent=2, ensure_ascii=False))
        return
    there = screen()
    for place, name in enumerate(wanted):
        if len(wanted) > 1:
            typer.echo(("\n" if place else "") + there.style(name, bold=True))
        (_print_methods if name == "methods" else _print_others)(rows[name])


def _rows(kind: str) -> Iterator[dict[str, Any]]:
    """One object per plugin or grid; a broken one has its cause under "broken", the others null there."""
    from fairssl import kinds, registry

    if kind == GRIDS:
        yield from _grids()
        return
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
                "broken": registry.fault(place.path, kind, place.module),
            }
            yield {**row, **_method_facts(name, row)} if kind == "methods" else row
    if kind == "methods":
        yield from _bare_objectives()


def _grids() -> Iterator[dict[str, Any]]:
    from fairssl.cli._describe import grid_comment
    from fairssl.plan.request import grid_names

    for name, path in sorted(grid_names().items()):
        fairssl = {"package": "fairssl", "module": None, "broken": None}
        yield {"name": name, "kind": "grid", "summary": grid_comment(path)[0], **fairssl}


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


# Narrow terminals lose what the parts say anyway, then the paper's facts from the right.
_METHOD_COLUMNS = (
    Column("name", fg="cyan"),
    Column("adversarial", drop=5),
    Column("contrastive", drop=4),
    Column("label", drop=1),
    Column("sensitive attribute", drop=1),
    Column("generator", drop=6),
    Column("theory", drop=7),
    Column("made of", drop=3),
    Column("summary", least=28),
)


def _print_methods(rows: Sequence[dict[str, Any]]) -> None:
    table: list[list[str | Cell]] = []
    for row in sorted(rows, key=lambda r: r["name"]):
        if row["broken"]:
            nothing: list[str | Cell] = [NOT_STATED] * (len(FACTS) + 1)
            table.append([row["name"], *nothing, _broken(row)])
            continue
        made_of = " + ".join([row["objective"], *row["heads"]])
        table.append([row["name"], *(_word(row[key]) for key in FACTS.values()), made_of, row["summary"]])
    echo_table(_METHOD_COLUMNS, table)


def _print_others(rows: Sequence[dict[str, Any]]) -> None:
    """Name and summary, and whose it is where it is not fairssl's own."""
    columns = (Column(fg="cyan"), Column(least=30), Column(fg="magenta"))
    echo_table(
        columns,
        (
            [
                row["name"],
                _broken(row) if row["broken"] else row["summary"],
                "" if row["package"] == "fairssl" else f"({row['package']})",
            ]
            for row in rows
        ),
    )


def _broken(row: dict[str, Any]) -> Cell:
    return Cell(f"broken: {row['broken']}", "red")


def _word(value: Any) -> str:
    return NOT_STATED if value is None else {True: "yes", False: "no"}.get(value, str(value))
