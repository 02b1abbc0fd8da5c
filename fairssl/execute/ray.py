"""Jobs as Ray tasks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairssl.execute.jobs import Job, NothingStarted
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
from fairssl.types import UserError, counted, first_line

SECONDS_TO_CONNECT = 60.0  # that a cluster has to answer
_QUIET = {"log_to_driver": False, "logging_level": "ERROR"}
_NONE_THERE = 3
_ASK = f"""
import json, sys
import ray
try:
    ray.init(address=sys.argv[1], **json.loads(sys.argv[2]))
except ConnectionError as error:
    print(error, file=sys.stderr)
    sys.exit({_NONE_THERE})
"""


def run_ray(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Reporter,
    stop: GracefulStop,
    workers: int,
    gpus: float,
    cluster: bool,
) -> None:
    """Do the jobs as Ray tasks of one CPU and `gpus` GPUs each, on a running `cluster` (RAY_ADDRESS, or the one that this
    machine is part of) or else on this machine with `workers` CPUs.

    A node that sees this runs folder writes into it, and a lost task goes on from its checkpoint; what another node made
    is sent back, and a lost task starts afresh. A task lost `DEATHS` times is recorded as failed.
    """
    ray = need("ray", "--executor ray", "ray")
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))  # Ray prints its warnings; stdout is for the table
        _connect(ray, workers, cluster)
        stack.callback(ray.shutdown)
        seen = stack.enter_context(tempfile.NamedTemporaryFile(dir=store.root, prefix=".seen-"))
        task = ray.remote(ray_job).options(num_cpus=1, num_gpus=gpus, max_retries=0)
        here = store.root.absolute(), Path(seen.name).absolute()

        def submit(job: Job, alone: bool = False) -> Any:
            pretrained = _packed(store, "pretrain", job.key) if alone else {}
            return task.remote(job, *here, alone, pretrained, settings)

        stack.enter_context(stop.listening())  # Ray has put a handler of its own in the place of ours
        RayLoop(ray, submit, jobs, store, settings, log).work()


def finds_cluster(log: Reporter) -> bool:
    """Whether there is a Ray cluster to connect to. One that was named and does not answer is a `UserError`."""
    need("ray", "--executor ray", "ray")
    return _answers(_address(), log)


def _address() -> str:
    return os.environ.get("RAY_ADDRESS") or "auto"


def _connect(ray: Any, workers: int, cluster: bool) -> None:
    """Connect to the cluster that there is, or start Ray on this machine."""
    try:
        if cluster:
            ray.init(address=_address(), **_QUIET)
        else:
            ray.init(num_cpus=workers, include_dashboard=False, **_QUIET)
    except (OSError, RuntimeError, ValueError) as error:
        raise NothingStarted(f"Ray does not start: {first_line(error)}{_socket_advice(str(error))}") from error


def _answers(address: str, log: Reporter) -> bool:
    """Whether there is a cluster; False for `auto` where there is none. One that does not answer is a `UserError`.

    A process of its own asks: what connects to a cluster that is gone waits for minutes, and no signal stops it.
    """
    named = f"RAY_ADDRESS={address}" if "RAY_ADDRESS" in os.environ else "the address that Ray left on this machine"
    log.overall(f"looking for a Ray cluster, {SECONDS_TO_CONNECT:.0f} s at most", 0, 0)
    call = [sys.executable, "-P", "-c", _ASK, address, json.dumps(_QUIET)]
    try:
        done = subprocess.run(
            call, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_TO_CONNECT, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"no Ray cluster at {named}: no answer in {SECONDS_TO_CONNECT:.0f} s; start it, or take the address away "
            "(unset RAY_ADDRESS; `ray stop`), and Ray is started on this machine"
        ) from error
    if done.returncode == 0:
        return True
    if done.returncode == _NONE_THERE and "RAY_ADDRESS" not in os.environ:
        return False
    reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise UserError(f"no Ray cluster at {named}: {reason}")


def _socket_advice(reason: str) -> str:
    """The way out where a path is too long for a socket."""
    if "AF_UNIX" not in reason:
        return ""
    return "; its sockets lie below RAY_TMPDIR, else TMPDIR: set RAY_TMPDIR to a short path, as RAY_TMPDIR=/tmp"


class RayLoop:
    """Waits for Ray tasks and takes what they made, one job each."""

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
        self.claims: dict[str, AbstractContextManager[bool]] = {}  # of jobs on nodes that do not see the runs folder
        self.deaths: Counter[str] = Counter()

    def work(self) -> None:
        """Return when every job is done or given up."""
        try:
            while self.running:
                self._report_progress()
                ready, _ = self.ray.wait(list(self.running), timeout=1.0)
                for task in ready:
                    self.on_task_end(task, self.running.pop(task))
        except BaseException:
            for task in self.running:
                self.ray.cancel(task)  # an interrupt there: it leaves a checkpoint
            if self.running:
                self.ray.wait(list(self.running), num_returns=len(self.running), timeout=30)
            raise
        finally:
            for key in list(self.claims):
                self._release_claim(key)

    def _report_progress(self) -> None:
        what = f"Ray, {self.finished} of {counted(self.n_jobs, 'pretraining')} done"
        self.log.overall(what, self.finished, self.n_jobs)

    def on_task_end(self, task: Any, job: Job) -> None:
        """Take what a task gave back; submit its job again where something of it is left."""
        errors = self.ray.exceptions
        try:
            outcome = self.ray.get(task)
        except errors.RayTaskError as error:
            raise getattr(error, "cause", None) or error from error
        except errors.RayError as error:
            self.on_task_lost(job, error)
            return
        if isinstance(outcome, dict) and "note" in outcome:
            self.log.note(outcome["note"])
        if outcome == "unseen":
            self._submit_under_claim(job)
        elif outcome == "claimed":
            self._submit_later(job)
        else:
            on_other_disk = isinstance(outcome, dict) and "results" in outcome
            if on_other_disk:
                _unpack(outcome, self.store, job)
            self._take_records(job, on_other_disk)

    def _submit_under_claim(self, job: Job) -> None:
        """The node does not see the runs folder: it works on a disk of its own, and this process holds the claim."""
        claim = self.store.claim(job.key)
        if claim.__enter__():
            self.claims[job.key] = claim
            self.running[self.submit(job, alone=True)] = job
        else:
            claim.__exit__(None, None, None)
            self._submit_later(job)

    def _submit_later(self, job: Job) -> None:
        """Another command is at the job."""
        time.sleep(POLL_SECONDS)
        self.running[self.submit(job)] = job

    def _take_records(self, job: Job, on_other_disk: bool) -> None:
        """Report the runs that have ended. The others are submitted again, where a run took the GPU with it."""
        ended = [run for run in job.runs if self.store.state(run.spec.key) is not None]
        report_ended(ended, self.store, self.log)
        left = tuple(run for run in job.runs if run not in ended)
        if left and ended:
            rest = replace(job, runs=left)
            self.running[self.submit(rest, alone=on_other_disk)] = rest
        else:
            self._finish(job)

    def on_task_lost(self, job: Job, error: Exception) -> None:
        """Submit the job of a task whose process or node has died again, or give it up after `DEATHS` times."""
        self.deaths[job.key] += 1
        what = f"the Ray task of {job.runs[0].name} was lost ({type(error).__name__})"
        if self.deaths[job.key] < DEATHS:
            self.log.note(f"{what}; another one takes it over")
            self.running[self.submit(job, alone=job.key in self.claims)] = job
            return
        self.log.note(f"{what} again; given up")
        write_lost(job, self.store, f"{what}, {DEATHS} times: {error}", self.log)
        self._finish(job)

    def _finish(self, job: Job) -> None:
        self.finished += 1
        self._release_claim(job.key)

    def _release_claim(self, key: str) -> None:
        claim = self.claims.pop(key, None)
        if claim is not None:
            claim.__exit__(None, None, None)


def ray_job(
    job: Job, root: Path, seen: Path, alone: bool, pretrained: dict[str, bytes], settings: Settings
) -> str | dict[str, Any]:
    """What a Ray task does. `alone`: the caller holds the claim, and gets the files of the runs back.

    Else it gives back one word. `done`; `claimed`: another process is at the job; `broken`: done up to a run that took the
    GPU with it; `unseen`: nothing was done, this node does not see the runs folder. Or a `note` for the user: done eagerly.
    """
    stop = GracefulStop()
    with stop.listening():
        try:
            if not alone:
                if not seen.exists():
                    return "unseen"
                store = RunStore(root)
                try:
                    return "claimed" if Worker(store, settings, SilentReporter(), stop).run([job]) else "done"
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
