"""Jobs in Slurm jobs, through submitit."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairssl.execute.jobs import Job, NothingStarted
from fairssl.execute.local import POLL_SECONDS
from fairssl.execute.loggers import need
from fairssl.execute.options import Settings
from fairssl.execute.processes import run_here_if_possible
from fairssl.execute.reporting import Reporter, report_ended
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import DEATHS, write_lost
from fairssl.plan.resolve import Run
from fairssl.progress import LineReporter
from fairssl.store.runs import RunStore
from fairssl.train.trainer import Stopped
from fairssl.types import UserError, counted


def run_slurm(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Reporter,
    workers: int,
    submit: dict[str, Any],
) -> None:
    """Do the jobs in `workers` Slurm jobs, through submitit, and wait for them. The runs folder must be seen by all.

    Each Slurm job goes through everything that is due and does what no other process is at. Preempted or out of time, it
    leaves a checkpoint and is requeued. `submit` are parameters of submitit (`timeout_min`, `slurm_partition`,
    `gpus_per_node`); `cluster` is `slurm`, or `local` to try it on one machine. Slurm jobs that end with work left are
    submitted again, as long as that records something; after `DEATHS` rounds in vain the rest is recorded as failed.
    """
    submitit = need("submitit", "--executor slurm", "slurm")
    folder = store.folder("slurm").absolute()
    executor = _executor(submitit, folder, submit)
    watch = _Watch(jobs, store, settings, log)
    rounds = in_vain = 0  # submissions; those in a row that have recorded nothing
    while in_vain < DEATHS:
        recorded_before = len(watch.recorded)
        try:
            submitted = _submit(submitit, executor, watch.left, store, settings, workers)
        except UserError as error:
            if rounds:
                raise
            raise NothingStarted(str(error)) from error
        rounds += 1
        names = ", ".join(str(job.job_id) for job in submitted)
        log.note(
            f"{counted(len(submitted), 'job')} submitted ({names}), their output in {folder}; Ctrl-C leaves them to go on"
        )
        watch.wait_for(submitted)
        if not watch.left:
            return
        log.note(f"{counted(len(watch.left), 'pretraining was', 'pretrainings were')} not finished by jobs {names}")
        in_vain = in_vain + 1 if len(watch.recorded) == recorded_before else 0
    for job in watch.left:
        write_lost(job, store, f"no Slurm job finished it, {DEATHS} rounds in vain; see {folder}", log)


def check_slurm(submit: dict[str, Any]) -> None:
    """Refuse what submitit would, a machine without Slurm say, before anything is written."""
    with tempfile.TemporaryDirectory(prefix="fairssl-") as folder:
        _executor(need("submitit", "--executor slurm", "slurm"), Path(folder), submit)


def _executor(submitit: Any, folder: Path, submit: dict[str, Any]) -> Any:
    """Submitit's executor with these parameters."""
    parameters = {"timeout_min": 24 * 60, "name": "fairssl", **submit}
    try:
        executor = submitit.AutoExecutor(folder=folder, cluster=parameters.pop("cluster", "slurm"))
        executor.update_parameters(**parameters)
    except (RuntimeError, ValueError, NameError, TypeError, AssertionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"submitit refuses: {reason}; --submit KEY=VALUE sets its parameters") from error
    return executor


def _submit(
    submitit: Any, executor: Any, jobs: Sequence[Job], store: RunStore, settings: Settings, workers: int
) -> list[Any]:
    """At most `workers` Slurm jobs for these pretrainings."""
    n = min(workers, len(jobs))
    walks = [_SlurmWalk(list(jobs), store.root.absolute(), settings, n) for _ in range(n)]
    errors = submitit.core.utils
    try:
        with executor.batch():
            return [executor.submit(walk) for walk in walks]
    except (errors.UncompletedJobError, errors.FailedSubmissionError, OSError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"Slurm takes no job: {reason}; --submit KEY=VALUE sets its parameters") from error


class _Watch:
    """Follows in the runs folder what Slurm jobs have recorded."""

    def __init__(self, jobs: Sequence[Job], store: RunStore, settings: Settings, log: Reporter) -> None:
        self.store, self.settings, self.log = store, settings, log
        self.n_jobs, self.left = len(jobs), list(jobs)
        self.recorded: set[str] = set()  # keys of runs that have got their record in this command
        self._before = {run.spec.key: store.written_at(run.spec.key) for job in jobs for run in job.runs}

    def wait_for(self, submitted: Sequence[Any]) -> None:
        """Return when all Slurm jobs have ended, or nothing is left to do."""
        while True:
            over = all(job.done() for job in submitted)
            self._look()
            self.log.overall(
                f"Slurm, {self.n_jobs - len(self.left)} of {counted(self.n_jobs, 'pretraining')} done",
                self.n_jobs - len(self.left),
                self.n_jobs,
            )
            if over or not self.left:
                return
            time.sleep(POLL_SECONDS)

    def _look(self) -> None:
        for job in self.left:
            fresh = [run for run in job.runs if run.spec.key not in self.recorded and self._is_recorded(run)]
            self.recorded.update(run.spec.key for run in fresh)
            report_ended(fresh, self.store, self.log)
        self.left = [job for job in self.left if any(run.spec.key not in self.recorded for run in job.runs)]

    def _is_recorded(self, run: Run) -> bool:
        """Whether the run has its record; one that is to be tried again needs a newer one than it had."""
        key = run.spec.key
        state = self.store.state(key)
        is_old = self.settings.retry_failed and state != "ok" and self.store.written_at(key) == self._before[key]
        return state is not None and not is_old


@dataclass
class _SlurmWalk:
    """What a Slurm job does, as submitit wants it: a call, and what to submit again after a preemption.

    Its progress, and warnings, are lines in the output of the Slurm job.
    """

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
                store, log = RunStore(self.root), LineReporter()
                run_here_if_possible(self.jobs, store, self.settings, log, stop, False, self.n_workers)
        except (Stopped, KeyboardInterrupt):
            if stop.signal != preempt:
                raise SystemExit(stop.exit_code) from None
            os.kill(
                os.getpid(), preempt
            )  # submitit's own handler is back: it requeues `checkpoint()` and ends this process

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)
