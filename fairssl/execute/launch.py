"""Carries a plan out by whatever executor the options name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from fairssl import distributed
from fairssl.data.device import check_device_name, pick_device
from fairssl.data.splits import SplitsCache
from fairssl.execute.jobs import Job, NothingStarted, check_data, jobs_of
from fairssl.execute.loggers import reachable
from fairssl.execute.options import Options, Settings
from fairssl.execute.processes import run_here_if_possible, run_workers
from fairssl.execute.ray import finds_cluster, run_ray
from fairssl.execute.reporting import Reporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.slurm import check_slurm, run_slurm
from fairssl.execute.torchrun import torchrun
from fairssl.execute.worker import WorkerBroken, follow
from fairssl.machine import n_cores
from fairssl.plan.resolve import Plan
from fairssl.plan.status import survey, write_plan
from fairssl.process_state import preserved_torch
from fairssl.store.runs import RunStore
from fairssl.train.trainer import Stopped
from fairssl.types import UserError

MAX_WORKERS = 8  # unasked; each holds a copy of the images
LONG_EPOCHS = 60  # of all pretrainings together


def launch(
    plan: Plan, store: RunStore, options: Options, log: Reporter, stop: GracefulStop, trials: bool = False
) -> None:
    """Do what of the plan is not done yet. `trials`: its new runs are noted as tried by a search.

    `Stopped`, KeyboardInterrupt and `WorkerBroken` pass through; the same call goes on from there.
    """
    check_device_name(options.device)
    if options.executor == "local":
        check_devices_are_here(options)
    if options.force and distributed.rank() == 0:
        discard(plan, store)
    jobs = jobs_of(survey(plan, store, options.retry_failed))
    if not jobs:
        store.create()
        return
    if distributed.size() == 1:
        options = with_workers(options, plan)
    with stop.listening(), preserved_torch():
        with followers_released():
            cluster = _check_executor(options, log)  # before anything is written, and so is the data
            splits = SplitsCache(plan.roots, log.stage)
            check_data(splits, jobs, max(options.devices, distributed.size()))
            is_new = not store.root.exists()
            store.create()
            written = write_plan(plan, store)
            new = {run.spec.key for job in jobs for run in job.runs} - store.result_keys() if trials else set()
            if new:
                store.mark_trials(new)
        settings = replace(options.settings(plan.roots), loggers=reachable(options.loggers, store.root, log))
        settings = distributed.broadcast(settings)
        try:
            _execute(jobs, store, options, settings, log, stop, splits, cluster)
        except NothingStarted:
            if written is not None:
                written.unlink(missing_ok=True)
            store.unmark_trials(new)
            if is_new:
                store.remove_if_empty()
            raise


def _check_executor(options: Options, log: Reporter) -> bool:
    """Refuse an executor that cannot work here; whether there is a Ray cluster."""
    if options.executor == "slurm":
        check_slurm(dict(options.submit))
    return options.executor == "ray" and finds_cluster(log)


def check_devices_are_here(options: Options) -> None:
    """Refuse devices of local workers that this machine lacks."""
    here = {f"cuda:{i}" for i in range(torch.cuda.device_count())}  # trying one would take some of its memory
    for name in sorted({name for names in worker_devices(options) for name in names} - here):
        pick_device(name)


def _execute(
    jobs: Sequence[Job],
    store: RunStore,
    options: Options,
    settings: Settings,
    log: Reporter,
    stop: GracefulStop,
    splits: SplitsCache,
    cluster: bool,
) -> None:
    """Hand the jobs to the executor that the options name."""
    workers = worker_devices(options)
    if options.executor == "ray":
        gpus = options.num_gpus
        if gpus is None:
            gpus = 1.0 if workers[0][0].startswith("cuda") else 0.0
        run_ray(jobs, store, settings, log, stop, n_at_once(options), gpus, cluster)
    elif options.executor == "slurm":
        run_slurm(jobs, store, settings, log, n_at_once(options), dict(options.submit))
    elif len(workers) == 1 and options.workers is None and options.devices == 1:
        run_here_if_possible(jobs, store, replace(settings, device=workers[0][0]), log, stop, splits=splits)
    else:
        run_workers(jobs, store, workers, settings, log, stop)


def discard(plan: Plan, store: RunStore) -> None:
    """Take everything that the plan's runs have left out of the store. What another live process is at stays."""
    for key, runs in plan.pretrainings().items():
        with store.claim(key) as free:
            if free:
                store.discard(key, [run.spec.key for run in runs])


def worker_devices(options: Options) -> list[tuple[str, ...]]:
    """The devices of each local worker. One worker on one device is this process, unless `workers` was given."""
    n, device = options.devices, options.device
    n_gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    gpus = [f"cuda:{i}" for i in range(n_gpus)]
    if gpus and len(gpus) < n:
        raise UserError(f"--devices {n}: there are {len(gpus)} GPUs here; at most that many, or --device cpu")
    if n > 1 and ":" in device:
        raise UserError(f"--devices {n} --device {device}: that is one device; leave --device out, or write cuda")
    base = [tuple(gpus[i : i + n]) for i in range(0, len(gpus) - n + 1, n)]
    base = base or [("cpu" if device == "auto" else device,) * n]
    return [base[i % len(base)] for i in range(options.workers or len(base))]


def with_workers(options: Options, plan: Plan) -> Options:
    """The options with a number of workers, where it pays on a CPU.

    Processes of one thread each waste none of it on waiting for each other, as the threads of one small training do; but
    a worker takes seconds to start, so a short grid stays in this process. The whole plan decides, not what is left of
    it: the number of threads is in the last bits of a result, and a command that goes on must end as if it had never
    stopped.
    """
    if options.workers is not None or options.executor != "local" or worker_devices(options)[0][0] != "cpu":
        return options
    firsts = [runs[0].spec for runs in plan.pretrainings().values()]
    n = min(len(firsts), n_cores() // options.devices, MAX_WORKERS)
    long = sum(spec.train.epochs for spec in firsts) >= LONG_EPOCHS
    return replace(options, workers=n) if long and n > 1 else options


def n_at_once(options: Options) -> int:
    """How many pretrainings go on at once, as far as this process can tell."""
    if options.executor == "local":
        return len(worker_devices(options))
    return options.workers or (n_cores() if options.executor == "ray" else 8)


@contextmanager
def under_torchrun(options: Options, store: RunStore, alone: bool) -> Iterator[Options | None]:
    """The options, with this process's device where torchrun started it.

    None in all processes but the first: they have done their share in here, and the first alone writes and prints.
    `alone`: the first needs no help of the others.
    """
    place = torchrun()
    if place is None:
        yield options
        return
    if options.executor != "local" or options.workers is not None or options.devices > 1:
        raise UserError("torchrun starts the processes: leave --executor, --workers and --devices out")
    n, number, local = place
    if options.pack is not None and options.pack > 1 and n > 1:
        raise UserError(
            f"--pack {options.pack}: torchrun's processes share a run, seeds do not share them; leave it out"
        )
    kind = worker_devices(options)[0][0].partition(":")[0]
    options = replace(options, device=f"cuda:{local}" if kind == "cuda" else kind)
    if n == 1 or alone:
        yield options if number == 0 else None
        return
    options = replace(options, pack=1)
    with distributed.process_group(options.device, n, number):
        if number == 0:
            yield options
            distributed.broadcast(None)
            return
        _follow_first(options.device, store)
        yield None


def _follow_first(device: str, store: RunStore) -> None:
    """Train with the first process that torchrun started, until it lets this one go."""
    stop = GracefulStop()
    with stop.listening():
        try:
            settings: Settings | None = distributed.broadcast(None)
            if settings is not None:
                follow(replace(settings, device=device), store.root, stop)
        except (Stopped, KeyboardInterrupt):
            raise SystemExit(stop.exit_code) from None
        except WorkerBroken:  # the first says why
            raise SystemExit(1) from None


@contextmanager
def followers_released() -> Iterator[None]:
    """If the block ends with a mistake of the user's, let the processes go that torchrun started beside this one."""
    try:
        yield
    except UserError:
        if distributed.size() > 1:
            distributed.broadcast(None)
        raise
