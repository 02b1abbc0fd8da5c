"""`fairssl bench`: train a grid, judge it, print the table."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairssl.cli import _progress
from fairssl.types import UserError

if TYPE_CHECKING:
    from fairssl.pipeline import Plan, Request
    from fairssl.store import RunStore

MANY = "Comma-separated or repeated."


def bench(
    method: list[str] = typer.Option([], "--method", help=f"simclr, sofclr, byol+adversary:0.3, ... {MANY}"),
    dataset: list[str] = typer.Option([], "--dataset", help=f"synthfaces, colored_digits, utkface, celeba. {MANY}"),
    attr: list[str] = typer.Option([], "--attr", help=f"Sensitive attribute. {MANY}"),
    target: list[str] = typer.Option([], "--target", help=f"What is predicted. {MANY}"),
    seeds: int | None = typer.Option(None, "--seeds", help="How many: seeds 0 to N - 1. Default: the card's."),
    encoder: str | None = typer.Option(None, "--encoder", help="resnet18, small_cnn, or any timm model."),
    preset: str | None = typer.Option(None, "--preset", help="smoke (minutes on a CPU), quick (a tenth), paper."),
    epochs: int | None = typer.Option(None, "--epochs"),
    image_size: int | None = typer.Option(None, "--image-size", help="Pixels, at most the stored size."),
    batch_size: int | None = typer.Option(None, "--batch-size"),
    annotated: float | None = typer.Option(None, "--annotated", help="Share of training images whose group is known."),
    set_: list[str] = typer.Option([], "--set", help="part.parameter=value, as adversary.weight=0.5. Repeat it."),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Default: FAIRSSL_DATA, else a per-user folder."),
    out: Path = typer.Option(Path("runs"), "--out", help="Where runs and table.md go."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would run, and run nothing."),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Also run the failed and diverged cells again."),
    as_json: bool = typer.Option(False, "--json", help="Print the rows as JSON."),
) -> None:
    """Train a grid of methods, datasets, targets and attributes over seeds, and print accuracy and fairness.

    Without arguments: simclr, sogclr and sofclr on the embedded synthfaces. The same call again trains nothing.
    """
    from fairssl.pipeline import Request, resolve
    from fairssl.store import RunStore

    request = Request(
        methods=_split(method) or Request.methods,
        datasets=_split(dataset) or Request.datasets,
        attributes=_split(attr),
        targets=_split(target),
        seeds=seeds,
        encoder=encoder,
        preset=preset,
        epochs=epochs,
        image_size=image_size,
        batch_size=batch_size,
        annotated=annotated,
        assignments=set_,
        data_dir=data_dir,
    )
    with _progress.bars() as bars:
        plan = resolve(request, allow_absent=dry_run, progress=bars.stage)
    if dry_run:
        _print_plan(plan, RunStore(out), as_json)
        return
    _run(request, plan, RunStore(out), device, retry_failed)
    failed = _print_table(plan, RunStore(out), out, as_json)
    if failed:
        raise typer.Exit(1)


def _split(values: list[str]) -> list[str]:
    return [name.strip() for value in values for name in value.split(",") if name.strip()]


def _run(request: Request, plan: Plan, store: RunStore, device: str, retry_failed: bool) -> None:
    from fairssl.launch import Stop, run_local, todo
    from fairssl.pipeline import pick_device

    for note in plan.notes:
        print(f"fairssl: {note}", file=sys.stderr)
    store.prepare()
    if not todo(plan, store, retry_failed):
        return
    from fairssl.train import Stopped

    stop = Stop()
    chosen = pick_device(device)
    with stop.listening(), _progress.bars() as bars:
        try:
            run_local(plan, store, chosen, bars, stop, retry_failed)
        except (Stopped, KeyboardInterrupt) as error:
            print(f"fairssl: {error or 'stopped'}; the same command goes on from here", file=sys.stderr)
            raise typer.Exit(stop.exit_code) from error


def _print_table(plan: Plan, store: RunStore, out: Path, as_json: bool) -> int:
    """Print the plan's cells as tables, write table.md, and say how many cells did not end well."""
    from fairssl.board import Board, show, to_json_rows, to_markdown
    from fairssl.store import whole_file

    board, failed = Board(), 0
    for cell in plan.cells:
        record = store.read_record(cell.spec.key)
        if record is None:
            raise UserError(f"the result {cell.spec.key} is not in {store.root}; run the same command again")
        failed += record.state != "ok"
        board.add(record, cell.label)
    tables = board.tables()
    with whole_file(out / "table.md") as file:
        file.write(to_markdown(*tables).encode())
    if as_json:
        typer.echo(json.dumps(to_json_rows(*tables), indent=2, ensure_ascii=False))
    else:
        show(tables)
    return failed


def _print_plan(plan: Plan, store: RunStore, as_json: bool) -> None:
    from fairssl.launch import todo

    missing = todo(plan, store)
    done = sum(store.has_result(cell.spec.key) for cell in plan.cells)
    content: dict[str, Any] = {
        "cells": len(plan.cells),
        "pretrainings": len(plan.pretrainings()),
        "done": done,
        "to_train": sum(not store.has_pretrain(key) for key in missing),
        "to_run": sum(len(cells) for cells in missing.values()),
        "absent": plan.absent,
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    typer.echo(
        f"{content['cells']} cells, {content['pretrainings']} distinct pretrainings; "
        f"{done} done, {content['to_run']} to run, {content['to_train']} to train"
    )
    for key, cells in plan.pretrainings().items():
        names = sorted({f"{c.label} {c.spec.data.dataset}/{c.spec.data.target}/{c.spec.data.attribute}" for c in cells})
        state = "to do" if key in missing else "done"
        typer.echo(f"  {key}  seed {cells[0].spec.seed}  {state:5}  {'; '.join(names)}")
    for dataset, reason in plan.absent.items():
        typer.echo(f"{dataset} is not on this machine, its keys are provisional: {reason}")
