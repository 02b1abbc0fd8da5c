"""Pretrainings and the cells that share them: the same code in this process, in a worker, on Ray and on Slurm."""

from __future__ import annotations

import gc
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from fairssl.loggers import Logger, open_logger
from fairssl.pipeline import Cell, Embedded, Evaluation, SplitsCache, environment, facts, prepare
from fairssl.store import Measured, Predictions, Record, RunStore, State, StoreError, reason_of
from fairssl.types import Splits, Undefined, UserError
from fairssl.watch import Live, is_due, name_of

if TYPE_CHECKING:
    import torch

    from fairssl.train import Trainer


@dataclass(frozen=True)
class Settings:
    """How a grid is run. Nothing here is part of a key, or may change a result."""

    roots: Mapping[str, Path | None]  # dataset -> where it lies
    device: str = "cpu"
    retry_failed: bool = False
    checkpoint_seconds: float = 60.0
    checkpoint_epochs: int = 0  # 0: by the clock alone
    loggers: tuple[str, ...] = ()  # besides the CSV
    pack: int = 0  # pretrainings that share a device at a time; 0: as many as fill it


@dataclass(frozen=True)
class Job:
    """A pretraining and the cells that need it."""

    key: str
    cells: tuple[Cell, ...] = field(repr=False)


class Stop:
    """Turns SIGTERM and Ctrl-C into a stop between two steps, with a checkpoint; outside training they act at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._training = False

    def __call__(self) -> bool:
        return self.signal is not None

    def ask(self, number: int) -> None:
        """As if the signal had come, but never at once."""
        self.signal = self.signal or number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        # A second Ctrl-C does not wait for the step. A second SIGTERM is the same wish: a group of processes that is sent
        # one gets it from the sender and from its parent.
        if not self._training or (self.signal is not None and number == signal.SIGINT):
            self.signal = self.signal or number
            raise KeyboardInterrupt
        self.signal = self.signal or number

    @contextmanager
    def listening(self, *more: int) -> Iterator[None]:
        """Listen to SIGTERM, SIGINT and `more` during the block; outside the main thread, to nothing."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT, *more)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def training(self) -> Iterator[None]:
        self._training = True
        try:
            yield
        finally:
            self._training = False

    @property
    def exit_code(self) -> int:
        """75 after SIGTERM, so that a scheduler requeues; 130 after Ctrl-C."""
        return 130 if self.signal in (None, signal.SIGINT) else 75


class Log(Protocol):
    """What a launch reports while it goes."""

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on now."""

    def overall(self, what: str, done: float, total: int) -> None:
        """How many of all pretrainings are done, the parts of those at work included."""

    def note(self, text: str) -> None:
        """Something the user should know, said once."""

    def done(self, cell: Cell, record: Record) -> None:
        """A cell has its record."""


class WorkerBroken(RuntimeError):
    """This process can do no more work: its GPU answers every call with an error, or something failed in one of several
    processes that train a run together, and the others may wait for it for ever.

    `recorded`: a cell that it had has its record now, and those without one are for another process. Else a process was
    lost, and the run can be tried again.
    """

    def __init__(self, message: str, recorded: bool) -> None:
        super().__init__(message)
        self.recorded = recorded


class Worker:
    """Takes jobs, one pack after the other, on one device; or, first of several processes, on all of theirs."""

    def __init__(
        self, store: RunStore, settings: Settings, log: Log, stop: Stop, splits: SplitsCache | None = None
    ) -> None:
        import torch

        from fairssl import world
        from fairssl.pipeline import pick_device

        self.store, self.settings, self.log, self.stop = store, settings, log, stop
        self.device = pick_device(settings.device)
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)  # or torch would take memory of the first GPU too
        self.splits = splits or SplitsCache(settings.roots, log.stage)
        self.leads = world.rank() == 0  # reads and writes files, and judges
        self._placed: tuple[Splits, torch.Tensor] | None = None

    def run(self, jobs: Sequence[Job]) -> list[Job]:
        """Do what of the jobs, which train together, is still to do; gives those that another live process is at.

        A cell that fails leaves a record that says so and stops no other. `UserError` (`StoreError` for a disk that
        refuses), `Stopped` and KeyboardInterrupt pass through, and `WorkerBroken` where this process cannot go on.
        """
        from fairssl import world

        held = []
        with ExitStack() as claims:
            due = []
            for job in jobs:
                if not claims.enter_context(self.store.claim(job.key)):
                    held.append(job)
                    continue
                cells = [c for c in job.cells if is_due(self.store.state(c.spec.key), self.settings.retry_failed)]
                if cells:  # else another process has been here since the plan was made
                    due.append(Job(job.key, tuple(cells)))
            if due:
                try:
                    self._run(world.from_first(due))
                finally:
                    for job in due:
                        self._leave(job.key)
        return held

    def follow(self) -> None:
        """Be one of several processes: do what the first says until it has said `dismiss`."""
        from fairssl import world

        while (jobs := world.from_first(None)) is not None:
            self._run(jobs)

    def dismiss(self) -> None:
        """Let those that `follow` go."""
        from fairssl import world

        world.from_first(None)

    def _leave(self, key: str) -> None:
        """Take the work folder away once the pretraining is whole; a checkpoint of an unfinished one stays."""
        if self.store.has_pretrain(key):
            self.store.clear_work(key)

    def _run(self, jobs: Sequence[Job]) -> None:
        import torch

        from fairssl import world

        splits = self.splits.get(jobs[0].cells[0].spec.data)
        failed = False
        packs = [list(jobs)]
        with self._noise_kept():
            while packs:
                runs = self._trained(packs.pop(0), splits)
                self._leave_lost_device([run for run in runs if run.error is not None], splits)
                alone = self._without_memory(runs)
                packs += [[run.job] for run in alone]
                runs = [run for run in runs if run not in alone]
                while runs:
                    failed |= self._finish(runs.pop(0), splits)
                if packs:  # what those before left in cycles may be large
                    gc.collect()
                    torch.cuda.empty_cache()
        if failed and world.size() > 1:
            raise WorkerBroken(f"{name_of(jobs[0].cells[0])} failed", recorded=True)

    @contextmanager
    def _noise_kept(self) -> Iterator[None]:
        """Leave the global generators as they were, where the device still takes orders."""
        from fairssl.train import get_noise, set_noise

        before = get_noise(self.device)
        try:
            yield
        finally:
            if not self._device_lost():
                set_noise(self.device, before)

    def _device_lost(self) -> bool:
        """Whether the GPU answers with an error from now on, as after an illegal access: all that this process could do on
        it would fail."""
        import torch

        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def _leave_lost_device(self, bad: Sequence[_Run], splits: Splits) -> None:
        """`WorkerBroken` if the device is lost, or may be after a failed capture.

        One of the runs that failed has its record then, so that no command finds the same again; the others may not be to
        blame, and are left to another process with what has been trained already.
        """
        from fairssl.train import Diverged, NotCaptured

        blamed = [run for run in bad if isinstance(run.error, NotCaptured)][:1]
        blamed = blamed or [run for run in bad if not isinstance(run.error, Diverged)][:1]
        if not blamed or not (isinstance(blamed[0].error, NotCaptured) or self._device_lost()):
            return
        run = blamed[0]
        name = name_of(run.job.cells[0])
        self._ended_badly(run, splits)
        if run.packed > 1 and not isinstance(run.error, NotCaptured):
            self.log.note(
                f"{name}: {self.device} was lost while {run.packed} seeds had it; --retry-failed --pack 1 tells whether "
                "this one is to blame"
            )
        raise WorkerBroken(f"{name} failed, and {self.device} with it", recorded=True)

    def _without_memory(self, runs: Sequence[_Run]) -> list[_Run]:
        """Of a pack that nobody asked for, the runs that the device had no memory for beside the others."""
        from fairssl.data import is_out_of_memory

        if len(runs) == 1 or self.settings.pack:
            return []
        found = [run for run in runs if run.error is not None and is_out_of_memory(run.error)]
        if found:
            self.log.note(
                f"{name_of(found[0].job.cells[0])}: out of memory with {len(runs)} seeds at once; {len(found)} are "
                "trained again, one at a time"
            )
        return found

    def _finish(self, run: _Run, splits: Splits) -> bool:
        """Records for a run's cells; whether one failed."""
        return self._judge(run, splits) if run.error is None else self._ended_badly(run, splits)

    def _trained(self, jobs: Sequence[Job], splits: Splits) -> list[_Run]:
        """The jobs' runs, with their trainers at the last step, or with what went wrong."""
        from fairssl.train import Stopped, together

        runs = [_Run(job, Live(self.store, job.key, job.cells) if self.leads else None, self.log) for job in jobs]
        for run in runs:
            try:
                self._prepare(run, splits)
            except Exception as error:
                run.error = error
        going = [run for run in runs if run.error is None and not run.saved]
        for run in going:
            run.packed = len(going)
        with self.stop.training():
            ended = together([run.trainer for run in going], [self._training(run) for run in going])
        for run, end in zip(going, ended, strict=True):
            if isinstance(end, Stopped):
                raise end
            run.error = end
        for run in runs:
            if run.error is not None:  # nothing of it may stay on the device, also not in the error's frames
                traceback.clear_frames(run.error.__traceback__)
                run.__dict__.pop("trainer", None)
        return runs

    def _prepare(self, run: _Run, splits: Splits) -> None:
        """Give the run its trainer: at the first step, or with the weights that the store has."""
        from fairssl import world

        job = run.job
        spec = job.cells[0].spec
        run.trainer = trainer = prepare(spec, splits, self.device, self._images(splits, spec.data.dataset))
        saved = world.from_first(self.store.read_pretrain(job.key) if self.leads else None)
        if saved is not None:
            trainer.load_weights(saved[0])
            run.saved = True
            return
        for name, stream in trainer.streams.items():
            if stream.n_images < spec.train.batch_of(name):
                self.log.note(f"the {name!r} stream has {stream.n_images} images: that is its batch, each step")
        run.views_per_step = sum(s.batch_size for s in trainer.streams.values()) * trainer.n_views
        if run.live is not None:
            run.live.views_per_step = run.views_per_step

    def _images(self, splits: Splits, dataset: str) -> torch.Tensor:
        """The training images where the loop reads them; runs on the same splits share them."""
        from fairssl.data import free_memory, place

        if self._placed is None or self._placed[0] is not splits:
            self._placed = None  # free the last ones first
            images = place(splits.train.images, self.device)
            if images.device.type != self.device.type:
                gigabytes, free = images.nbytes / 1e9, free_memory(self.device) / 1e9
                self.log.note(
                    f"{dataset}: {gigabytes:.1f} GB of images are streamed from the host; {self.device} has {free:.1f} "
                    "GB free, and half of that is for training"
                )
            self._placed = (splits, images)
        return self._placed[1]

    def _training(self, run: _Run) -> Iterator[None]:
        """The run's steps, and then its place in the store."""
        job, trainer = run.job, run.trainer
        cell = job.cells[0]
        work = self.store.work_dir(job.key) if self.leads else None
        logger: Logger | None = None

        def epoch(row: Mapping[str, float]) -> None:
            nonlocal logger
            if work is None:  # the first process writes for all
                return
            if logger is None:  # now it is known where the training went on from
                before, spec = trainer.history[:-1], cell.spec.model_dump(mode="json")
                logger = open_logger(self.settings.loggers, self.store.root, work, job.key, name_of(cell), spec, before)
            logger.epoch(row)

        every = self.settings.checkpoint_seconds, self.settings.checkpoint_epochs
        try:
            yield from trainer.advance(work, run.stage, self.stop, *every, epoch)
        finally:
            if logger is not None:
                logger.close()
        self._keep(run)

    def _keep(self, run: _Run) -> None:
        """Write a finished pretraining into the store, and down what it cost."""
        from fairssl import world

        trainer, steps = run.trainer, run.trainer.n_steps - run.trainer.resumed_at
        seconds = trainer.seconds / run.packed  # its share, where several had the device
        run.timings["train_seconds"] = seconds
        if trainer.first_epoch_seconds is not None:
            run.timings["first_epoch_seconds"] = trainer.first_epoch_seconds / run.packed
        if run.packed > 1:
            run.timings["packed"] = run.packed
        if world.size() > 1:
            run.timings["devices"] = world.size()
        if steps:
            run.timings["views_per_second"] = run.views_per_step * steps / max(seconds, 1e-9)
            run.timings["seconds_per_epoch"] = seconds / steps * trainer.steps_per_epoch
        if steps or not trainer.n_steps:
            run.timings.setdefault("seconds_per_epoch", 0.0)
            run.timings["steps_per_epoch"] = trainer.steps_per_epoch if trainer.n_steps else 0
        if self.leads:
            key, spec = run.job.key, run.job.cells[0].spec.model_dump(mode="json")
            content = {"pretrain_key": key, "spec": spec}
            self.store.write_pretrain(key, content, trainer.parameters_and_buffers(), trainer.history)

    def _ended_badly(self, run: _Run, splits: Splits) -> bool:
        """Records for the cells of a pretraining that did not end well; whether it failed, and did not just diverge."""
        from fairssl import world
        from fairssl.data import is_out_of_memory
        from fairssl.train import Diverged

        error = run.error
        assert error is not None
        self._leave_incomplete(run.job, error)
        if isinstance(error, UserError):  # a StoreError is one
            raise error
        if isinstance(error, OSError):
            raise StoreError(self.store.root, error) from error
        if isinstance(error, Diverged):
            self._all_ended(run.job.cells, "diverged", str(error), splits)
            return False
        text = "".join(traceback.format_exception(error))
        if not self.leads:  # it writes no record, and may be the only one that knows
            print(f"fairssl: process {world.rank()}: {reason_of(text)}", file=sys.stderr)
        if run.packed > 1 and is_out_of_memory(error):
            self.log.note(
                f"{name_of(run.job.cells[0])}: out of memory with {run.packed} seeds at once; --pack 1 needs less"
            )
        self._all_ended(run.job.cells, "failed", text, splits)
        return True

    def _leave_incomplete(self, job: Job, error: Exception) -> None:
        """`WorkerBroken` where the error says that another of the processes is gone, and nothing about the run."""
        from fairssl import world

        if world.is_loss(error):
            what = f"{name_of(job.cells[0])}: one of {world.size()} processes is gone"
            raise WorkerBroken(what, recorded=False) from error

    def _judge(self, run: _Run, splits: Splits) -> bool:
        """A record for every cell of a finished pretraining; whether one failed."""
        embedded: Embedded | None = None
        embedded_on: object = None
        failed = False
        for cell in run.job.cells:
            started = time.perf_counter()
            try:
                splits = self.splits.get(cell.spec.data)
                for note in splits.notes:
                    self.log.note(f"{cell.spec.data.dataset}: {note}")
                if embedded is None or embedded_on != cell.spec.data:
                    embedded, embedded_on = Embedded(run.trainer, splits, run.stage), cell.spec.data
                if not self.leads:
                    continue
                found = embedded.evaluate(cell.spec)
            except (StoreError, UserError, KeyboardInterrupt):
                raise
            except Exception as error:  # whatever a cell dies of belongs in its record
                self._leave_incomplete(run.job, error)
                self._all_ended([cell], "failed", traceback.format_exc(), splits)
                failed = True
                if self._device_lost():
                    what = f"{name_of(cell)} failed, and {self.device} with it"
                    raise WorkerBroken(what, recorded=True) from error
                continue
            spent = {**run.timings, "evaluate_seconds": time.perf_counter() - started}
            run.timings = {}  # only the cell that paid for the training says what it cost
            record, predictions = _result(cell, found, splits, self.device, spent)
            self.log.done(cell, self.store.write_result(record, predictions))
        return failed

    def _all_ended(self, cells: Sequence[Cell], state: State, error: str, splits: Splits) -> None:
        for cell in cells if self.leads else ():
            record = Record(**_frame(cell, self.device, splits), state=state, error=error)
            self.log.done(cell, self.store.write_result(record))


class _Run:
    """A pretraining in a worker's hands."""

    trainer: Trainer

    def __init__(self, job: Job, live: Live | None, log: Log) -> None:
        self.job, self.live, self.log = job, live, log
        self.error: Exception | None = None  # what it ended with before its last step
        self.saved = False  # the store has it already
        self.packed = 1  # how many train on the device at the same time
        self.views_per_step = 0
        self.timings: dict[str, float] = {}

    def stage(self, what: str, done: int, total: int) -> None:
        self.log.stage(what, done, total)
        if self.live is not None:
            self.live(what, done, total)


def write_lost(job: Job, store: RunStore, error: str, log: Log) -> None:
    """Failed records for the cells of a job whose workers died over it; what has ended well stays."""
    for cell in job.cells:
        if store.state(cell.spec.key) != "ok":
            record = Record(spec=cell.spec.model_dump(mode="json"), key=cell.spec.key, state="failed", error=error)
            log.done(cell, store.write_result(record))


def _result(
    cell: Cell, found: Evaluation, splits: Splits, device: torch.device, timings: dict[str, float]
) -> tuple[Record, Predictions]:
    outcome = found.outcome
    cells = {
        str(target): {
            label: int(((outcome.target == target) & (outcome.group == code)).sum())
            for code, label in enumerate(outcome.groups)
        }
        for target in (0, 1)
    }
    record = Record(
        **_frame(cell, device, splits),
        **_split_values(found.test),
        state="ok",
        cells=cells,
        validation=Measured(**_split_values(found.val)),
        leakage=dict(found.leakage),
        intervals=_plain(found.intervals),
        noise_floor=_plain(found.noise_floor),
        timings=timings,
    )
    return record, Predictions(splits.test.ids, outcome.score, outcome.target, outcome.group)


def _plain(found: Mapping[str, Any]) -> dict[str, Any]:
    """Intervals or floors as JSON: None where no replicate had a value."""

    def value(one: Any, name: str) -> Any:
        found = getattr(one, name)
        return None if isinstance(found, Undefined) else found

    return {symbol: {f.name: value(one, f.name) for f in fields(one)} for symbol, one in found.items()}


def _split_values(values: Any) -> dict[str, Any]:
    """Values as a record holds them: None where undefined, and the reasons apart."""
    return {
        "metrics": {k: None if isinstance(v, Undefined) else float(v) for k, v in values.items()},
        "undefined": {k: v.reason for k, v in values.items() if isinstance(v, Undefined)},
    }


def _frame(cell: Cell, device: torch.device, splits: Splits) -> dict[str, Any]:
    """What every record has, however it ended."""
    return {
        "spec": cell.spec.model_dump(mode="json"),
        "key": cell.spec.key,
        "facts": facts(cell.spec, splits),
        "notes": list(splits.notes),
        "env": environment(device),
        "metric_versions": cell.spec.metrics,
    }
