"""`fairssl plot`: figures from stored runs; nothing is trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairssl.cli._paths import parse_path

if TYPE_CHECKING:
    from fairssl.board.table import Table

app = typer.Typer(help="Figures from stored runs, as PNG and PDF: tsne, pareto, curves, scores.", no_args_is_help=True)

RUNS = typer.Argument(
    Path("runs"), metavar="[RUNS_DIR]", parser=parse_path, help="Folder that `fairssl bench` wrote to."
)
RUNS_OR_BOARD = typer.Argument(
    Path("runs"), metavar="[RUNS_DIR]", parser=parse_path, help="Folder that `fairssl bench` wrote to, or a board."
)
OUT = typer.Option(None, "--out", parser=parse_path, help="Folder for the figures; left out: RUNS_DIR/figures.")
DATASET = typer.Option(None, "--dataset", help="Only of this dataset.")
TARGET = typer.Option(None, "--target", help="Only of this target.")
ATTRIBUTE = typer.Option(None, "--attr", help="Only of this sensitive attribute.")
METHOD = typer.Option([], "--method", help="Only these rows. Comma-separated or repeated.")
SEED = typer.Option(None, "--seed", help="Which seed is shown; left out: the first that ended well.")


@app.command()
def pareto(
    runs: Path = RUNS_OR_BOARD,
    metric: str = typer.Option("ED", "--metric", help="What accuracy is set against, as ED, DP or Leak."),
    out: Path | None = OUT,
    dataset: str | None = DATASET,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    method: list[str] = METHOD,
) -> None:
    """Accuracy against a gap, with intervals; rows that differ in a head's weight (alpha) are joined.

    Example:

        fairssl plot pareto runs --metric DP
    """
    from fairssl.figures.pareto import pareto as draw

    _print(draw(_tables(runs, dataset, target, attr, method), _folder(runs, out), metric))


@app.command()
def curves(
    runs: Path = RUNS,
    out: Path | None = OUT,
    dataset: str | None = DATASET,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    method: list[str] = METHOD,
) -> None:
    """Losses and u over the epochs; accuracy and leakage on validation where `bench --eval-every` stored them.

    Example:

        fairssl plot curves runs
    """
    from fairssl.figures.curves import curves as draw
    from fairssl.store.runs import RunStore

    _need_runs(runs, "history of the trainings")
    _print(
        draw(
            _tables(runs, dataset, target, attr, method),
            RunStore(runs),
            _folder(runs, out),
        )
    )


@app.command()
def scores(
    runs: Path = RUNS_OR_BOARD,
    seed: int | None = SEED,
    out: Path | None = OUT,
    dataset: str | None = DATASET,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    method: list[str] = METHOD,
) -> None:
    """Score distributions per group and class, in the 100 buckets that WD and KL see.

    Example:

        fairssl plot scores runs --method simclr,sofclr
    """
    from fairssl.board.load import predictions_of
    from fairssl.figures.scores import scores as draw

    tables = _tables(runs, dataset, target, attr, method)
    _print(draw(tables, predictions_of(runs), runs, _folder(runs, out), seed))


@app.command()
def tsne(
    runs: Path = RUNS,
    n: int = typer.Option(1000, "--images", min=2, help="Test images, the same for every method."),
    seed: int | None = SEED,
    data_dir: Path | None = typer.Option(
        None,
        "--data-dir",
        parser=parse_path,
        help="Where the dataset lies. Default: FAIRSSL_DATA, else a per-user folder.",
    ),
    out: Path | None = OUT,
    dataset: str | None = DATASET,
    target: str | None = TARGET,
    attr: str | None = ATTRIBUTE,
    method: list[str] = METHOD,
) -> None:
    """Test images by t-SNE of what the probe sees: colour is the group, shape the target, a panel per method.

    Example:

        fairssl plot tsne runs --method sofclr
    """
    from fairssl.figures.tsne import tsne as draw
    from fairssl.store.runs import RunStore

    _need_runs(runs, "encoders")
    tables = _tables(runs, dataset, target, attr, method)
    _print(
        draw(
            tables,
            RunStore(runs),
            _folder(runs, out),
            data_dir,
            n,
            seed,
        )
    )


def _tables(runs: Path, dataset: str | None, target: str | None, attr: str | None, method: list[str]) -> list[Table]:
    from fairssl.board.load import tables_of
    from fairssl.figures.choose import Choice

    names = [name.strip() for value in method for name in value.split(",") if name.strip()]
    return Choice(dataset, target, attr, names).tables(tables_of(runs))


def _need_runs(folder: Path, what: str) -> None:
    """Refuse a board where a figure needs more of the runs than a board holds."""
    from fairssl.board.load import is_runs_folder
    from fairssl.types import UserError

    if (folder / "records.jsonl").is_file() and not is_runs_folder(folder):
        raise UserError(f"{folder} is a board, which holds no {what}; name the folder that `fairssl bench` wrote to")


def _folder(runs: Path, out: Path | None) -> Path:
    return out or runs / "figures"


def _print(paths: list[Path]) -> None:
    for path in paths:
        typer.echo(path)
