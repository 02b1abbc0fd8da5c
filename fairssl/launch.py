"""Carries a plan out: distinct pretrainings, then the cheap probes; what is done already is not done again."""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from fairssl.pipeline import Cell, Embedded, Evaluation, Plan, SplitsCache, environment, facts, prepare
from fairssl.store import Measured, Predictions, Record, RunStore, StoreError
from fairssl.types import Splits, Undefined, UserError

if TYPE_CHECKING:
    import torch

    from fairssl.train import Trainer


class Stop:
    """Turns SIGTERM and Ctrl-C into a stop between two steps, with a checkpoint; outside training they act at once."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self._training = False

    def __call__(self) -> bool:
        return self.signal is not None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None or not self._training:  # a second Ctrl-C does not wait for the step
            self.signal = number
            raise KeyboardInterrupt
        self.signal = number

    @contextmanager
    def listening(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._handle) for number in (signal.SIGTERM, signal.SIGINT)}
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
        return 75 if self.signal == signal.SIGTERM else 130


class Log(Protocol):
    """What a launch reports while it goes."""

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on now."""

    def note(self, text: str) -> None:
        """Something the user should know, said once."""

    def pretraining(self, number: int, n: int, cells: Sequence[Cell]) -> None:
        """The number-th of n distinct pretrainings starts; `cells` share it."""

    def done(self, cell: Cell, record: Record) -> None:
        """A cell has its record."""


def todo(plan: Plan, store: RunStore, retry_failed: bool = False) -> dict[str, list[Cell]]:
    """pretrain key -> the cells that still need a run, each key once. Failed and diverged ones only when asked."""
    missing: dict[str, list[Cell]] = {}
    for pretrain_key, cells in plan.pretrainings().items():
        wanted: dict[str, Cell] = {}
        for cell in cells:
            state = store.state(cell.spec.key)
            if state is None or (retry_failed and state != "ok"):
                wanted.setdefault(cell.spec.key, cell)
        if wanted:
            missing[pretrain_key] = list(wanted.values())
    return missing


def run_local(
    plan: Plan, store: RunStore, device: torch.device, log: Log, stop: Stop, retry_failed: bool = False
) -> None:
    """Run what is missing in this process, one pretraining after the other. A cell that fails leaves a record that says
    so and stops no other; a disk that refuses a write, and the user's mistakes, stop everything."""
    missing = todo(plan, store, retry_failed)
    splits = SplitsCache(plan.roots, log.stage)
    sources = {cell.spec.data.model_dump_json(): cell.spec.data for cells in missing.values() for cell in cells}
    for data in sources.values():  # a mistake in the last dataset is told before the first hour of training
        splits.get(data)
    for number, (pretrain_key, cells) in enumerate(missing.items()):
        log.pretraining(number, len(missing), cells)
        with store.claim(pretrain_key, wait=True):
            cells = [
                c for c in cells if store.state(c.spec.key) is None or retry_failed
            ]  # another bench may have been here
            if cells:
                _run_shared(pretrain_key, cells, splits, store, device, log, stop)


def _run_shared(
    pretrain_key: str,
    cells: Sequence[Cell],
    cache: SplitsCache,
    store: RunStore,
    device: torch.device,
    log: Log,
    stop: Stop,
) -> None:
    """One pretraining and the cells that share it."""
    from fairssl.train import Diverged, Stopped

    first = cells[0]
    splits = cache.get(first.spec.data)
    timings: dict[str, float] = {}
    try:
        trainer = _trained(first, splits, store, device, timings, log, stop)
    except (StoreError, UserError, Stopped, KeyboardInterrupt):
        raise
    except OSError as error:
        raise StoreError(store.root, error) from error
    except Diverged as error:
        _all_failed(cells, "diverged", str(error), splits, store, device, log)
        return
    except Exception:  # the one broad catch: whatever a cell dies of belongs in its record
        _all_failed(cells, "failed", traceback.format_exc(), splits, store, device, log)
        return
    embedded: Embedded | None = None
    embedded_on: object = None
    for cell in cells:
        started = time.perf_counter()
        try:
            splits = cache.get(cell.spec.data)
            for note in splits.notes:
                log.note(f"{cell.spec.data.dataset}: {note}")
            if embedded is None or embedded_on != cell.spec.data:
                embedded, embedded_on = Embedded(trainer, splits, log.stage), cell.spec.data
            found = embedded.evaluate(cell.spec)
        except (StoreError, UserError, KeyboardInterrupt):
            raise
        except Exception:
            _all_failed([cell], "failed", traceback.format_exc(), splits, store, device, log)
            continue
        spent = {**timings, "evaluate_seconds": time.perf_counter() - started}
        timings = {}  # only the cell that paid for the training says what it cost
        record, predictions = _result(cell, found, splits, device, spent)
        log.done(cell, store.write_result(record, predictions))


def _trained(
    cell: Cell, splits: Splits, store: RunStore, device: torch.device, timings: dict[str, float], log: Log, stop: Stop
) -> Trainer:
    """The trainer at its last step: from the store, or trained on from its newest checkpoint."""
    import torch

    key = cell.spec.pretrain_key
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        trainer = prepare(cell.spec, splits, device)
        saved = store.read_pretrain(key)
        if saved is not None:
            trainer.load_weights(saved[0])
            return trainer
        with stop.training():
            seconds = trainer.run(store.work_dir(key), log.stage, stop)
    steps = trainer.n_steps - trainer.resumed_at
    views = sum(stream.batch_size for stream in trainer.streams.values()) * trainer.n_views * steps
    timings.update(train_seconds=seconds, views_per_second=views / max(seconds, 1e-9))
    spec = cell.spec.model_dump(mode="json")
    store.write_pretrain(key, {"pretrain_key": key, "spec": spec}, trainer.parameters_and_buffers(), trainer.history)
    store.clear_work(key)
    return trainer


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
    test = _split_values(found.test)
    record = Record(
        **_frame(cell, splits, device),
        **test,
        state="ok",
        cells=cells,
        validation=Measured(**_split_values(found.val)),
        leakage=dict(found.leakage),
        timings=timings,
    )
    return record, Predictions(splits.test.ids, outcome.score, outcome.target, outcome.group)


def _split_values(values: Any) -> dict[str, Any]:
    """Values as a record holds them: None where undefined, and the reasons apart."""
    return {
        "metrics": {k: None if isinstance(v, Undefined) else float(v) for k, v in values.items()},
        "undefined": {k: v.reason for k, v in values.items() if isinstance(v, Undefined)},
    }


def _frame(cell: Cell, splits: Splits, device: torch.device) -> dict[str, Any]:
    """What every record has, however it ended."""
    return {
        "spec": cell.spec.model_dump(mode="json"),
        "key": cell.spec.key,
        "facts": facts(cell.spec, splits),
        "notes": list(splits.notes),
        "env": environment(device),
        "metric_versions": cell.spec.metrics,
    }


def _all_failed(
    cells: Sequence[Cell], state: Any, error: str, splits: Splits, store: RunStore, device: torch.device, log: Log
) -> None:
    for cell in cells:
        record = Record(**_frame(cell, splits, device), state=state, error=error)
        log.done(cell, store.write_result(record))
