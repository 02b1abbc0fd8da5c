"""Jobs as Ray tasks."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairssl.execute.jobs import Job
from fairssl.execute.local import POLL_SECONDS
from fairssl.execute.loggers import need
from fairssl.execute.options import Settings
from fairssl.execute.processes import run_eagerly
from fairssl.execute.reporting import Reporter, SilentReporter, report_ended
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import DEATHS, StepNotCaptured, Worker, WorkerBroken, write_lost
from fairssl.store.record import Predictions, Record
from fairssl.store.runs import RunStore
from fairssl.train.trainer import Stopped
from fairssl.types import UserError


def run_ray(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Reporter,
    stop: GracefulStop,
    workers: int,
    gpus: float,
) -> None:
    """Do the jobs as Ray tasks of one CPU and `gpus` GPUs each, on a running cluster (RAY_ADDRESS, or the one that this
    machine is part of) or else on this machine with `workers` CPUs.

    A node that sees this runs folder writes into it, and a lost task goes on from its checkpoint; what another node made
    is sent back, and a lost task starts afresh. A task lost `DEATHS` times is recorded as failed.
    """
    ray = need("ray", "--executor ray", "ray")
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints its warnings; stdout is for the table
        _connect(ray, workers)
        stack.callback(ray.shutdown)
        seen = stack.enter_context(tempfile.NamedTemporaryFile(dir=store.root, prefix=".seen-"))
        task = ray.remote(_ray_job).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        here = store.root.absolute(), Path(seen.name).absolute()

        def submit(job: Job, alone: bool = False) -> Any:
            pretrained = _packed(store, "pretrain", job.key) if alone else {}
            return task.remote(job, *here, alone, pretrained, settings)

        stack.enter_context(stop.listening())  # Ray has put a handler of its own in the place of ours
        _RayLoop(ray, submit, jobs, store, settings, log).work()


def _connect(ray: Any, workers: int) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), **quiet)
    except ConnectionError as error:
        if "RAY_ADDRESS" in os.environ:
            raise UserError(f"no Ray cluster at RAY_ADDRESS={os.environ['RAY_ADDRESS']}: {error}") from error
        ray.init(num_cpus=workers, include_dashboard=False, **quiet)


class _RayLoop:
    def __init__(
        self,
        ray: Any,
        submit: Callable[..., Any],
        jobs: Sequence[Job],
        store: RunStore,
        settings: Settings,
        log: Reporter,
    ) -> None:
        self.ray, self.submit, self.store, self.settings, self.log = ray, submit, store, settings, log
        self.n_jobs, self.finished = len(jobs), 0
        self.running = {submit(job): job for job in jobs}
        self.claims: dict[str, AbstractContextManager[bool]] = {}  # of jobs whose node cannot claim them itself
        self.deaths: Counter[str] = Counter()

    def work(self) -> None:
        try:
            while self.running:
                self.log.overall(f"{len(self.running)} pretrainings on Ray", self.finished, self.n_jobs)
                ready, _ = self.ray.wait(list(self.running), timeout=1.0)
                for task in ready:
                    self._hear(task, self.running.pop(task))
        except BaseException:
            for task in self.running:
                self.ray.cancel(task)  # an interrupt there: it leaves a checkpoint
            if self.running:
                self.ray.wait(list(self.running), num_returns=len(self.running), timeout=30)
            raise
        finally:
            for key in list(self.claims):
                self._let_go(key)

    def _hear(self, task: Any, job: Job) -> None:
        errors = self.ray.exceptions
        try:
            outcome = self.ray.get(task)
        except errors.RayTaskError as error:
            raise getattr(error, "cause", None) or error from error
        except errors.RayError as error:
            self._lost(job, error)
            return
        if outcome == "unseen":  # its node has another disk: it works for us under our claim
            claim = self.store.claim(job.key)
            if claim.__enter__():
                self.claims[job.key] = claim
                self.running[self.submit(job, alone=True)] = job
            else:
                claim.__exit__(None, None, None)
                outcome = "held"
        if isinstance(outcome, dict) and "note" in outcome:
            self.log.note(outcome["note"])
        if outcome == "held":
            time.sleep(POLL_SECONDS)
            self.running[self.submit(job)] = job
        elif outcome != "unseen":
            alone = isinstance(outcome, dict) and "results" in outcome
            if alone:
                _unpack(outcome, self.store, job)
            ended = [run for run in job.runs if self.store.state(run.spec.key) is not None]
            report_ended(ended, self.store, self.log)
            left = tuple(run for run in job.runs if run not in ended)
            if left and ended:  # a run took the GPU with it
                rest = replace(job, runs=left)
                self.running[self.submit(rest, alone=alone)] = rest
            else:
                self._over(job)

    def _lost(self, job: Job, error: Exception) -> None:
        self.deaths[job.key] += 1
        what = f"the Ray task of {job.runs[0].name} was lost ({type(error).__name__})"
        if self.deaths[job.key] < DEATHS:
            self.log.note(f"{what}; another one takes it over")
            self.running[self.submit(job, alone=job.key in self.claims)] = job
            return
        self.log.note(f"{what} again; given up")
        write_lost(job, self.store, f"{what}, {DEATHS} times: {error}", self.log)
        self._over(job)

    def _over(self, job: Job) -> None:
        self.finished += 1
        self._let_go(job.key)

    def _let_go(self, key: str) -> None:
        claim = self.claims.pop(key, None)
        if claim is not None:
            claim.__exit__(None, None, None)


def _ray_job(
    job: Job, root: Path, seen: Path, alone: bool, pretrained: dict[str, bytes], settings: Settings
) -> str | dict[str, Any]:
    """What a Ray task does. `alone`: the caller holds the claim and takes the files that come back.

    Else: `done`; `held` by another process; `broken`: done up to a run that took the GPU with it; `unseen`: this node does
    not see the runs folder, nothing was done. A `note` is for the user.
    """
    stop = GracefulStop()
    with stop.listening():
        try:
            if not alone:
                if not seen.exists():
                    return "unseen"
                store = RunStore(root)
                try:
                    return "held" if Worker(store, settings, SilentReporter(), stop).run([job]) else "done"
                except StepNotCaptured as error:
                    key, note = error.step_key, str(error)
                except WorkerBroken:  # Ray ends a process after a task with a GPU
                    return "broken"
                run_eagerly(key, [job], store, settings, SilentReporter(), stop)
                return {"note": note}
            with tempfile.TemporaryDirectory(prefix="fairssl-") as scratch:
                store = RunStore(scratch)
                store.create()
                _put(store.pretrain_dir(job.key), pretrained)
                key = note = ""
                try:
                    Worker(store, settings, SilentReporter(), stop).run([job])
                except StepNotCaptured as error:
                    key, note = error.step_key, str(error)
                except WorkerBroken:
                    pass
                if key:
                    run_eagerly(key, [job], store, settings, SilentReporter(), stop)
                results = {run.spec.key: _packed(store, "results", run.spec.key) for run in job.runs}
                found = {"pretrain": _packed(store, "pretrain", job.key), "results": results}
                return {**found, "note": note} if note else found
        except Stopped as error:
            raise KeyboardInterrupt from error


def _packed(store: RunStore, kind: str, key: str) -> dict[str, bytes]:
    """The files of one folder of a store, by name; empty where there is none."""
    folder = store.root / kind / key
    return {path.name: path.read_bytes() for path in sorted(folder.glob("[!.]*"))} if folder.is_dir() else {}


def _put(folder: Path, files: dict[str, bytes]) -> None:
    if files:
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)


def _unpack(outcome: dict[str, Any], store: RunStore, job: Job) -> None:
    """Write what another node made into our store, by the same doors as everything else."""
    with tempfile.TemporaryDirectory(prefix="fairssl-") as scratch:
        theirs = RunStore(scratch)
        _put(theirs.pretrain_dir(job.key), outcome["pretrain"])
        pretrained = theirs.read_pretrain(job.key)
        if pretrained is not None:
            store.write_pretrain(job.key, json.loads(outcome["pretrain"]["spec.json"]), *pretrained)
    for files in outcome["results"].values():
        if files:
            table = files.get("predictions.csv.gz")
            predictions = None if table is None else Predictions.from_csv_gz(table)
            store.write_result(Record.model_validate_json(files["record.json"]), predictions)
