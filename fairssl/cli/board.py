"""fairssl board: tables from the records of a runs folder."""

from __future__ import annotations

from pathlib import Path

import typer

from fairssl.cli._paths import parse_path

app = typer.Typer(help="Make tables from records.", no_args_is_help=True)


@app.command()
def build(
    runs: Path = typer.Argument(
        Path("runs"), metavar="[RUNS_DIR]", parser=parse_path, help="Folder that `fairssl bench` wrote to."
    ),
    out: Path | None = typer.Option(None, parser=parse_path, help="Folder for the tables; left out: RUNS_DIR."),
) -> None:
    """Write table.md, table.csv, table.tex and records.jsonl of all runs in a folder."""
    from fairssl.board.build import build_folder

    built = build_folder(runs, out or runs)
    typer.echo(f"{built.n_records} records, {len(built.tables)} tables, {sum(len(t.rows) for t in built.tables)} rows")
    for path in built.files:
        typer.echo(path)
