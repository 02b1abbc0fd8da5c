"""One pretraining and the cells that share it: the same code in this process, in a worker, on Ray and on Slurm."""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from fairssl.loggers import Logger, open_logger
from fairssl.pipeline import Cell, Embedded, Evaluation, SplitsCache, environment, facts, prepare
from fairssl.store import Measured, Predictions, Record, RunStore, State, StoreError
from fairssl.types import Progress, Splits, Undefined, UserError
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


@dataclass(frozen=True)
class Job:
    """What one worker takes at a time: a pretraining and the cells that need it."""

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
        if self.signal is not None or not self._training:  # a second Ctrl-C does not wait for the step
            self.signal = self.signal or number
            raise KeyboardInterrupt
        self.signal = number

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


class Worker:
    """Takes jobs, one after the other, on one device."""

    def __init__(self, store: RunStore, settings: Settings, log: Log, stop: Stop) -> None:
        from fairssl.pipeline import pick_device

        self.store, self.settings, self.log, self.stop = store, settings, log, stop
        self.device = pick_device(settings.device)
        self.splits = SplitsCache(settings.roots, log.stage)

    def run(self, job: Job) -> bool:
        """Do what of the job is still to do; False: another live process is at it, and nothing was done here.

        A cell that fails leaves a record that says so and stops no other. `UserError` (`StoreError` for a disk that
        refuses), `Stopped` and KeyboardInterrupt pass through.
        """
        with self.store.claim(job.key) as got:
            if not got:
                return False
            retry = self.settings.retry_failed
            cells = [cell for cell in job.cells if is_due(self.store.state(cell.spec.key), retry)]
            if cells:  # else another process has been here since the plan was made
                live = Live(self.store, job.key, cells)
                try:
                    self._run(job.key, cells, live)
                finally:
                    self._leave(job.key)
        return True

    def _leave(self, key: str) -> None:
        """Take the work folder away once the pretraining is whole; a checkpoint of an unfinished one stays."""
        if self.store.has_pretrain(key):
            self.store.clear_work(key)

    def _run(self, key: str, cells: Sequence[Cell], live: Live) -> None:
        from fairssl.train import Diverged, Stopped

        first = cells[0]
        timings: dict[str, float] = {}

        def stage(what: str, done: int, total: int) -> None:
            self.log.stage(what, done, total)
            live(what, done, total)

        splits = self.splits.get(first.spec.data)
        try:
            trainer = self._trained(first, splits, timings, live, stage)
        except (StoreError, UserError, Stopped, KeyboardInterrupt):
            raise
        except OSError as error:
            raise StoreError(self.store.root, error) from error
        except Diverged as error:
            self._all_ended(cells, "diverged", str(error), splits)
            return
        except Exception:  # the one broad catch: whatever a cell dies of belongs in its record
            self._all_ended(cells, "failed", traceback.format_exc(), splits)
            return
        embedded: Embedded | None = None
        embedded_on: object = None
        for cell in cells:
            started = time.perf_counter()
            try:
                splits = self.splits.get(cell.spec.data)
                for note in splits.notes:
                    self.log.note(f"{cell.spec.data.dataset}: {note}")
                if embedded is None or embedded_on != cell.spec.data:
                    embedded, embedded_on = Embedded(trainer, splits, stage), cell.spec.data
                found = embedded.evaluate(cell.spec)
            except (StoreError, UserError, KeyboardInterrupt):
                raise
            except Exception:
                self._all_ended([cell], "failed", traceback.format_exc(), splits)
                continue
            spent = {**timings, "evaluate_seconds": time.perf_counter() - started}
            timings = {}  # only the cell that paid for the training says what it cost
            record, predictions = _result(cell, found, splits, self.device, spent)
            self.log.done(cell, self.store.write_result(record, predictions))

    def _trained(self, cell: Cell, splits: Splits, timings: dict[str, float], live: Live, stage: Progress) -> Trainer:
        """The trainer at its last step: from the store, or trained on from its newest checkpoint."""
        import torch

        key, store = cell.spec.pretrain_key, self.store
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            trainer = prepare(cell.spec, splits, self.device)
            saved = store.read_pretrain(key)
            if saved is not None:
                trainer.load_weights(saved[0])
                return trainer
            for name, stream in trainer.streams.items():
                asked = cell.spec.train.annotated_batch_size if name == "annotated" else 0
                if stream.n_images < (asked or cell.spec.train.batch_size):
                    self.log.note(f"the {name!r} stream has {stream.n_images} images: that is its batch, each step")
            live.views_per_step = sum(s.batch_size for s in trainer.streams.values()) * trainer.n_views
            work, spec = store.work_dir(key), cell.spec.model_dump(mode="json")
            logger: Logger | None = None

            def epoch(row: Mapping[str, float]) -> None:
                nonlocal logger
                if logger is None:  # now it is known where the training went on from
                    before, names = trainer.history[:-1], self.settings.loggers
                    logger = open_logger(names, store.root, work, key, name_of(cell), spec, before)
                logger.epoch(row)

            every = self.settings.checkpoint_seconds, self.settings.checkpoint_epochs
            try:
                with self.stop.training():
                    seconds = trainer.run(work, stage, self.stop, *every, epoch)
            finally:
                if logger is not None:
                    logger.close()
        steps = trainer.n_steps - trainer.resumed_at
        timings["train_seconds"] = seconds
        if steps:
            timings["views_per_second"] = live.views_per_step * steps / max(seconds, 1e-9)
            timings["seconds_per_epoch"] = seconds / steps * trainer.steps_per_epoch
        if steps or not trainer.n_steps:
            timings.setdefault("seconds_per_epoch", 0.0)
            timings["steps_per_epoch"] = trainer.steps_per_epoch if trainer.n_steps else 0
        store.write_pretrain(
            key, {"pretrain_key": key, "spec": spec}, trainer.parameters_and_buffers(), trainer.history
        )
        return trainer

    def _all_ended(self, cells: Sequence[Cell], state: State, error: str, splits: Splits) -> None:
        for cell in cells:
            record = Record(**_frame(cell, self.device, splits), state=state, error=error)
            self.log.done(cell, self.store.write_result(record))


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
