"""Carries a plan out: here, in worker processes, on Ray or on Slurm. What is done already is not done again.

Every executor hands the same `Job`s to the same `Worker`. Who holds a job's claim does it; whoever finds it held goes on
with another, so any number of commands may work on one runs folder at once.
"""

from __future__ import annotations

import ctypes
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
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from fairssl import registry
from fairssl.job import Job, Log, Settings, Stop, Worker, WorkerBroken, write_lost
from fairssl.loggers import need
from fairssl.pipeline import Cell, Plan, SplitsCache, check_streams
from fairssl.spec import RunSpec, check_share
from fairssl.store import Predictions, Record, RunStore
from fairssl.types import UserError
from fairssl.watch import Survey, name_of

SECONDS_TO_FOLLOW = 15.0  # that a worker has to end once it is broken
SECONDS_TO_END = 60.0  # that it has where one of its processes may still write a checkpoint
POLL_SECONDS = 0.5  # how often a job that another process holds is looked at again
DEATHS = 2  # a job whose worker died that often is given up


def jobs_of(found: Survey) -> list[Job]:
    """What is due, as jobs: what has still to be trained first, of those the longest, so that workers end together."""
    jobs = [Job(key, tuple(cells)) for key, cells in found.due.items()]

    def length(job: Job) -> int:
        spec = job.cells[0].spec
        return spec.train.epochs * len(spec.method.streams)

    return sorted(jobs, key=lambda job: (job.key not in found.to_train, -length(job)))


FULL = 4 * 1024 * 1024  # pixels of the views of a step that fill a large GPU: 1,024 views of 64 px
MOST = 8  # runs in a pack; unasked


def packs_of(jobs: Sequence[Job], settings: Settings, n_devices: int) -> list[tuple[Job, ...]]:
    """The jobs in packs that train together on one device: seeds of one cell, which share its images and its shapes.

    With `settings.pack` 0, alone on a CPU and on a GPU as many as fill it, unless that would leave another GPU idle.
    """
    alike: dict[str, list[Job]] = {}
    for job in jobs:
        alike.setdefault(job.cells[0].spec.seeds_key, []).append(job)
    packs = []
    for group in alike.values():
        n = settings.pack or _filling(group[0], settings.device, math.ceil(len(jobs) / n_devices))
        packs += [tuple(group[i : i + n]) for i in range(0, len(group), n)]
    return packs


def _filling(job: Job, device: str, at_most: int) -> int:
    if not device.startswith("cuda"):
        return 1
    spec = job.cells[0].spec
    parts = [registry.objectives.get(spec.method.objective.name)]
    parts += [registry.heads.get(head.name) for head in spec.method.heads]
    n_views = max(part.n_views for part in parts) * len(spec.method.streams)
    pixels = spec.train.batch_size * n_views * spec.data.image_size**2
    return max(1, min(MOST, at_most, FULL // pixels))


def check_devices(plan: Plan, n: int) -> None:
    """Refuse a batch that cannot be divided among `n` devices, before any data is read."""
    for cell in plan.cells:
        for stream in cell.spec.method.streams:
            check_share(stream, cell.spec.train.batch_of(stream), n)


def check_data(splits: SplitsCache, jobs: Sequence[Job], n_devices: int) -> None:
    """Read every dataset once: a mistake in the last one, and a set too small for its batches, is told before the first
    hour of training."""
    specs = {cell.spec.data.written: dict[object, RunSpec]() for job in jobs for cell in job.cells}
    for job in jobs:
        for spec in (cell.spec for cell in job.cells):
            batches = tuple((name, spec.train.batch_of(name)) for name in spec.method.streams)
            specs[spec.data.written].setdefault((batches, spec.method.sampler, spec.annotated), spec)
    for alike in specs.values():
        for spec in alike.values():
            check_streams(spec, splits.get(spec.data), n_devices)


def run_here(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Log,
    stop: Stop,
    wait: bool = True,
    n_workers: int = 1,
    splits: SplitsCache | None = None,
) -> None:
    """Do the jobs in this process, a pack at a time. Without `wait`, leave those that others are at to them. `n_workers`:
    how many processes there are with this one that were given these jobs. `splits`: where some may have been loaded."""
    worker = Worker(store, settings, log, stop, splits)
    left, finished = list(jobs), 0
    while left:
        held = []
        for pack in packs_of(left, replace(settings, device=str(worker.device)), n_workers):
            what = f"{name_of(pack[0].cells[0])}{f' and {len(pack) - 1} more seeds' if len(pack) > 1 else ''}"
            log.overall(f"{what} ({finished + 1} of {len(jobs)})", finished, len(jobs))
            busy = worker.run(pack)
            finished += len(pack) - len(busy)
            held += busy
        if len(held) == len(left):
            if not wait:
                return
            log.overall("waiting for another fairssl", finished, len(jobs))
            time.sleep(POLL_SECONDS)
        left = held


# --------------------------------------------------------------------------- worker processes


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
    log: Log,
    stop: Stop,
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


class _Crew:
    def __init__(
        self, jobs: list[Job], store: RunStore, workers: Sequence[tuple[str, ...]], settings: Settings, log: Log
    ) -> None:
        self.queue = deque(packs_of(jobs, replace(settings, device=workers[0][0]), len(workers)))
        self.n_jobs, self.finished = len(jobs), 0
        self.store, self.settings, self.log = store, settings, log
        asked = os.environ.get("OMP_NUM_THREADS", "")
        n_processes = sum(map(len, workers))
        self.threads = int(asked) if asked.isdecimal() else max(1, (os.cpu_count() or 1) // n_processes)
        self.free_devices = deque(workers)
        self.processes: list[_Process] = []
        self.deaths: Counter[str] = Counter()
        self.told: set[str] = set()  # cells that have been recorded in this command
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
        code += "from fairssl.launch import serve; serve(int(sys.argv[2]))"
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
        elif kind == "cell":
            cells = (cell for job in one.pack for cell in job.cells)
            self.told.add(rest[0].key)
            self.log.done(next(cell for cell in cells if cell.spec.key == rest[0].key), rest[0])
        elif kind == "end":
            held = tuple(job for job in one.pack if job.key in rest[0])
            self._over(one, held)
            if held:
                self.queue.append(held)
        elif kind == "broken":  # each time a cell has got its record, so this has an end
            left = self._without_record(one.pack)
            self._over(one, left)
            self.queue.extend((job,) for job in left)  # alone, so that it is plain which one is to blame
            self._retire(one)
        else:
            raise rest[0]

    def _without_record(self, jobs: Sequence[Job]) -> list[Job]:
        """The jobs with those of their cells that have not been recorded in this command."""
        left = [replace(job, cells=tuple(c for c in job.cells if c.spec.key not in self.told)) for job in jobs]
        return [job for job in left if job.cells]

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
            what = f"the worker process of {name_of(job.cells[0])} {how}"
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

    def __init__(self, pipe: Connection, stop: Stop) -> None:
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

    def done(self, cell: Cell, record: Record) -> None:
        self.send("cell", record)


def serve(fd: int) -> None:
    """The main function of a worker process: take jobs from the pipe until it is closed."""
    stop, code = Stop(), 0
    pipe = Connection(fd)
    with stop.listening():
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which asks by SIGTERM
        try:
            root, settings, threads, parent, (n, number, meeting) = pipe.recv()
            _die_with(parent)
            from fairssl import world

            with world.joined(settings.device, n, number, meeting) if n > 1 else nullcontext():
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


def _serve(pipe: Connection | None, root: Path, settings: Settings, threads: int, stop: Stop) -> None:
    """Work through what comes from the pipe; without one, follow the first of several processes."""
    import torch

    from fairssl.train import Stopped

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
                except WorkerBroken as error:
                    if error.recorded:
                        log.send("broken")
                    raise
                log.send("end", [job.key for job in held])
            worker.dismiss()
        except (UserError, OSError) as error:
            log.send("error", error)


def torchrun() -> tuple[int, int, int] | None:
    """(processes, number of this one, its number on this machine) where torchrun started this process; else None."""
    names = ("WORLD_SIZE", "RANK", "LOCAL_RANK")
    if any(name not in os.environ for name in (*names, "MASTER_ADDR", "MASTER_PORT")):
        return None
    for name in names:
        if not os.environ[name].isdecimal():
            raise UserError(f"{name}={os.environ[name]!r} in the environment: torchrun sets a number; take it out")
    n, number, local = (int(os.environ[name]) for name in names)
    if not number < n:
        raise UserError(
            f"RANK={number} WORLD_SIZE={n} in the environment: RANK must be below WORLD_SIZE; torchrun sets both"
        )
    return n, number, local


def follow(settings: Settings, root: Path, stop: Stop) -> None:
    """Be one of several processes that train each run together, until the first lets go."""
    from fairssl import world

    try:
        Worker(RunStore(root), settings, Silent(), stop).follow()
    except (UserError, OSError) as error:  # it may be true of this process alone
        print(f"fairssl: process {world.rank()}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except RuntimeError as error:
        if not (stop() or world.is_loss(error)):  # the first is gone, and says why, or its parent does
            raise


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


# --------------------------------------------------------------------------- Ray


def run_ray(
    jobs: Sequence[Job], store: RunStore, settings: Settings, log: Log, stop: Stop, workers: int, gpus: float
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
        log: Log,
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
        if outcome == "held":
            time.sleep(POLL_SECONDS)
            self.running[self.submit(job)] = job
        elif outcome != "unseen":
            alone = isinstance(outcome, dict)
            if alone:
                _unpack(outcome, self.store, job)
            ended = [cell for cell in job.cells if self.store.state(cell.spec.key) is not None]
            _tell(ended, self.store, self.log)
            left = tuple(cell for cell in job.cells if cell not in ended)
            if left and ended:  # a cell took the GPU with it
                rest = replace(job, cells=left)
                self.running[self.submit(rest, alone=alone)] = rest
            else:
                self._over(job)

    def _lost(self, job: Job, error: Exception) -> None:
        self.deaths[job.key] += 1
        what = f"the Ray task of {name_of(job.cells[0])} was lost ({type(error).__name__})"
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

    Else: `done`; `held` by another process; `broken`: done up to a cell that took the GPU with it; `unseen`: this node does
    not see the runs folder, nothing was done.
    """
    from fairssl.train import Stopped

    stop = Stop()
    with stop.listening():
        try:
            if not alone:
                if not seen.exists():
                    return "unseen"
                try:
                    return "held" if Worker(RunStore(root), settings, Silent(), stop).run([job]) else "done"
                except WorkerBroken:  # Ray ends a process after a task with a GPU
                    return "broken"
            with tempfile.TemporaryDirectory(prefix="fairssl-") as scratch:
                store = RunStore(scratch)
                store.prepare()
                _put(store.pretrain_dir(job.key), pretrained)
                with suppress(WorkerBroken):
                    Worker(store, settings, Silent(), stop).run([job])
                results = {cell.spec.key: _packed(store, "results", cell.spec.key) for cell in job.cells}
                return {"pretrain": _packed(store, "pretrain", job.key), "results": results}
        except Stopped as error:
            raise KeyboardInterrupt from error


class Silent:
    """A log that says nothing."""

    def stage(self, what: str, done: int, total: int) -> None:
        pass

    def overall(self, what: str, done: float, total: int) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def done(self, cell: Cell, record: Record) -> None:
        pass


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


def _tell(cells: Iterable[Cell], store: RunStore, log: Log) -> None:
    for cell in cells:
        record = store.read_record(cell.spec.key)
        if record is not None:
            log.done(cell, record)


# --------------------------------------------------------------------------- Slurm


def run_slurm(
    jobs: Sequence[Job],
    store: RunStore,
    settings: Settings,
    log: Log,
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
    old = {cell.spec.key: store.written_at(cell.spec.key) for job in jobs for cell in job.cells}

    def ended(cell: Cell) -> bool:
        key = cell.spec.key
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
                fresh = [c for c in job.cells if c.spec.key not in told and ended(c)]
                told.update(cell.spec.key for cell in fresh)
                _tell(fresh, store, log)
            left = [job for job in left if any(cell.spec.key not in told for cell in job.cells)]
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


@dataclass
class _SlurmWalk:
    """What a Slurm job does, as submitit wants it: a call, and what to requeue after a preemption."""

    jobs: list[Job] = field(repr=False)
    root: Path
    settings: Settings
    n_workers: int

    def __call__(self) -> None:
        import submitit

        from fairssl.train import Stopped

        stop = Stop()
        preempt = submitit.JobEnvironment()._usr_sig()
        try:
            with stop.listening(preempt):
                run_here(self.jobs, RunStore(self.root), self.settings, Silent(), stop, False, self.n_workers)
        except (Stopped, KeyboardInterrupt):
            if stop.signal != preempt:
                raise SystemExit(stop.exit_code) from None
            os.kill(os.getpid(), preempt)  # submitit's own handler is back: it requeues `checkpoint()` and ends us

    def checkpoint(self) -> Any:
        import submitit

        return submitit.helpers.DelayedSubmission(self)
