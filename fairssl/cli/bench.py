"""`fairssl bench`: train a grid, judge it, print the table."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fairssl.cli import _progress
from fairssl.registry import near
from fairssl.types import UserError

if TYPE_CHECKING:
    from fairssl.job import Job, Log, Settings, Stop
    from fairssl.pipeline import Plan, Request, SplitsCache
    from fairssl.store import RunStore
    from fairssl.watch import Estimate, Survey

EXECUTORS = ("local", "ray", "slurm")
MAX_WORKERS = 8  # unasked; each holds a copy of the images
LONG_EPOCHS = 60  # of all pretrainings together

MANY = "Comma-separated or repeated."


def bench(
    method: list[str] = typer.Option([], "--method", help=f"simclr, sofclr, byol+adversary:0.3, ... {MANY}"),
    dataset: list[str] = typer.Option([], "--dataset", help=f"synthfaces, colored_digits, utkface, celeba. {MANY}"),
    attr: list[str] = typer.Option([], "--attr", help=f"Sensitive attribute. {MANY}"),
    target: list[str] = typer.Option([], "--target", help=f"What is predicted. {MANY}"),
    seeds: int | None = typer.Option(None, "--seeds", help="How many: seeds 0 to N - 1. Default: the card's."),
    encoder: str | None = typer.Option(None, "--encoder", help="resnet18, small_cnn, or any timm model."),
    grid: str | None = typer.Option(None, "--grid", help="A TOML file, or a grid of fairssl's. It names the methods."),
    preset: str | None = typer.Option(None, "--preset", help="smoke (minutes on a CPU), quick (a tenth), paper."),
    epochs: int | None = typer.Option(None, "--epochs"),
    image_size: int | None = typer.Option(None, "--image-size", help="Pixels, at most the stored size."),
    batch_size: int | None = typer.Option(None, "--batch-size"),
    annotated: float | None = typer.Option(None, "--annotated", help="Share of training images whose group is known."),
    set_: list[str] = typer.Option([], "--set", help="part.parameter=value, as adversary.weight=0.5. Repeat it."),
    data_dir: Path | None = typer.Option(None, "--data-dir", help="Default: FAIRSSL_DATA, else a per-user folder."),
    out: Path = typer.Option(Path("runs"), "--out", help="Where runs and table.md go."),
    device: str = typer.Option("auto", "--device", help="auto, cpu, cuda, cuda:1."),
    executor: str = typer.Option("local", "--executor", help="local, ray, slurm."),
    workers: int | None = typer.Option(
        None,
        "--workers",
        help="Processes at once. Default: one per GPU; on a CPU one per core if it pays; Ray: cores, Slurm: 8.",
    ),
    pack: str = typer.Option(
        "auto", "--pack", help="Seeds of a cell that share a device: a number, or auto, as many as fill a GPU."
    ),
    devices: int = typer.Option(1, "--devices", help="GPUs, or CPU processes, that train each run together."),
    num_gpus: float | None = typer.Option(None, "--num-gpus", help="GPUs per Ray task, as 0.25. Default: 1 if any."),
    submit: list[str] = typer.Option(
        [], "--submit", help="A parameter of submitit for Slurm, as timeout_min=600 or slurm_partition=gpu. Repeat it."
    ),
    checkpoint_minutes: float = typer.Option(1.0, "--checkpoint-minutes", help="At most that much work is lost."),
    checkpoint_epochs: int = typer.Option(0, "--checkpoint-epochs", help="Also after every so many epochs; 0: not."),
    log: list[str] = typer.Option([], "--log", help=f"tensorboard, wandb, mlflow, besides the CSV. {MANY}"),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print what would run, and run nothing."),
    estimate: bool = typer.Option(False, "--estimate", help="As --dry-run, with the time from a few timed steps."),
    retry_failed: bool = typer.Option(False, "--retry-failed", help="Also run the failed and diverged cells again."),
    as_json: bool = typer.Option(False, "--json", help="Print the rows as JSON."),
) -> None:
    """Train a grid of methods, datasets, targets and attributes over seeds, and print accuracy and fairness.

    Without arguments: simclr, sogclr and sofclr on the embedded synthfaces. The same call again trains nothing.
    """
    from fairssl.launch import check_devices, torchrun
    from fairssl.pipeline import Request, resolve_all
    from fairssl.store import RunStore

    request = Request(
        methods=_split("--method", method) or Request.methods,
        datasets=_split("--dataset", dataset) or Request.datasets,
        attributes=_split("--attr", attr),
        targets=_split("--target", target),
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
    if str(out) == "." and not out.name:
        raise UserError("--out is empty or the current folder itself; name a folder for the runs, as --out runs")
    settings = _checked_settings(device, retry_failed, checkpoint_minutes, checkpoint_epochs, _split("--log", log))
    spread = _Spread(executor, workers, num_gpus, devices, _parameters(submit))
    settings = replace(settings, pack=_pack(pack, spread))
    store = RunStore(out)
    with _under_torchrun(settings, spread, store, alone=dry_run or estimate) as ours:
        if ours is None:
            return
        settings = ours
        with _or_let_go(), _progress.bars() as bars:
            plan = resolve_all(_requests(request, grid), allow_absent=dry_run or estimate, progress=bars.stage)
            place = torchrun()
            check_devices(plan, spread.n_devices if place is None else place[0])
        if dry_run or estimate:
            _print_plan(plan, store, settings, spread, estimate, as_json)
            return
        _run(plan, store, settings, spread)
        failed = _print_table(plan, store, out, as_json)
    if failed:
        raise typer.Exit(1)


def _pack(text: str, spread: _Spread) -> int:
    """`--pack` as a number, 0 for auto."""
    if text == "auto":
        return 0 if spread.executor != "ray" and spread.n_devices == 1 else 1
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--pack {text!r}: a number of seeds, at least 1, or auto")
    if int(text) > 1 and spread.executor == "ray":
        raise UserError(f"--pack {text} is not for --executor ray; tasks share a GPU by --num-gpus {1 / int(text):g}")
    if int(text) > 1 and spread.n_devices > 1:
        raise UserError(
            f"--pack {text} --devices {spread.n_devices}: seeds share a device, or devices share a run; not both"
        )
    return int(text)


@contextmanager
def _under_torchrun(settings: Settings, spread: _Spread, store: RunStore, alone: bool) -> Iterator[Settings | None]:
    """The settings, with this process's device where torchrun started it; None where another does what the command says
    and this one has, in here, done its part. `alone`: the first can do without the others."""
    from fairssl.launch import torchrun

    place = torchrun()
    if place is None:
        yield settings
        return
    if spread.executor != "local" or spread.workers is not None or spread.n_devices > 1:
        raise UserError("torchrun starts the processes: leave --executor, --workers and --devices out")
    if settings.pack > 1 and place[0] > 1:
        raise UserError(
            f"--pack {settings.pack}: torchrun's processes share a run, seeds do not share them; leave it out"
        )
    from fairssl import world
    from fairssl.job import Stop, WorkerBroken
    from fairssl.launch import follow
    from fairssl.train import Stopped

    n, number, local = place
    kind = spread.workers_on(settings.device)[0][0].partition(":")[0]
    settings = replace(settings, device=f"cuda:{local}" if kind == "cuda" else kind)
    if n == 1 or alone:
        yield settings if number == 0 else None
        return
    settings = replace(settings, pack=1)
    with world.joined(settings.device, n, number):
        try:
            if number == 0:
                yield settings
                world.from_first(None)
                return
            stop = Stop()
            with stop.listening():
                told: Settings | None = world.from_first(None)
                if told is not None:
                    follow(replace(told, device=settings.device), store.root, stop)
            yield None
        except WorkerBroken as error:  # the first says why
            raise typer.Exit(1) from error
        except Stopped as error:
            raise typer.Exit(stop.exit_code) from error


@contextmanager
def _or_let_go() -> Iterator[None]:
    """A mistake of the user's in the block also lets those go that torchrun started beside this process."""
    try:
        yield
    except UserError:
        from fairssl.launch import torchrun

        if torchrun() is not None:
            from fairssl import world

            world.from_first(None)
        raise


def _requests(request: Request, grid: str | None) -> list[Request]:
    """The flags' request, or a grid file's with every flag that was given in place of what the file says."""
    from fairssl.pipeline import Request, load_grid

    if grid is None:
        return [request]
    given = {f.name: getattr(request, f.name) for f in fields(request)}
    given = {name: value for name, value in given.items() if value != getattr(Request(), name)}
    return [replace(found, **given) for found in load_grid(grid)]


def _split(flag: str, values: list[str]) -> list[str]:
    names = [name.strip() for value in values for name in value.split(",")]
    if "" in names:
        raise UserError(f"{flag} {','.join(values)!r} names nothing in one place; leave the flag or the comma out")
    return names


@dataclass(frozen=True)
class _Spread:
    """Where a grid is run."""

    executor: str
    workers: int | None
    num_gpus: float | None
    n_devices: int  # of each worker
    submit: dict[str, Any]

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise UserError(f"unknown --executor {self.executor!r}{near(self.executor, EXECUTORS)}")
        if self.workers is not None and self.workers < 1:
            raise UserError(f"--workers {self.workers}: must be at least 1")
        if self.num_gpus is not None and self.executor != "ray":
            raise UserError("--num-gpus is for --executor ray")
        if self.num_gpus is not None and self.num_gpus < 0:
            raise UserError(f"--num-gpus {self.num_gpus}: must be at least 0")
        if self.n_devices < 1:
            raise UserError(f"--devices {self.n_devices}: must be at least 1")
        if self.n_devices > 1 and self.executor != "local":
            raise UserError(
                f"--devices {self.n_devices} is for --executor local; elsewhere start the command by torchrun"
            )
        if self.submit and self.executor != "slurm":
            raise UserError("--submit is for --executor slurm")

    def workers_on(self, device: str) -> list[tuple[str, ...]]:
        """The devices of each local worker; one worker on one device, and no --workers, is this process."""
        import torch

        n = self.n_devices
        n_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
        gpus = [f"cuda:{i}" for i in range(n_gpus)]
        if gpus and len(gpus) < n:
            raise UserError(f"--devices {n}: there are {len(gpus)} GPUs here; at most that many, or --device cpu")
        if n > 1 and ":" in device:
            raise UserError(f"--devices {n} --device {device}: that is one device; leave --device out, or write cuda")
        base = [tuple(gpus[i : i + n]) for i in range(0, len(gpus) - n + 1, n)]
        base = base or [("cpu" if device == "auto" else device,) * n]
        return [base[i % len(base)] for i in range(self.workers or len(base))]

    def settled(self, device: str, plan: Plan) -> _Spread:
        """With a number of workers. On a CPU, processes of one thread each waste none of it on waiting for each other, as
        the threads of one small training do; but a worker takes seconds to start, so a short grid stays in this process.
        The whole plan decides, not what is left of it: the number of threads is in the last bits of a result, and a
        command that goes on must end as if it had never stopped.
        """
        if self.workers is not None or self.executor != "local" or self.workers_on(device)[0][0] != "cpu":
            return self
        firsts = [cells[0].spec for cells in plan.pretrainings().values()]
        n = min(len(firsts), (os.cpu_count() or 1) // self.n_devices, MAX_WORKERS)
        long = sum(spec.train.epochs for spec in firsts) >= LONG_EPOCHS
        return replace(self, workers=n) if long and n > 1 else self

    def at_once(self, device: str) -> int:
        """How many pretrainings go on at once, as far as this process can tell."""
        if self.executor == "local":
            return len(self.workers_on(device))
        return self.workers or (os.cpu_count() or 1 if self.executor == "ray" else 8)


def _checked_settings(
    device: str, retry_failed: bool, checkpoint_minutes: float, checkpoint_epochs: int, loggers: list[str]
) -> Settings:
    from fairssl.job import Settings
    from fairssl.loggers import check_loggers

    if not checkpoint_minutes > 0:
        raise UserError(f"--checkpoint-minutes {checkpoint_minutes}: must be above 0")
    if checkpoint_epochs < 0:
        raise UserError(f"--checkpoint-epochs {checkpoint_epochs}: must be at least 0")
    check_loggers(loggers)
    return Settings({}, device, retry_failed, 60 * checkpoint_minutes, checkpoint_epochs, tuple(dict.fromkeys(loggers)))


def _parameters(assignments: list[str]) -> dict[str, Any]:
    """`["timeout_min=600"]` -> `{"timeout_min": 600}`."""
    found: dict[str, Any] = {}
    for text in assignments:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UserError(f"--submit {text!r} is not of the form parameter=value, as in --submit timeout_min=600")
        found[name.strip()] = int(value) if value.strip().isdecimal() else value.strip()
    return found


def _run(plan: Plan, store: RunStore, settings: Settings, spread: _Spread) -> None:
    from fairssl import world
    from fairssl.job import Stop, WorkerBroken
    from fairssl.launch import check_data, jobs_of
    from fairssl.pipeline import SplitsCache, pick_device
    from fairssl.watch import survey, write_plan

    if spread.executor == "local":
        import torch

        here = {f"cuda:{i}" for i in range(torch.cuda.device_count())}  # trying one would take some of its memory
        for name in sorted({name for names in spread.workers_on(settings.device) for name in names} - here):
            pick_device(name)
    jobs = jobs_of(survey(plan, store, settings.retry_failed))
    if not jobs:
        store.prepare()
        return
    from fairssl.train import Stopped

    settings = replace(settings, roots=plan.roots)
    if world.size() == 1:
        spread = spread.settled(settings.device, plan)
    stop = Stop()
    with stop.listening(), _progress.bars() as bars:
        try:
            with _or_let_go():
                splits = SplitsCache(plan.roots, bars.stage)
                n_devices = max(spread.n_devices, world.size())
                check_data(splits, jobs, n_devices)  # before anything is written
                store.prepare()
                write_plan(plan, store)
            world.from_first(settings)
            _spread_out(jobs, store, settings, spread, bars, stop, splits)
        except (Stopped, KeyboardInterrupt) as error:
            print(f"fairssl: {str(error) or 'stopped'}; the same command goes on from here", file=sys.stderr)
            raise typer.Exit(stop.exit_code) from error
        except WorkerBroken as error:
            without = " without --retry-failed" if settings.retry_failed else ""
            print(f"fairssl: {error}; the same command{without} goes on with the rest", file=sys.stderr)
            raise typer.Exit(1) from error


def _spread_out(
    jobs: list[Job],
    store: RunStore,
    settings: Settings,
    spread: _Spread,
    log: Log,
    stop: Stop,
    splits: SplitsCache,
) -> None:
    from fairssl.launch import run_here, run_ray, run_slurm, run_workers

    at_once, workers = spread.at_once(settings.device), spread.workers_on(settings.device)
    if spread.executor == "ray":
        gpus = spread.num_gpus
        if gpus is None:
            gpus = 1.0 if workers[0][0].startswith("cuda") else 0.0
        run_ray(jobs, store, settings, log, stop, at_once, gpus)
    elif spread.executor == "slurm":
        run_slurm(jobs, store, settings, log, at_once, spread.submit)
    elif at_once == 1 and spread.workers is None and spread.n_devices == 1:
        run_here(jobs, store, replace(settings, device=workers[0][0]), log, stop, splits=splits)
    else:
        run_workers(jobs, store, workers, settings, log, stop)


def _print_table(plan: Plan, store: RunStore, out: Path, as_json: bool) -> int:
    """Print the plan's cells as tables, write table.md, and say how many cells did not end well."""
    from fairssl.board import Board, show, to_json_rows, to_markdown
    from fairssl.store import whole_file

    board, failed = Board(order=list(dict.fromkeys(cell.label for cell in plan.cells))), 0
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


def _print_plan(plan: Plan, store: RunStore, settings: Settings, spread: _Spread, timed: bool, as_json: bool) -> None:
    from fairssl.watch import spell, survey

    found = survey(plan, store, settings.retry_failed)
    estimate = _estimated(plan, found, store, settings.device, timed)
    at_once = spread.at_once(settings.device)
    seconds = estimate.total(min(at_once, max(1, len(found.due))))
    content: dict[str, Any] = {
        "cells": found.n_cells,
        "pretrainings": len(found.pretrainings),
        "done": found.count("ok", plan.cells),
        "failed": found.count("failed", plan.cells) + found.count("diverged", plan.cells),
        "left": sum(len(cells) for cells in found.due.values()),
        "to_train": len(found.to_train),
        "estimate": {
            "seconds": None if seconds is None else round(seconds, 1),
            "at_once": at_once,
            "unknown": estimate.unknown,
            "from": "timed steps" if timed else "records",
        },
        "absent": plan.absent,
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    typer.echo(
        f"{content['cells']} cells, {content['pretrainings']} distinct pretrainings; {content['done']} done, "
        f"{content['failed']} failed or diverged, {content['left']} to run, {content['to_train']} to train"
    )
    for line in _graph(plan, found):
        typer.echo(f"  {line}")
    without = (
        f", without {estimate.unknown} pretrainings of unknown time" if estimate.unknown and estimate.known else ""
    )
    source = "from a few timed steps, training alone" if timed else "from earlier records"
    hint = "; --estimate times a few steps" if estimate.unknown and not timed else ""
    how = f" ({source}, {at_once} at once{without})" if seconds is not None else ""
    typer.echo(f"Estimated time: {spell(seconds)}{how}{hint}")
    for dataset, reason in plan.absent.items():
        typer.echo(f"{dataset} is not on this machine, its keys are provisional: {reason}")


def _graph(plan: Plan, found: Survey) -> Iterator[str]:
    """A line per method and dataset: its pretrainings, and the cells that hang on them."""
    rows: dict[tuple[str, str], list[Any]] = {}
    for cell in plan.cells:
        rows.setdefault((cell.label, cell.spec.data.dataset), []).append(cell)
    due = {cell.spec.key for cells in found.due.values() for cell in cells}
    for (label, dataset), cells in rows.items():
        keys = {cell.spec.pretrain_key for cell in cells}
        left = sum(cell.spec.key in due for cell in cells)
        data = {(cell.spec.data.target, cell.spec.data.attribute) for cell in cells}
        seeds = {cell.spec.seed for cell in cells}
        yield (
            f"{label:16} {dataset:14} {len(keys):6} pretrainings -> {len(cells):6} cells "
            f"({len(data)} target x attribute, {len(seeds)} seeds); {left} to run, {len(keys & found.to_train)} to train"
        )


def _estimated(plan: Plan, found: Survey, store: RunStore, device: str, timed: bool) -> Estimate:
    """Time of what is due: from the records that are there, or from steps timed now on data that is here."""
    from fairssl.pipeline import SplitsCache, device_name, pick_device
    from fairssl.watch import like, paces, time_steps

    if not timed:
        try:
            name = device_name(pick_device(device))
        except UserError:  # a plan made where nothing will run, on a login node say: whatever made the records
            name = None
        outlines = (store.outline(key) for key in sorted(store.result_keys()))  # of any grid
        return found.estimate(paces((o for o in outlines if o is not None), name))
    chosen, known = pick_device(device), {}
    with _progress.bars() as bars:
        splits = SplitsCache(plan.roots, bars.stage)
        for key in found.due:
            spec = found.due[key][0].spec
            if like(spec) not in known and key in found.to_train and spec.data.dataset not in plan.absent:
                known[like(spec)] = time_steps(found.due[key][0], splits.get(spec.data), chosen)
    return found.estimate(known)
