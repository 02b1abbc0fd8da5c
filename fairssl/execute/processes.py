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
from fairssl.types import UserError

SECONDS_TO_FOLLOW = 15.0  # that a worker has to end once it is broken
SECONDS_TO_END = 60.0  # that it has where one of its processes may still write a checkpoint


@dataclass
class _Process:
    """A worker as its parent sees it: a process, or the first of several that train each run together."""

    devices: tuple[str, ...]
    process: subprocess.Popen[bytes]
    pipe: Connection
    others: list[subprocess.Popen[bytes]]
    pack: tuple[Job, ...] = ()
    part: float = 0.0  # of its pack
    incomplete_since: float | None = None  # when one of the others was first seen dead

    def wait(self) -> int:
        """Wait for all of them to end; how the first did. Of several none has much left to do once one has ended."""
        members = self.process, *self.others
        deadline = math.inf
        while any(one.poll() is None for one in members):
            if any(one.poll() is not None for one in members):
                deadline = min(deadline, time.monotonic() + SECONDS_TO_END)
            if time.monotonic() > deadline:  # in a message that nobody will answer
                self.kill()
            time.sleep(0.02)
        return self.process.wait()

    def kill(self) -> None:
        for one in (self.process, *self.others):
            one.kill()


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
    crew = _Crew(list(jobs), store, workers, settings, log)
    try:
        crew.work()
    except BaseException:
        crew.dismiss()
        raise
    finally:
        crew.meetings.close()


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


class _Crew:
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
        self.processes: list[_Process] = []
        self.deaths: Counter[str] = Counter()
        self.told: set[str] = set()  # runs that have been recorded in this command
        self.not_before: dict[str, float] = {}  # of jobs that another command holds
        self.meetings = ExitStack()  # folders in which the processes of one worker find each other

    def work(self) -> None:
        while self.queue or any(one.pack for one in self.processes):
            self._assign()
            pipes = {one.pipe: one for one in self.processes}
            for pipe in wait(list(pipes), timeout=POLL_SECONDS):
                self._hear(pipes[pipe])  # type: ignore[index]
            for one in self.processes:
                self._watch(one)
        for one in self.processes:
            one.pipe.close()  # that is its sign to go
            one.wait()

    def _watch(self, one: _Process) -> None:
        """Kill a worker of which a process has died: the rest of them would wait for ever. The first may have something to
        say about it before that."""
        if one.pack and any(other.poll() is not None for other in one.others):
            one.incomplete_since = one.incomplete_since or time.monotonic()
            if time.monotonic() - one.incomplete_since > SECONDS_TO_FOLLOW:
                one.kill()

    def _assign(self) -> None:
        """Give every idle worker a pack, and start one more where a device is free."""
        now = time.monotonic()
        for _ in range(len(self.queue)):
            pack = self.queue.popleft()
            idle = next((one for one in self.processes if not one.pack), None)
            if any(self.not_before.get(job.key, 0) > now for job in pack):
                self.queue.append(pack)
                continue
            if idle is None and self.free_devices:
                idle = self._start(self.free_devices.popleft())
            if idle is None:
                self.queue.appendleft(pack)
                return
            idle.pack, idle.part = pack, 0.0
            with suppress(OSError):  # it has just died; the pipe's end will say so
                idle.pipe.send(pack)

    def _start(self, devices: tuple[str, ...]) -> _Process:
        meeting = ""
        if len(devices) > 1:
            folder = self.meetings.enter_context(tempfile.TemporaryDirectory(prefix="fairssl-"))
            meeting = f"file://{folder}/meeting"
        started = [self._launch(device, (len(devices), i, meeting)) for i, device in enumerate(devices)]
        (process, pipe), *others = started
        for _, other in others:
            other.close()
        one = _Process(devices, process, pipe, [other for other, _ in others])
        self.processes.append(one)
        return one

    def _launch(self, device: str, place: tuple[int, int, str]) -> tuple[subprocess.Popen[bytes], Connection]:
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
        with suppress(OSError):
            pipe.send((self.store.root, replace(self.settings, device=device), self.threads, os.getpid(), place))
        return process, pipe

    def _hear(self, one: _Process) -> None:
        try:
            kind, *rest = one.pipe.recv()
        except (EOFError, OSError):
            self._bury(one)
            return
        if kind == "stage":
            what, done, total = rest
            one.part = done / total if what == "train" and total else one.part
            self._show(what, done, total)
        elif kind == "note":
            self.log.note(rest[0])
        elif kind == "run":
            runs = (run for job in one.pack for run in job.runs)
            self.told.add(rest[0].key)
            self.log.done(next(run for run in runs if run.spec.key == rest[0].key), rest[0])
        elif kind == "end":
            held = tuple(job for job in one.pack if job.key in rest[0])
            self._over(one, held)
            if held:
                self.queue.append(held)
        elif kind == "broken":  # each time a run has got its record, so this has an end
            left = self._without_record(one.pack)
            self._over(one, left)
            self.queue.extend((job,) for job in left)  # alone, so that it is plain which one is to blame
            self._retire(one)
        elif kind == "not captured":  # once for each kind of step by each worker that was there already
            text, step_key = rest
            if step_key not in self.settings.eager_steps:
                self.log.note(text)
            self.settings = replace(self.settings, eager_steps=self.settings.eager_steps | {step_key})
            left = self._without_record(one.pack)
            self._over(one, left)
            self._retire(one)
            self.queue.appendleft(tuple(left))
        else:
            raise rest[0]

    def _without_record(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with those of their runs that have not been recorded in this command."""
        left = [replace(job, runs=tuple(c for c in job.runs if c.spec.key not in self.told)) for job in jobs]
        return [job for job in left if job.runs]

    def _over(self, one: _Process, left: Sequence[Job]) -> None:
        """A worker has let go of its pack, and of it these jobs are left; another command may be at them."""
        self.finished += len(one.pack) - len(left)
        self.not_before.update({job.key: time.monotonic() + POLL_SECONDS for job in left})
        one.pack = ()
        self._show("", 0, 0)

    def _show(self, what: str, done: int, total: int) -> None:
        busy = [one for one in self.processes if one.pack]
        names = f"{len(busy)} workers, {self.finished} of {self.n_jobs} pretrainings done"
        self.log.overall(names, self.finished + sum(one.part * len(one.pack) for one in busy), self.n_jobs)
        if len(self.processes) == 1 and what:
            self.log.stage(what, done, total)

    def _retire(self, one: _Process) -> int | None:
        """End a worker and free its devices; how it ended, by the one of its processes that went first, as far as one can
        tell, or None if it did not end by itself."""
        self.processes.remove(one)
        one.pipe.close()
        lost = [code for code in (other.poll() for other in one.others) if code]
        with suppress(subprocess.TimeoutExpired):
            one.process.wait(SECONDS_TO_FOLLOW)
        code = one.process.poll()
        one.kill()
        one.wait()
        self.free_devices.append(one.devices)
        return None if code is None else min([*lost, code])

    def _bury(self, one: _Process) -> None:
        """A worker is dead. Its jobs go back into the queue, each alone, or are given up."""
        code = self._retire(one)
        if code is None:
            how = "hung"
        elif code < 0:
            how = f"died (signal {signal.Signals(-code).name}{'; out of memory?' if code == -9 else ''})"
        else:
            how = f"died (exit code {code})"
        if not one.pack:
            raise RuntimeError(f"a worker process could not start: it {how}; what it said is above")
        left = self._without_record(one.pack)
        self.finished += len(one.pack) - len(left)
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

    def dismiss(self) -> None:
        """Ask all to leave a checkpoint and go, and wait for it; a second Ctrl-C, or an error, kills them."""
        for one in self.processes:
            for process in (one.process, *one.others):
                process.terminate()
        try:
            for one in self.processes:
                one.wait()
        finally:
            for one in self.processes:
                one.kill()
                one.wait()
                one.pipe.close()


class _ToParent:
    """A worker's log: everything goes through the pipe, stages a few times a second. A dead parent is a stop, no error."""

    def __init__(self, pipe: Connection, stop: GracefulStop) -> None:
        self.pipe, self.stop = pipe, stop
        self._what, self._sent = "", 0.0

    def send(self, *message: Any) -> None:
        try:
            self.pipe.send(message)
        except OSError:
            self.stop.ask(signal.SIGTERM)

    def stage(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if what != self._what or now - self._sent > 0.3:
            self._what, self._sent = what, now
            self.send("stage", what, done, total)

    def overall(self, what: str, done: float, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        self.send("note", text)

    def done(self, run: Run, record: Record) -> None:
        self.send("run", record)


def serve(fd: int) -> None:
    """The main function of a worker process: take jobs from the pipe until it is closed."""
    stop, code = GracefulStop(), 0
    pipe = Connection(fd)
    with stop.listening():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks by SIGTERM
        try:
            root, settings, threads, parent, (n, number, meeting) = pipe.recv()
            _die_with(parent)
            with distributed.process_group(settings.device, n, number, meeting) if n > 1 else nullcontext():
                _serve(pipe if number == 0 else None, root, settings, threads, stop)
        except (EOFError, KeyboardInterrupt):
            pass
        except SystemExit as error:
            code = int(error.code or 0)
        except WorkerBroken:
            code = 1
        except UserError as error:  # they have not met
            print(f"fairssl: {error}", file=sys.stderr)
            code = 2
    os._exit(stop.exit_code if stop() else code)  # no exit handler may keep a worker whose parent is gone


def _serve(pipe: Connection | None, root: Path, settings: Settings, threads: int, stop: GracefulStop) -> None:
    """Work through what comes from the pipe; without one, follow the first of several processes."""
    torch.set_num_threads(threads)
    with suppress(Stopped):
        if pipe is None:
            follow(settings, root, stop)
            return
        log = _ToParent(pipe, stop)
        try:
            worker = Worker(RunStore(root), settings, log, stop)
            while not stop():
                try:
                    pack = pipe.recv()
                except EOFError:
                    break
                held: list[Job] = []
                try:
                    held = worker.run(pack)
                except StepNotCaptured as error:
                    log.send("not captured", str(error), error.step_key)
                    raise
                except WorkerBroken as error:
                    if error.recorded:
                        log.send("broken")
                    raise
                log.send("end", [job.key for job in held])
            worker.dismiss()
        except (UserError, OSError) as error:
            log.send("error", error)


def _die_with(parent: int) -> None:
    """Stop, with a checkpoint, when the parent ends in whatever way; give the checkpoint half a minute."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30.0)
        os._exit(75)

    threading.Thread(target=watch, daemon=True).start()
    if sys.platform == "linux":  # at once, where the kernel can
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
