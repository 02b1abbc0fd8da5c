"""`fairssl check`: the contract checks of one plugin."""

from __future__ import annotations

import json
from dataclasses import asdict

import typer


def check(
    kind: str = typer.Argument(..., help="method, objective, head, encoder, dataset or metric; plural too."),
    name: str = typer.Argument(..., help="As `fairssl list` prints it; for a method also a composition."),
    only: str | None = typer.Option(None, "--only", help="The name of one check, to run that alone."),
    as_json: bool = typer.Option(False, "--json", help="Print a list of objects."),
) -> None:
    """Check that a plugin keeps its contract, ours or yours. Exit code 1 if a check fails."""
    from fairssl import kinds

    kinds.by_kind(kind)  # a wrong kind is said before torch is loaded
    from fairssl import testing

    found = testing.check(kind, name, only)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
    else:
        for one in found:
            typer.echo(f"{one.state}  {one.name}{f': {one.reason}' if one.reason else ''}")
        counts = ", ".join(f"{sum(one.state == state for one in found)} {state}" for state in ("pass", "fail", "skip"))
        typer.echo(f"{kinds.by_kind(kind).one} {name}: {counts}")
    if any(one.state == "fail" for one in found):
        raise typer.Exit(1)
