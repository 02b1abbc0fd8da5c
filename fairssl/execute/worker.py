"""The code that every executor runs: it takes jobs and leaves records."""

from __future__ import annotations

import gc
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import torch
from torch import Tensor

from fairssl import distributed
from fairssl.data.device import free_memory, is_out_of_memory, pick_device, place
from fairssl.data.splits import RunData, SplitsCache, run_data
from fairssl.evaluate.during import on_validation
from fairssl.evaluate.embed import Features, embed_splits
from fairssl.evaluate.judge import evaluate
from fairssl.execute.jobs import Job
from fairssl.execute.loggers import Logger, Loggers
from fairssl.execute.options import Settings
from fairssl.execute.reporting import Reporter, SilentReporter
from fairssl.execute.signals import GracefulStop
from fairssl.pipeline import ended_badly, lost_record, ok_record, predictions_of
from fairssl.plan.resolve import Run
from fairssl.plan.status import Live, is_due
from fairssl.spec.run import DataSpec, RunSpec
from fairssl.store.files import StoreError, whole_file
from fairssl.store.history import history_from_csv, history_to_csv
from fairssl.store.record import State, reason_of
from fairssl.store.runs import RunStore
from fairssl.train.cudagraph import NotCaptured
from fairssl.train.history import Diverged
from fairssl.train.interleave import interleave
from fairssl.train.rng import preserved
from fairssl.train.trainer import Stopped, Trainer, build_trainer
from fairssl.types import Splits, UserError, counted

DEATHS = 2  # a job whose worker died that often is given up


class WorkerBroken(RuntimeError):
    """This process can do no more work: its GPU answers every call with an error, or something failed in one of several
    processes that train a run together, and the others may wait for it for ever.

    `recorded`: a run that it had has its record now, and those without one are for another process. Else a process was
    lost, and the run can be tried again.
    """

    def __init__(self, message: str, recorded: bool) -> None:
        super().__init__(message)
        self.recorded = recorded


class StepNotCaptured(WorkerBroken):
    """A step could not be captured, and left the GPU unfit for this process. Nothing of its runs is recorded: they are for
    another process, which takes steps of this kind (`step_key`) eagerly."""

    def __init__(self, message: str, step_key: str) -> None:
        super().__init__(message, recorded=False)
        self.step_key = step_key


def step_key(spec: RunSpec) -> str:
    """What runs have in common whose steps are made by the same code: a GPU can capture all of them, or none."""
    return spec.encoder.canonical_json + spec.method.canonical_json


class Training:
    """A pretraining in a worker's hands."""

    trainer: Trainer

    def __init__(self, job: Job, live: Live | None, log: Reporter) -> None:
        self.job, self.live, self.log = job, live, log
        self.error: Exception | None = None  # what it ended with before its last step
        self.saved = False  # the store has it already
        self.n_packed = 1  # how many train on the device at the same time
        self.views_per_step = 0
        self.validation: list[dict[str, float]] = []  # of the epochs after which the validation split was judged
        self.validation_seconds = 0.0
        self.timings: dict[str, float] = {}

    @property
    def spec(self) -> RunSpec:
        """The spec of the first run that needs it; the others agree in all that training sees."""
        return self.job.runs[0].spec

    @property
    def name(self) -> str:
        return self.job.runs[0].name

    def stage(self, what: str, done: int, total: int) -> None:
        """A `Progress` for whatever goes on with it."""
        self.log.stage(what, done, total)
        if self.live is not None:
            self.live(what, done, total)


class Worker:
    """Takes jobs, one pack after the other, on one device; or, first of several processes, on all of theirs."""

    def __init__(
        self,
        store: RunStore,
        settings: Settings,
        log: Reporter,
        stop: GracefulStop,
        splits: SplitsCache | None = None,
    ) -> None:
        self.store, self.settings, self.log, self.stop = store, settings, log, stop
        self.device = pick_device(settings.device)
        if self.device.type == "cuda" and self.device.index is not None:
            torch.cuda.set_device(self.device)  # or torch would take memory of the first GPU too
        self.splits = splits or SplitsCache(settings.roots, log.stage)
        self.loggers = Loggers(settings.loggers, store.root, log)
        self.leads = distributed.rank() == 0  # reads and writes files, and judges
        self._placed: tuple[Splits, Tensor] | None = None

    def run(self, jobs: Sequence[Job]) -> list[Job]:
        """Do what of the jobs, which train together, is still to do; gives those that another live process is at.

        A run that fails leaves a record that says so and stops no other. `UserError` (`StoreError` for a disk that
        refuses), `Stopped` and KeyboardInterrupt pass through, and `WorkerBroken` where this process cannot go on.
        """
        held = []
        with ExitStack() as claims:
            due = []
            for job in jobs:
                if not claims.enter_context(self.store.claim(job.key)):
                    held.append(job)
                    continue
                runs = [r for r in job.runs if is_due(self.store.state(r.spec.key), self.settings.retry_failed)]
                if runs:  # else another process has been here since the plan was made
                    due.append(Job(job.key, tuple(runs)))
            if due:
                try:
                    self._run(distributed.broadcast(due))
                finally:
                    for job in due:
                        self._clear_work(job.key)
        return held

    def follow(self) -> None:
        """Be one of several processes: do what the first says until it has said `dismiss`."""
        while (jobs := distributed.broadcast(None)) is not None:
            self._run(jobs)

    def dismiss(self) -> None:
        """Let those that `follow` go."""
        distributed.broadcast(None)

    def _clear_work(self, key: str) -> None:
        """Take the work folder away once the pretraining is whole; a checkpoint of an unfinished one stays."""
        if self.store.has_pretrain(key):
            self.store.clear_work(key)

    def _run(self, jobs: Sequence[Job]) -> None:
        failed = False
        packs = [list(jobs)]
        with preserved(self.device, usable=lambda: not self.device_lost()):
            while packs:
                trainings = self._train(packs.pop(0))
                self._leave_lost_device([one for one in trainings if one.error is not None])
                alone = self._without_memory(trainings)
                packs += [[one.job] for one in alone]
                trainings = [one for one in trainings if one not in alone]
                while trainings:
                    one = trainings.pop(0)
                    failed |= self._judge(one) if one.error is None else self._ended_badly(one)
                if packs:  # what those before left in cycles may be large
                    gc.collect()
                    torch.cuda.empty_cache()
        if failed and distributed.size() > 1:
            raise WorkerBroken(f"{jobs[0].runs[0].name} failed", recorded=True)

    def _train(self, jobs: Sequence[Job]) -> list[Training]:
        """The jobs' trainings, with their trainers at the last step, or with what went wrong."""
        trainings = [
            Training(job, Live(self.store, job.key, job.runs) if self.leads else None, self.log) for job in jobs
        ]
        for one in trainings:
            try:
                self._build(one)
            except Exception as error:
                one.error = error
        going = [one for one in trainings if one.error is None and not one.saved]
        for one in going:
            one.n_packed = len(going)
        with self.stop.training():
            ended = interleave([one.trainer for one in going], [self._steps(one) for one in going])
        for one, end in zip(going, ended, strict=True):
            if isinstance(end, Stopped):
                raise end
            one.error = end
        for one in trainings:
            if one.error is not None:  # nothing of it may stay on the device, also not in the error's frames
                traceback.clear_frames(one.error.__traceback__)
                one.__dict__.pop("trainer", None)
        return trainings

    def _build(self, training: Training) -> None:
        """Give the training its trainer: at the first step, or with the weights that the store has."""
        spec = training.spec
        data = self._data(spec, spec.pretrain_data)
        images = self.images(data.splits, spec.pretrain_data.dataset)
        eager = self.settings.eager or step_key(spec) in self.settings.eager_steps
        training.trainer = trainer = build_trainer(spec, data, self.device, images, eager, self.settings.compile)
        saved = distributed.broadcast(self.store.read_pretrain(training.job.key) if self.leads else None)
        if saved is not None:
            trainer.model.load(saved[0])
            training.saved = True
            return
        for name, stream in trainer.streams.items():
            if stream.n_images < spec.train.batch_of(name):
                self.log.note(
                    f"the {name!r} stream has {counted(stream.n_images, 'image')}: that is its batch, each step"
                )
        training.views_per_step = sum(s.batch_size for s in trainer.streams.values()) * trainer.step.n_views
        if training.live is not None:
            training.live.views_per_step = training.views_per_step

    def _data(self, spec: RunSpec, data: DataSpec) -> RunData:
        return run_data(self.splits.get(data), data.attribute, spec.annotated, spec.seed)

    def images(self, splits: Splits, dataset: str) -> Tensor:
        """The training images where the loop reads them; trainings on the same splits share them."""
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

    def _steps(self, training: Training) -> Iterator[None]:
        """The training's steps, and then its place in the store."""
        job, trainer = training.job, training.trainer
        work = self.store.work_dir(job.key) if self.leads else None
        logger: Logger | None = None

        def on_epoch(row: Mapping[str, float]) -> None:
            nonlocal logger
            every = self.settings.eval_every
            if every and int(row["epoch"]) % every == 0:
                self._look_at_validation(training, row, work)
            if work is None:  # the first process writes for all
                return
            if logger is None:  # now it is known where the training went on from
                before, spec = trainer.history.rows[:-1], training.spec.model_dump(mode="json")
                logger = self.loggers.open(work, job.key, training.name, spec, before)
            logger.epoch(row)

        every = self.settings.checkpoint_seconds, self.settings.checkpoint_epochs
        try:
            yield from trainer.advance(work, training.stage, self.stop, *every, on_epoch)
        finally:
            if logger is not None:
                logger.close()
        self._keep(training)

    def _look_at_validation(self, training: Training, row: Mapping[str, float], work: Path | None) -> None:
        """What the validation split gives now, beside the history; it is part of no key and changes no result.

        It is judged as the first of the runs that share the pretraining.
        """
        started = time.perf_counter()
        path = None if work is None else work / "validation.csv"
        if path is not None and not training.validation and path.is_file():  # of a process before this one
            with suppress(ValueError):
                before = history_from_csv(path.read_text(encoding="utf-8"))
                training.validation = [one for one in before if one["epoch"] < row["epoch"]]
        data = self._data(training.spec, training.spec.data)
        found = on_validation(training.spec, training.trainer.model, data, self.leads, training.stage)
        if path is not None:
            training.validation.append({"epoch": row["epoch"], "step": row["step"], **found})
            with whole_file(path) as file:
                file.write(history_to_csv(training.validation))
        training.validation_seconds += time.perf_counter() - started

    def _keep(self, training: Training) -> None:
        """Write a finished pretraining into the store, and down what it cost."""
        trainer, timings = training.trainer, training.timings
        steps = trainer.n_steps - trainer.resumed_at
        seconds = (
            trainer.seconds - training.validation_seconds
        ) / training.n_packed  # its share, where several had the device
        timings["train_seconds"] = seconds
        if trainer.first_epoch_seconds is not None:
            timings["first_epoch_seconds"] = trainer.first_epoch_seconds / training.n_packed
        if training.n_packed > 1:
            timings["packed"] = training.n_packed
        if distributed.size() > 1:
            timings["devices"] = distributed.size()
        if steps:
            timings["views_per_second"] = training.views_per_step * steps / max(seconds, 1e-9)
            timings["seconds_per_epoch"] = seconds / steps * trainer.steps_per_epoch
        if steps or not trainer.n_steps:
            timings.setdefault("seconds_per_epoch", 0.0)
            timings["steps_per_epoch"] = trainer.steps_per_epoch if trainer.n_steps else 0
        if self.leads:
            content = {
                "pretrain_key": training.job.key,
                "spec": training.spec.model_dump(mode="json"),
                "n_train": len(trainer.data.target),
                "n_annotated": len(trainer.data.annotated),
                "n_groups": trainer.n_groups,
            }
            self.store.write_pretrain(
                training.job.key, content, trainer.model.tensors(), trainer.history.rows, training.validation
            )

    def _judge(self, training: Training) -> bool:
        """A record for every run of a finished pretraining; whether one failed."""
        features: Features = {}
        embedded: DataSpec | None = None
        failed = False
        for number, run in enumerate(training.job.runs):
            started = time.perf_counter()
            data: RunData | None = None
            try:
                data = self._data(run.spec, run.spec.data)
                for note in (*data.splits.departures, *data.splits.notes):
                    self.log.note(f"{run.spec.data.dataset}: {note}")
                if embedded != run.spec.data:
                    features = embed_splits(training.trainer.model, data.splits, training.stage)
                    embedded = run.spec.data
                if not self.leads:
                    continue
                training.stage("evaluate", number, len(training.job.runs))
                found = evaluate(run.spec, training.trainer.model, features, data)
            except (StoreError, UserError, KeyboardInterrupt):
                raise
            except Exception as error:  # whatever a run dies of belongs in its record
                self._raise_if_peer_lost(training, error)
                self._all_ended([run], "failed", traceback.format_exc())
                failed = True
                if self.device_lost():
                    what = f"{run.name} failed, and {self.device} with it"
                    raise WorkerBroken(what, recorded=True) from error
                continue
            spent = {**training.timings, "evaluate_seconds": time.perf_counter() - started}
            training.timings = {}  # only the run that paid for the training says what it cost
            record = ok_record(run.spec, found, training.trainer, data, self.device, spent)
            self.log.done(run, self.store.write_result(record, predictions_of(found, data.splits)))
        return failed

    def _all_ended(self, runs: Sequence[Run], state: State, error: str) -> None:
        for run in runs if self.leads else ():
            data = self._data(run.spec, run.spec.data)
            record = ended_badly(run.spec, state, error, data, self.device)
            self.log.done(run, self.store.write_result(record))

    def _ended_badly(self, training: Training) -> bool:
        """Records for the runs of a pretraining that did not end well; whether it failed, and did not just diverge."""
        error = training.error
        assert error is not None
        self._raise_if_peer_lost(training, error)
        if isinstance(error, UserError):  # a StoreError is one
            raise error
        if isinstance(error, OSError):
            raise StoreError(self.store.root, error) from error
        if isinstance(error, Diverged):
            self._all_ended(training.job.runs, "diverged", str(error))
            return False
        text = "".join(traceback.format_exception(error))
        if not self.leads:  # it writes no record, and may be the only one that knows
            print(f"fairssl: process {distributed.rank()}: {reason_of(text)}", file=sys.stderr)
        if training.n_packed > 1 and is_out_of_memory(error):
            self.log.note(f"{training.name}: out of memory with {training.n_packed} seeds at once; --pack 1 needs less")
        self._all_ended(training.job.runs, "failed", text)
        return True

    def _raise_if_peer_lost(self, training: Training, error: Exception) -> None:
        """`WorkerBroken` where the error says that another of the processes is gone, and nothing about the run."""
        if distributed.is_peer_lost(error):
            what = f"{training.name}: one of {distributed.size()} processes is gone"
            raise WorkerBroken(what, recorded=False) from error

    def device_lost(self) -> bool:
        """Whether the GPU answers with an error from now on, as after an illegal access: all that this process could do on
        it would fail."""
        if self.device.type != "cuda":
            return False
        try:
            torch.cuda.synchronize(self.device)
        except RuntimeError:
            return True
        return False

    def _leave_lost_device(self, bad: Sequence[Training]) -> None:
        """`WorkerBroken` if the device is lost, or may be after a failed capture.

        Where it is lost, one of the trainings that failed has its records then, so that no command finds the same again;
        the others may not be to blame, and are left to another process with what has been trained already.
        """
        for one in bad:
            if isinstance(one.error, NotCaptured):
                raise StepNotCaptured(
                    f"{one.name}: trained eagerly, which is slower, since a GPU cannot capture its step: {one.error}",
                    step_key(one.spec),
                )
        blamed = [one for one in bad if not isinstance(one.error, Diverged)][:1]
        if not blamed or not self.device_lost():
            return
        one = blamed[0]
        self._ended_badly(one)
        if one.n_packed > 1:
            self.log.note(
                f"{one.name}: {self.device} was lost while {one.n_packed} seeds had it; --retry-failed --pack 1 tells "
                "whether this one is to blame"
            )
        raise WorkerBroken(f"{one.name} failed, and {self.device} with it", recorded=True)

    def _without_memory(self, trainings: Sequence[Training]) -> list[Training]:
        """Of a pack that nobody asked for, the trainings that the device had no memory for beside the others."""
        if len(trainings) == 1 or self.settings.pack:
            return []
        found = [one for one in trainings if one.error is not None and is_out_of_memory(one.error)]
        if found:
            self.log.note(
                f"{found[0].name}: out of memory with {len(trainings)} seeds at once; {len(found)} are trained again, "
                "one at a time"
            )
        return found


def write_lost(job: Job, store: RunStore, error: str, log: Reporter) -> None:
    """Failed records for the runs of a job whose workers died over it; what has ended well stays."""
    for run in job.runs:
        if store.state(run.spec.key) != "ok":
            log.done(run, store.write_result(lost_record(run.spec, error)))


def follow(settings: Settings, root: Path, stop: GracefulStop) -> None:
    """Be one of several processes that train each run together, until the first lets go."""
    try:
        Worker(RunStore(root), settings, SilentReporter(), stop).follow()
    except (UserError, OSError) as error:  # it may be true of this process alone
        print(f"fairssl: process {distributed.rank()}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except RuntimeError as error:
        if not (stop() or distributed.is_peer_lost(error)):  # the first is gone, and says why, or its parent does
            raise
