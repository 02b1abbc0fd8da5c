"""`fairssl tune`: choose each method's settings on validation data, then run the chosen ones."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairssl.cli._paths import parse_path
from fairssl.progress import reporter

if TYPE_CHECKING:
    from fairssl.selection import Tuned

MANY = "Comma-separated or repeated."


def tune(
    method: list[str] = typer.Option([], "--method", help=f"The methods to tune. {MANY}"),
    dataset: list[str] = typer.Option([], "--dataset", help=f"As for bench. {MANY}"),
    attr: list[str] = typer.Option([], "--attr", help=f"Sensitive attribute. {MANY}"),
    target: list[str] = typer.Option([], "--target", help=f"What is predicted. {MANY}"),
    trials: int = typer.Option(12, "--trials", help="Settings to try, the same number for every method."),
    rule: str = typer.Option(
        "paper",
        "--rule",
        help="paper (at most 1 point less accurate than the reference, then least ED), accuracy, worst_group, or "
        "constrained:K (ED at most K points, then most accurate).",
    ),
    reference: str | None = typer.Option(
        None, "--reference", help="The baseline of rule paper. Default: ce if it is among the methods, else simclr."
    ),
    tune_seeds: str = typer.Option("1", "--tune-seeds", help="Seeds of each trial: how many, or which, as 10,11."),
    seeds: str | None = typer.Option(None, "--seeds", help="Seeds of the chosen settings. Default: the card's."),
    encoder: str | None = typer.Option(None, "--encoder", help="As for bench."),
    preset: str | None = typer.Option(None, "--preset", help="As for bench."),
    epochs: int | None = typer.Option(None, "--epochs", help="As for bench."),
    image_size: int | None = typer.Option(None, "--image-size", help="As for bench."),
    batch_size: int | None = typer.Option(None, "--batch-size", help="As for bench."),
    annotated: float | None = typer.Option(None, "--annotated", help="As for bench."),
    set_: list[str] = typer.Option([], "--set", help="A setting for all trials, none that is searched."),
    data_dir: Path | None = typer.Option(None, "--data-dir", parser=parse_path, help="As for bench."),
    out: Path = typer.Option(
        Path("runs"), "--out", parser=parse_path, help="The folder of the runs; trials are runs too."
    ),
    device: str = typer.Option("auto", "--device", help="As for bench."),
    workers: int | None = typer.Option(None, "--workers", help="As for bench."),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="As for bench."),
    as_json: bool = typer.Option(False, "--json", help="Print the choices and the rows as JSON."),
) -> None:
    """Search each method's settings on validation data, choose by a rule, and print the table of the chosen ones.

    No test value is looked at or printed before the choice is made. Boards have the chosen settings alone, see `fairssl board
    build --trials`. The same call again trains nothing.

    Example:

        fairssl tune --method simclr,sofclr --dataset synthfaces --trials 6
    """
    from fairssl.cli.bench import names_of, print_result
    from fairssl.execute.options import Options
    from fairssl.execute.signals import GracefulStop
    from fairssl.plan.request import Request, parse_seeds
    from fairssl.selection import tune as search
    from fairssl.store.runs import RunStore

    request = Request(
        methods=names_of("--method", method),
        datasets=names_of("--dataset", dataset),
        attributes=names_of("--attr", attr),
        targets=names_of("--target", target),
        seeds=None if seeds is None else parse_seeds(seeds),
        encoder=encoder,
        preset=preset,
        epochs=epochs,
        image_size=image_size,
        batch_size=batch_size,
        annotated=annotated,
        assignments=set_ or None,
        data_dir=data_dir,
    )
    options, store, stop = (
        Options(device=device, workers=workers, retry_failed=retry_failed),
        RunStore(out),
        GracefulStop(),
    )
    with reporter() as log:
        try:
            found = search(
                request,
                options,
                store,
                log,
                stop,
                rule=rule,
                n_trials=trials,
                tune_seeds=parse_seeds(tune_seeds, "--tune-seeds"),
                reference=reference,
            )
        except (RuntimeError, KeyboardInterrupt) as error:
            if not (stop() or isinstance(error, KeyboardInterrupt)):
                raise
            print(f"fairssl: {str(error) or 'stopped'}; the same command goes on from here", file=sys.stderr)
            raise typer.Exit(stop.exit_code) from error
    if as_json:
        typer.echo(json.dumps(_content(found), indent=2, ensure_ascii=False))
    else:
        print_result(found.result, False)


def _content(found: Tuned) -> dict[str, Any]:
    from fairssl.board.json import to_json_rows

    names = ("method", "dataset", "target", "attr")
    choices = [
        {**dict(zip(names, where, strict=True)), **choice.to_json(), "validation": dict(choice.trial.values)}
        for where, choice in found.choices.items()
    ]
    return {"choices": choices, "rows": to_json_rows(*found.result.table)}
