"""Jobs in Slurm jobs, through submitit."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairssl.execute.jobs import Job
from fairssl.execute.local import POLL_SECONDS
from fairssl.execute.loggers import need
from fairssl.execute.options import Settings
from fairssl.execute.processes import run_here_if_possible
from fairssl.execute.reporting import Reporter, SilentReporter, report_ended
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import DEATHS, write_lost
from fairssl.plan.resolve import Run
from fairssl.store.runs import RunStore
from fairssl.train.trainer import Stopped
from fairssl.types import UserError


def run_slurm(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Reporter,
    workers: int,
    submit: dict[str, Any],
) -> None:
    """Do the jobs in `workers` Slurm jobs, through submitit, and wait for them. The runs folder must be seen by all.

    Each walks through everything that is due and does what nobody else holds. Preempted or out of time, it leaves a
    checkpoint and is requeued. `submit` are parameters of submitit (`timeout_min`, `slurm_partition`, `gpus_per_node`);
    `cluster` is `slurm`, or `local` to try it on one machine. Jobs that end with work left are submitted again, as long as
    that leads on.
    """
    submitit = need("submitit", "--executor slurm", "slurm")
    parameters = {"timeout_min": 24 * 60, "name": "fairssl", **submit}
    folder = store.folder("slurm").absolute()
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=parameters.pop("cluster", "slurm"))
        executor.update_parameters(**parameters)
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        raise UserError(f"submitit refuses: {error}; --submit KEY=VALUE sets its parameters") from error
    left = list(jobs)
    old = {run.spec.key: store.written_at(run.spec.key) for job in jobs for run in job.runs}

    def ended(run: Run) -> bool:
        key = run.spec.key
        state = store.state(key)
        again = settings.retry_failed and state != "ok" and store.written_at(key) == old[key]
        return state is not None and not again

    told: set[str] = set()
    in_vain = 0  # rounds in a row that have recorded nothing
    while in_vain < DEATHS:
        count, before = min(workers, len(left)), len(told)
        rest = [_SlurmWalk(left, store.root.absolute(), settings, count) for _ in range(count)]
        with executor.batch():
            submitted = [executor.submit(walk) for walk in rest]
        names = ", ".join(str(job.job_id) for job in submitted)
        log.note(f"{count} jobs submitted ({names}), their output in {folder}; Ctrl-C leaves them to go on")
        while True:
            over = all(job.done() for job in submitted)
            for job in left:
                fresh = [c for c in job.runs if c.spec.key not in told and ended(c)]
                told.update(run.spec.key for run in fresh)
                report_ended(fresh, store, log)
            left = [job for job in left if any(run.spec.key not in told for run in job.runs)]
            log.overall("Slurm", len(jobs) - len(left), len(jobs))
            if over or not left:
                break
            time.sleep(POLL_SECONDS)
        if not left:
            return
        log.note(f"{len(left)} pretrainings were not finished by jobs {names}")
        in_vain = in_vain + 1 if len(told) == before else 0
    for job in left:
        write_lost(job, store, f"no Slurm job finished it, {DEATHS} rounds in vain; see {folder}", log)


class _Notes(SilentReporter):
    """Notes go into the Slurm job's own log."""

    def note(self, text: str) -> None:
        print(f"fairssl: {text}", file=sys.stderr, flush=True)


@dataclass
class _SlurmWalk:
    """What a Slurm job does, as submitit wants it: a call, and what to requeue after a preemption."""

    jobs: list[Job] = field(repr=False)
    root: Path
    settings: Settings
    n_workers: int

    def __call__(self) -> None:
        import submitit

        stop = GracefulStop()
        preempt = submitit.JobEnvironment()._usr_sig()
        try:
            with stop.listening(preempt):
                store, log = RunStore(self.root), _Notes()
                run_here_if_possible(self.jobs, store, self.settings, log, stop, False, self.n_workers)
        except (Stopped, KeyboardInterrupt):
            if stop.signal != preempt:
                raise SystemExit(stop.exit_code) from None
            os.kill(os.getpid(), preempt)  # submitit's own handler is back: it requeues `checkpoint()` and ends us

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)
