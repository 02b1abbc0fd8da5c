"""Jobs in worker processes, one per device or several that train a run together."""

from __future__ import annotations

import ctypes
import gc
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from fairssl import distributed
from fairssl.data.splits import SplitsCache
from fairssl.execute.jobs import Job, packs_of
from fairssl.execute.local import POLL_SECONDS, run_here
from fairssl.execute.options import Settings
from fairssl.execute.reporting import Reporter
from fairssl.execute.signals import GracefulStop
from fairssl.execute.worker import DEATHS, StepNotCaptured, Worker, WorkerBroken, follow, write_lost
from fairssl.machine import n_cores
from fairssl.plan.resolve import Run
from fairssl.plan.status import is_due
from fairssl.store.record import Record
from fairssl.store.runs import RunStore
from fairssl.train.trainer import Stopped
from fairssl.types import UserError, counted

SECONDS_FOR_LAST_WORDS = 15.0  # that a worker has to end by itself once it, or one of its processes, is broken
SECONDS_TO_END = 60.0  # that it has where one of its processes may still write a checkpoint


@dataclass
class WorkerProcess:
    """A worker as its parent sees it: one process, or the first of several that train each run together."""

    devices: tuple[str, ...]
    process: subprocess.Popen[bytes]
    pipe: Connection
    others: list[subprocess.Popen[bytes]]
    pack: tuple[Job, ...] = ()
    stage: str = ""  # what it is doing with it, as it last said
    trained: float = 0.0  # share of its pack's training that is done, 0 to 1
    incomplete_since: float | None = None  # when one of the others was first seen dead

    def wait(self) -> int:
        """Wait until all its processes have ended; the exit code of the first.

        Once one has ended the others have little left to do, and are killed after `SECONDS_TO_END`.
        """
        members = self.process, *self.others
        deadline = math.inf
        while any(member.poll() is None for member in members):
            if any(member.poll() is not None for member in members):
                deadline = min(deadline, time.monotonic() + SECONDS_TO_END)
            if time.monotonic() > deadline:  # it waits for an answer of a process that is gone
                self.kill()
            time.sleep(0.02)
        return self.process.wait()

    def kill(self) -> None:
        for member in (self.process, *self.others):
            member.kill()


def run_workers(
    jobs: Sequence[Job],
    store: RunStore,
    workers: Sequence[tuple[str, ...]],
    settings: Settings,
    log: Reporter,
    stop: GracefulStop,
) -> None:
    """Do the jobs in one worker per entry of `workers`, each a process on its device, or a process on each of its devices.

    A worker that dies stops no other: its jobs are tried once more, from their checkpoints, and then recorded as failed.
    Workers end when this process does, however it ends.
    """
    pool = WorkerPool(list(jobs), store, workers, settings, log)
    try:
        pool.work()
    except BaseException:
        pool.stop()
        raise
    finally:
        pool.rendezvous_folders.close()


def run_here_if_possible(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Reporter,
    stop: GracefulStop,
    wait: bool = True,
    n_workers: int = 1,
    splits: SplitsCache | None = None,
) -> None:
    """Do the jobs as `run_here`; what is left once a step could not be captured, in a worker process on the same device."""
    try:
        run_here(jobs, store, settings, log, stop, wait, n_workers, splits)
        return
    except StepNotCaptured as error:
        log.note(str(error))
        key = error.step_key
    run_eagerly(key, jobs, store, settings, log, stop)


def run_eagerly(
    step_key: str, jobs: Sequence[Job], store: RunStore, settings: Settings, log: Reporter, stop: GracefulStop
) -> None:
    """Do what is left of the jobs in a worker process on the same device, once a step of this kind could not be captured in
    this one."""
    gc.collect()  # what this process had on the device
    with suppress(RuntimeError):
        torch.cuda.empty_cache()
    again = settings.retry_failed
    left = [replace(job, runs=tuple(r for r in job.runs if is_due(store.state(r.spec.key), again))) for job in jobs]
    settings = replace(settings, eager_steps=settings.eager_steps | {step_key})
    run_workers([job for job in left if job.runs], store, [(settings.device,)], settings, log, stop)


class WorkerPool:
    """Hands packs of jobs to worker processes, starts a worker where a device is free, and replaces those that die."""

    def __init__(
        self, jobs: list[Job], store: RunStore, workers: Sequence[tuple[str, ...]], settings: Settings, log: Reporter
    ) -> None:
        self.queue = deque(packs_of(jobs, replace(settings, device=workers[0][0]), len(workers)))
        self.n_jobs, self.finished = len(jobs), 0
        self.store, self.settings, self.log = store, settings, log
        asked = os.environ.get("OMP_NUM_THREADS", "")
        n_processes = sum(map(len, workers))
        self.threads = int(asked) if asked.isdecimal() else max(1, n_cores() // n_processes)
        self.free_devices = deque(workers)
        self.workers: list[WorkerProcess] = []
        self.deaths: Counter[str] = Counter()  # by job: how many workers have died over it
        self.recorded: set[str] = set()  # keys of runs that have got their record in this command
        self.not_before: dict[str, float] = {}  # of jobs that another command is at: when to ask again
        self.rendezvous_folders = ExitStack()  # where the processes of one worker find each other

    def work(self) -> None:
        """Return when every job is done, given up, or recorded by another command."""
        while self.queue or any(worker.pack for worker in self.workers):
            self._assign()
            pipes = {worker.pipe: worker for worker in self.workers}
            for pipe in wait(list(pipes), timeout=POLL_SECONDS):
                self.on_message(pipes[pipe])  # type: ignore[index]
            for worker in self.workers:
                self._kill_if_incomplete(worker)
            self._report_progress()
        for worker in self.workers:
            worker.pipe.close()  # a worker ends when its pipe is closed
            worker.wait()

    def _kill_if_incomplete(self, worker: WorkerProcess) -> None:
        """Kill a worker that has lost one of its processes: the rest of them would wait for it for ever.

        Not at once, because the first process may still report what it was lost over.
        """
        if worker.pack and any(other.poll() is not None for other in worker.others):
            worker.incomplete_since = worker.incomplete_since or time.monotonic()
            if time.monotonic() - worker.incomplete_since > SECONDS_FOR_LAST_WORDS:
                worker.kill()

    def _assign(self) -> None:
        """Give every idle worker a pack, and start one more worker where a device is free."""
        now = time.monotonic()
        for _ in range(len(self.queue)):
            pack = self.queue.popleft()
            idle = next((worker for worker in self.workers if not worker.pack), None)
            if any(self.not_before.get(job.key, 0) > now for job in pack):
                self.queue.append(pack)
                continue
            if idle is None and self.free_devices:
                idle = self._start(self.free_devices.popleft())
            if idle is None:
                self.queue.appendleft(pack)
                return
            idle.pack, idle.stage, idle.trained = pack, "", 0.0
            with suppress(OSError):  # it has just died; the end of its pipe will say so
                idle.pipe.send(pack)

    def _start(self, devices: tuple[str, ...]) -> WorkerProcess:
        """A new worker with one process per device."""
        rendezvous = ""
        if len(devices) > 1:
            folder = self.rendezvous_folders.enter_context(tempfile.TemporaryDirectory(prefix="fairssl-"))
            rendezvous = f"file://{folder}/rendezvous"
        started = [self._start_process(device, len(devices), rank, rendezvous) for rank, device in enumerate(devices)]
        (process, pipe), *others = started
        for _, unused_pipe in others:
            unused_pipe.close()
        worker = WorkerProcess(devices, process, pipe, [other for other, _ in others])
        self.workers.append(worker)
        return worker

    def _start_process(
        self, device: str, world_size: int, rank: int, rendezvous: str
    ) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = socket.socketpair()
        threads = {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
        # Keeping freed memory spares a step its page faults, a seventh of a small training's time; glibc reads this at start.
        malloc = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
        code = "import json, sys; sys.path[:] = json.loads(sys.argv[1])\n"  # plugins lie where this process finds them
        code += "from fairssl.execute.processes import serve; serve(int(sys.argv[2]))"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code, json.dumps(sys.path), str(theirs.fileno())],
            env={**malloc, **os.environ, **threads},
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=2,  # this command's stdout is for its table
        )
        theirs.close()
        pipe = Connection(ours.detach())
        settings = replace(self.settings, device=device)
        with suppress(OSError):
            pipe.send((self.store.root, settings, self.threads, os.getpid(), (world_size, rank, rendezvous)))
        return process, pipe

    def on_message(self, worker: WorkerProcess) -> None:
        """Take one message of a worker's; the end of its pipe means that it is dead."""
        try:
            kind, *rest = worker.pipe.recv()
        except (EOFError, OSError):
            self.on_death(worker)
            return
        if kind == "stage":
            what, done, total = rest
            worker.stage = what
            worker.trained = done / total if what == "train" and total else worker.trained
            if len(self.workers) == 1:
                self.log.stage(what, done, total)
        elif kind == "note":
            self.log.note(*rest)
        elif kind == "run":
            runs = (run for job in worker.pack for run in job.runs)
            self.recorded.add(rest[0].key)
            self.log.done(next(run for run in runs if run.spec.key == rest[0].key), rest[0])
        elif kind == "end":
            claimed_elsewhere = tuple(job for job in worker.pack if job.key in rest[0])
            self._release_pack(worker, claimed_elsewhere)
            if claimed_elsewhere:
                self.queue.append(claimed_elsewhere)
        elif kind == "broken":  # each time a run has got its record, so this has an end
            left = self._without_record(worker.pack)
            self._release_pack(worker, left)
            self.queue.extend((job,) for job in left)  # alone, so that it is plain which one is to blame
            self.shut_down(worker)
        elif kind == "not captured":  # once for each kind of step by each worker that was there already
            text, step_key = rest
            if step_key not in self.settings.eager_steps:
                self.log.note(text)
            self.settings = replace(self.settings, eager_steps=self.settings.eager_steps | {step_key})
            left = self._without_record(worker.pack)
            self._release_pack(worker, left)
            self.shut_down(worker)
            self.queue.appendleft(tuple(left))
        else:
            raise rest[0]

    def _without_record(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with those of their runs that have not been recorded in this command."""
        left = [replace(job, runs=tuple(run for run in job.runs if run.spec.key not in self.recorded)) for job in jobs]
        return [job for job in left if job.runs]

    def _release_pack(self, worker: WorkerProcess, left: Sequence[Job]) -> None:
        """Mark a worker idle. The jobs of its pack but those in `left` are finished; another command may be at those."""
        self.finished += len(worker.pack) - len(left)
        self.not_before.update({job.key: time.monotonic() + POLL_SECONDS for job in left})
        worker.pack = ()

    def _report_progress(self) -> None:
        """Tell how many workers are at which stage. One alone also reports its stage, which has the share it has trained."""
        busy = [worker for worker in self.workers if worker.pack]
        stages = Counter(worker.stage or "starting" for worker in busy)
        at_work = ", ".join(f"{n} {stage}" for stage, n in sorted(stages.items()))
        workers = f"{counted(len(busy), 'worker')} ({at_work})" if busy else "0 workers"
        trained = sum(worker.trained * len(worker.pack) for worker in busy) if len(self.workers) > 1 else 0.0
        what = f"{workers}, {self.finished} of {counted(self.n_jobs, 'pretraining')} done"
        self.log.overall(what, self.finished + trained, self.n_jobs)

    def shut_down(self, worker: WorkerProcess) -> int | None:
        """End a worker and free its devices; the exit code of the process that ended first, as far as can be told, or
        None if none ended by itself."""
        self.workers.remove(worker)
        worker.pipe.close()
        failed = [code for code in (other.poll() for other in worker.others) if code]
        with suppress(subprocess.TimeoutExpired):
            worker.process.wait(SECONDS_FOR_LAST_WORDS)
        code = worker.process.poll()
        worker.kill()
        worker.wait()
        self.free_devices.append(worker.devices)
        return None if code is None else min([*failed, code])

    def on_death(self, worker: WorkerProcess) -> None:
        """Put the jobs of a dead worker back into the queue, each alone, or give up those that were tried `DEATHS` times."""
        code = self.shut_down(worker)
        if code is None:
            how = "hung"
        elif code < 0:
            how = f"died (signal {signal.Signals(-code).name}{'; out of memory?' if code == -9 else ''})"
        else:
            how = f"died (exit code {code})"
        if not worker.pack:
            raise RuntimeError(f"a worker process could not start: it {how}; what it said is above")
        left = self._without_record(worker.pack)
        self.finished += len(worker.pack) - len(left)
        for job in reversed(left):
            self.deaths[job.key] += 1
            what = f"the worker process of {job.runs[0].name} {how}"
            if self.deaths[job.key] < DEATHS:
                self.log.note(f"{what}; another one goes on from its checkpoint")
                self.queue.appendleft((job,))
                continue
            self.log.note(f"{what} again; given up")
            write_lost(job, self.store, f"{what}, {DEATHS} times", self.log)
            self.finished += 1

    def stop(self) -> None:
        """Ask all workers to write a checkpoint and end, and wait for it; a second Ctrl-C, or an error, kills them."""
        for worker in self.workers:
            for process in (worker.process, *worker.others):
                process.terminate()
        try:
            for worker in self.workers:
                worker.wait()
        finally:
            for worker in self.workers:
                worker.kill()
                worker.wait()
                worker.pipe.close()


class PipeReporter:
    """A worker's reporter: sends everything to the parent, stages a few times a second. A dead parent means stop."""

    def __init__(self, pipe: Connection, stop: GracefulStop) -> None:
        self.pipe, self.stop = pipe, stop
        self._what, self._sent_at = "", 0.0

    def send(self, *message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            self.stop.ask(signal.SIGTERM)

    def stage(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what or done == total or now - self._sent_at > 0.3:
            self._what, self._sent_at = what, now
            self.send("stage", what, done, total)

    def overall(self, what: str, done: float, total: int) -> None:
        pass

    def note(self, text: str, detail: str = "") -> None:
        self.send("note", text, detail)

    def done(self, run: Run, record: Record) -> None:
        self.send("run", record)


def serve(fd: int) -> None:
    """The main function of a worker process: take jobs from the pipe until it is closed."""
    stop, code = GracefulStop(), 0
    pipe = Connection(fd)
    with stop.listening():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks by SIGTERM
        try:
            root, settings, threads, parent, (world_size, rank, rendezvous) = pipe.recv()
            _stop_with(parent)
            alone = world_size == 1
            with nullcontext() if alone else distributed.process_group(settings.device, world_size, rank, rendezvous):
                _take_packs(pipe if rank == 0 else None, root, settings, threads, stop)
        except (EOFError, KeyboardInterrupt):
            pass
        except SystemExit as error:
            code = int(error.code or 0)
        except WorkerBroken:
            code = 1
        except UserError as error:  # the processes have not found each other
            print(f"fairssl: {error}", file=sys.stderr)
            code = 2
    os._exit(stop.exit_code if stop() else code)  # no exit handler may keep a worker whose parent is gone


def _take_packs(pipe: Connection | None, root: Path, settings: Settings, threads: int, stop: GracefulStop) -> None:
    """Do the packs that come from the pipe; without a pipe, follow the first of several processes."""
    torch.set_num_threads(threads)
    with suppress(Stopped):
        if pipe is None:
            follow(settings, root, stop)
            return
        log = PipeReporter(pipe, stop)
        try:
            worker = Worker(RunStore(root), settings, log, stop)
            while not stop():
                try:
                    pack = pipe.recv()
                except EOFError:
                    break
                claimed_elsewhere: list[Job] = []
                try:
                    claimed_elsewhere = worker.run(pack)
                except StepNotCaptured as error:
                    log.send("not captured", str(error), error.step_key)
                    raise
                except WorkerBroken as error:
                    if error.recorded:
                        log.send("broken")
                    raise
                log.send("end", [job.key for job in claimed_elsewhere])
            worker.dismiss()
        except (UserError, OSError) as error:
            log.send("error", error)


def _stop_with(parent: int) -> None:
    """Stop, with a checkpoint, when the process `parent` ends in whatever way; give the checkpoint half a minute."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30.0)
        os._exit(75)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":  # at once, where the kernel can
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
