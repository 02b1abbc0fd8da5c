"""`fairssl board`: tables from records, checked, exchanged, compared."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import typer

from fairssl.cli._paths import parse_path
from fairssl.types import counted

app = typer.Typer(
    help="Tables and pages from records: build, verify, compare, export, add, index.", no_args_is_help=True
)

RUNS = typer.Argument(
    Path("runs"), metavar="[RUNS_DIR]", parser=parse_path, help="Folder that `fairssl bench` wrote to."
)
GRID = typer.Option(None, "--grid", help="Only the runs of this grid: a TOML file, or a grid of fairssl's.")
JSON = typer.Option(False, "--json", help="Print JSON.")


@app.command()
def build(
    runs: Path = RUNS,
    out: Path | None = typer.Option(None, parser=parse_path, help="Folder for the board; left out: RUNS_DIR."),
    grid: str | None = GRID,
    trials: bool = typer.Option(False, "--trials", help="Also the runs that `fairssl tune` tried and did not choose."),
    all_columns: bool = typer.Option(
        False, "--all-columns", help="On a narrow terminal: all columns, below each other."
    ),
) -> None:
    """Write table.md, table.csv, table.tex, index.html, records.jsonl, predictions/ and manifest.json.

    Every metric is computed again from the predictions. The same records give the same bytes.

    Example:

        fairssl board build runs --out board
    """
    import sys

    from fairssl.board.build import build_folder
    from fairssl.board.terminal import show
    from fairssl.board.wanted import not_run

    built = build_folder(runs, out or runs, grid, trials)
    if sys.stdout.isatty():
        show(built.tables, whole=all_columns)
    n_rows = sum(len(t.rows) for t in built.tables)
    typer.echo(f"{counted(built.n_records, 'record')}, {counted(len(built.tables), 'table')}, {counted(n_rows, 'row')}")
    if built.left_out:
        typer.echo(built.left_out)
    for line in not_run(built.missing):
        typer.echo(line)
    for path in built.files:
        typer.echo(path)


@app.command()
def verify(
    board: Path = typer.Argument(metavar="BOARD", parser=parse_path, help="Folder that `fairssl board build` wrote."),
    resample: bool = typer.Option(
        False, "--resample", help="Also noise floors and bootstrap intervals; a second per run."
    ),
    as_json: bool = JSON,
) -> None:
    """Compute every cell again from the predictions, every key from the specs, every file from the records.

    Exit code 1 if anything is not what the manifest, the records or the tables say.

    Example:

        fairssl board verify board
    """
    from fairssl.board.verify import verify as check

    found = check(board, resample)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2, ensure_ascii=False))
    else:
        for note in found.notes:
            typer.echo(f"note: {note}")
        for fault in found.faults:
            typer.echo(f"fault: {fault}")
        end = counted(len(found.faults), "fault") if found.faults else "no fault"
        typer.echo(f"{counted(found.n_records, 'record')}, {counted(found.n_cells, 'cell')} computed again: {end}")
    if found.faults:
        raise typer.Exit(1)


@app.command()
def compare(
    board: Path = typer.Argument(
        metavar="BOARD", parser=parse_path, help="A board, or a folder that `fairssl bench` wrote to."
    ),
    paper: bool = typer.Option(False, "--paper", help="With the tables of the SoFCLR paper."),
    row: list[str] = typer.Option(
        [], "--row", help="Twice: two rows with each other, by a paired t test over their seeds.", metavar="NAME"
    ),
    samples: int = typer.Option(
        0,
        "--samples",
        min=0,
        help="With --row: also a permutation test over the test samples, of N exchanges.",
        metavar="N",
    ),
    as_json: bool = JSON,
) -> None:
    """Set each mean and spread beside the paper's: agree, better, worse, not comparable. Or two rows beside each other.

    Examples:

        fairssl board compare board --paper
        fairssl board compare board --row simclr --row sofclr
    """
    from fairssl.board.against_paper import compare_with_paper, to_markdown_comparison
    from fairssl.board.load import tables_of
    from fairssl.types import UserError

    if paper == bool(row):
        raise UserError("name what to compare: --paper, or two rows, as --row simclr --row sofclr")
    if samples and not row:
        raise UserError(f"--samples {samples} belongs to --row; leave it out")
    if row:
        _compare_rows(board, row, samples, as_json)
        return
    found = compare_with_paper(tables_of(board))
    if as_json:
        _echo_json(found)
    elif found:
        typer.echo(to_markdown_comparison(found), nl=False)
    else:
        typer.echo(
            f"no row of {board} is in the paper's tables: CelebA with male or young, UTKFace with age or ethnicity"
        )


@app.command()
def export(
    runs: Path = RUNS,
    out: Path = typer.Option(Path("bundle.zip"), parser=parse_path, help="The file to write."),
    grid: str | None = GRID,
) -> None:
    """Write records, predictions and a manifest as one zip file, for `fairssl board add` elsewhere.

    Example:

        fairssl board export runs --out bundle.zip
    """
    from fairssl.board.bundle import export as write

    written = write(runs, out, grid)
    typer.echo(counted(written.n_records, "record"))
    if written.left_out:
        typer.echo(written.left_out)
    typer.echo(out)


@app.command()
def add(
    bundle: Path = typer.Argument(
        metavar="BUNDLE", parser=parse_path, help="A zip file of `fairssl board export`, or such a folder."
    ),
    runs: Path = typer.Option(Path("runs"), "--runs", parser=parse_path, help="The runs folder that takes them in."),
) -> None:
    """Take a stranger's records and predictions into a runs folder, everything computed again; or refuse all and say why.

    Example:

        fairssl board add bundle.zip --runs runs
    """
    from fairssl.board.bundle import add as take

    added = take(bundle, runs)
    typer.echo(f"{counted(added.n_new, 'run')} added to {runs}, {added.n_known} were there already")
    for key in added.kept:
        typer.echo(f"not taken: {key} failed there and ended well in {runs}")


def _echo_json(found: Iterable[Any]) -> None:
    """A list of dataclasses as JSON."""
    typer.echo(json.dumps([asdict(one) for one in found], indent=2, ensure_ascii=False))


def _compare_rows(board: Path, names: list[str], samples: int, as_json: bool) -> None:
    from fairssl.board.between_rows import compare_rows, to_markdown_tests
    from fairssl.board.load import predictions_of, tables_of
    from fairssl.progress import reporter

    tables = tables_of(board)
    with reporter() as log:
        found = compare_rows(tables, names, predictions_of(board), samples, log.stage)
    if as_json:
        _echo_json(found)
    else:
        typer.echo(to_markdown_tests(found, tables), nl=False)


@app.command()
def index(
    folder: Path = typer.Argument(
        Path("leaderboards"), metavar="[FOLDER]", parser=parse_path, help="Folder whose subfolders are boards."
    ),
    readme: Path | None = typer.Option(
        None,
        "--readme",
        parser=parse_path,
        help="Also put tables between the markers <!-- board NAME --> and <!-- end of board --> of this file.",
    ),
) -> None:
    """Write FOLDER/README.md, the index of the boards in it.

    Example:

        fairssl board index boards
    """
    from fairssl.board.index import write_index

    for path in (changed := write_index(folder, readme)):
        typer.echo(path)
    if not changed:
        typer.echo("nothing changed")
