"""`fairssl status`: how far the grids of a runs folder are."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from fairssl.cli._paths import parse_path
from fairssl.plan.estimate import format_duration
from fairssl.types import counted


def status(
    runs: Path = typer.Argument(
        Path("runs"), parser=parse_path, help="The folder that `fairssl bench --out` writes to."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print it as JSON."),
) -> None:
    """Runs by state, speed, time left and the last error, of everything that was started in a runs folder.

    It reads and touches nothing; nothing slows down for it.

    Example:

        fairssl status runs
    """
    from fairssl.plan.status import status as look

    found = look(runs)
    if as_json:
        content = {
            **found.runs,
            "views_per_second": found.views_per_second,
            "seconds_left": found.seconds_left,
            "unknown": found.unknown,
            "at_work": found.running,
            "last_error": found.last_error,
        }
        typer.echo(json.dumps(content, indent=2))
        return
    typer.echo(", ".join(f"{n} {state}" for state, n in found.runs.items()))
    for live in found.running:
        more = f" and {live['runs'] - 1} more" if live["runs"] > 1 else ""
        speed = f", {live['views_per_second']:,.0f} views/s" if live["views_per_second"] else ""
        where = f"{live['host']}, process {live['pid']}"
        typer.echo(f"  {live['name']}{more}: {live['what']} {live['done']} of {live['total']}{speed} ({where})")
    if found.views_per_second and len(found.running) > 1:
        typer.echo(f"{found.views_per_second:,.0f} views/s in all")
    if found.runs["planned"] or found.runs["running"]:
        without = f", without {counted(found.unknown, 'pretraining')} of unknown time" if found.unknown else ""
        typer.echo(f"Time left: {format_duration(found.seconds_left)}{without}")
    if found.runs["planned"] and not found.running:
        typer.echo("Nothing is at work; the bench command of this folder goes on with it")
    last = found.last_error
    if last:
        typer.echo(f"Last error: {last['name']} {last['state']}: {last['reason']}")
        typer.echo(f"  in full in {last['record']}")
        typer.echo("Its bench command with --retry-failed runs what failed or diverged again")
