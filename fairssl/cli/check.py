"""`fairssl check`: the contract checks of one plugin."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import typer

from fairssl.cli._paths import parse_path
from fairssl.cli._table import Cell, Column, echo_prose, echo_table
from fairssl.types import UserError

COLOURS = {"pass": "green", "fail": "red", "skip": "yellow"}


def check(
    kind: str = typer.Argument(..., help="method, objective, head, encoder, dataset or metric; plural too."),
    name: str = typer.Argument(..., help="As `fairssl list` prints it; for a method also a composition."),
    only: str | None = typer.Option(None, "--only", help="The name of one check, to run that alone."),
    data_dir: Path | None = typer.Option(
        None,
        "--data-dir",
        parser=parse_path,
        help="Where a dataset's files lie; else FAIRSSL_DATA, else the per-user folder.",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print a list of objects."),
) -> None:
    """Check that a plugin keeps its contract, ours or yours. Exit code 1 if a check fails.

    Parts are checked by real steps of the training loop on small generated images: seconds on a CPU.

    Examples:

        fairssl check objective vicreg
        fairssl check dataset utkface --data-dir ~/data/UTKFace
        fairssl check method byol+adversary:0.3
    """
    from fairssl import kinds

    one_kind = kinds.by_kind(kind).one  # a wrong kind is said before torch is loaded
    if data_dir is not None and one_kind != "dataset":
        raise UserError(f"--data-dir is for a dataset; a check of a {one_kind} reads no files of yours: leave it out")
    from fairssl import testing

    found = testing.check(kind, name, only, data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))
    else:
        rows: list[list[str | Cell]] = [
            [Cell(one.state, COLOURS[one.state]), ": ".join(filter(None, (one.name, one.reason)))] for one in found
        ]
        echo_table(("", Column(least=30)), rows)
        counts = ", ".join(f"{sum(one.state == state for one in found)} {state}" for state in COLOURS)
        echo_prose(f"{one_kind} {name}: {counts}")
    if any(one.state == "fail" for one in found):
        raise typer.Exit(1)
