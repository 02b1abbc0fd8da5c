"""What a plan would run, and how long that takes: the content of `--dry-run` and `--estimate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fairssl.data.device import check_device_name, device_name, pick_device
from fairssl.data.splits import SplitsCache, run_data
from fairssl.execute.launch import check_devices_are_here, n_at_once
from fairssl.execute.options import Options
from fairssl.execute.reporting import Reporter
from fairssl.execute.slurm import check_slurm
from fairssl.execute.timing import time_steps
from fairssl.plan.estimate import Estimate, cost_key, paces
from fairssl.plan.resolve import Plan, Run
from fairssl.plan.status import Survey, survey
from fairssl.store.runs import RunStore
from fairssl.types import UserError


def dry_run(plan: Plan, store: RunStore, options: Options, log: Reporter, timed: bool) -> dict[str, Any]:
    """Counts of runs and pretrainings, a row per method and dataset, and the time left in seconds, as plain values.

    `timed`: take the time of a few steps on data that is here, in place of what earlier records say. Runs nothing else.
    """
    check_device_name(options.device)
    found = survey(plan, store, options.retry_failed)
    for note in () if timed else _not_here(options):
        log.note(note)
    estimate = (_timed if timed else _recorded)(plan, found, store, options, log)
    at_once = n_at_once(options)
    seconds = estimate.total(min(at_once, max(1, len(found.due))))
    return {
        "runs": found.n_runs,
        "cells": found.n_runs,  # its name in 0.1.0
        "pretrainings": len(found.pretrainings),
        "done": found.count("ok"),
        "failed": found.count("failed") + found.count("diverged"),
        "left": sum(len(runs) for runs in found.due.values()),
        "to_train": len(found.to_train),
        "methods": list(_rows(plan, found)),
        "estimate": {
            "seconds": None if seconds is None else round(seconds, 1),
            "at_once": at_once,
            "unknown": estimate.unknown,
            "from": "timed steps" if timed else "records",
        },
        "absent": plan.absent,
        "without_effect": plan.without_effect,
    }


def _not_here(options: Options) -> Iterator[str]:
    """What the run would refuse on this machine alone. It is no error of a plan, which may be made for another one."""
    if options.executor == "local":
        try:
            check_devices_are_here(options)
        except UserError as error:
            yield f"a run on this machine is refused: {error}"
    elif options.executor == "slurm":
        try:
            check_slurm(dict(options.submit))
        except UserError as error:
            yield f"a run on this machine is refused: {error}"


def _rows(plan: Plan, found: Survey) -> Iterator[dict[str, Any]]:
    """A row per method and dataset: its pretrainings, and the runs that need them."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in plan.runs:
        groups.setdefault((run.label, run.spec.data.dataset), []).append(run)
    due = {run.spec.key for runs in found.due.values() for run in runs}
    for (label, dataset), runs in groups.items():
        keys = {run.spec.pretrain_key for run in runs}
        yield {
            "method": label,
            "dataset": dataset,
            "pretrainings": len(keys),
            "runs": len(runs),
            "pairs": len({(run.spec.data.target, run.spec.data.attribute) for run in runs}),
            "seeds": len({run.spec.seed for run in runs}),
            "left": sum(run.spec.key in due for run in runs),
            "to_train": len(keys & found.to_train),
        }


def _recorded(plan: Plan, found: Survey, store: RunStore, options: Options, log: Reporter) -> Estimate:
    """From the records of any grid in the folder, made on a device of this kind."""
    try:
        name = device_name(pick_device(options.device))
    except UserError:  # a plan made where nothing will run, on a login node say: whatever made the records
        name = None
    outlines = (store.outline(key) for key in sorted(store.result_keys()))
    return found.estimate(paces((o for o in outlines if o is not None), name))


def _timed(plan: Plan, found: Survey, store: RunStore, options: Options, log: Reporter) -> Estimate:
    device = pick_device(options.device)
    splits = SplitsCache(plan.roots, log.stage)
    known = {}
    for key, runs in found.due.items():
        spec, data = runs[0].spec, runs[0].spec.pretrain_data
        if cost_key(spec) not in known and key in found.to_train and data.dataset not in plan.absent:
            read = run_data(splits.get(data), data.attribute, spec.annotated, spec.seed)
            known[cost_key(spec)] = time_steps(spec, read, device, options.eager, options.compile)
    return found.estimate(known)
